"""A transformer block of several models in plain PyTorch, with the dropout of the kernels.

Run as a program it compares the kernels with it: TRITON_INTERPRET=1 python -m
tests.kernels.block_reference
"""

import json

import torch
import torch.nn.functional as F

from tests.kernels.dropout import keys_of, salts_of, survives

EPS = 1e-5


def drop(
    values: torch.Tensor, salt: torch.Tensor, index: torch.Tensor, rate: float
) -> torch.Tensor:
    return torch.where(survives(salt, index, rate), values / (1 - rate), 0.0) if rate else values


def block_of_one(
    x: torch.Tensor, weights, vectors, salts, *, heads: int, rate: float
) -> torch.Tensor:
    """x [B, T, W], the weights [12 * W * W], the vectors [13 * W] and the salts [3] of one
    model."""
    windows, length, width = x.shape
    area = width * width
    into, out, up, down = (
        part.reshape(-1, size)
        for part, size in zip(
            weights.split([3 * area, area, 4 * area, 4 * area]),
            (width, width, width, 4 * width),
            strict=True,
        )
    )
    b_in, b_out, b_up, b_down, gain_1, shift_1, gain_2, shift_2 = vectors.split(
        [width * s for s in (3, 1, 4, 1, 1, 1, 1, 1)]
    )
    rows = x.reshape(-1, width)
    element = torch.arange(rows.numel(), device=x.device).reshape(rows.shape)
    qkv = F.layer_norm(rows, (width,), gain_1, shift_1, EPS) @ into.T + b_in
    query, key, value = qkv.reshape(windows, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    scores = query @ key.transpose(-1, -2) * (width // heads) ** -0.5
    past = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
    room = max(16, 1 << (length - 1).bit_length())
    t = torch.arange(length, device=x.device)
    place = torch.arange(windows * heads, device=x.device).reshape(windows, heads, 1, 1)
    weights_of_past = scores.masked_fill(~past, -torch.inf).softmax(-1)
    used = drop(weights_of_past, salts[2], place * room * room + t[:, None] * room + t, rate)
    mixed = (used @ value).transpose(1, 2).reshape(-1, width)
    between = rows + drop(mixed @ out.T + b_out, salts[0], element, rate)
    hidden = F.relu(F.layer_norm(between, (width,), gain_2, shift_2, EPS) @ up.T + b_up)
    return (between + drop(hidden @ down.T + b_down, salts[1], element, rate)).reshape(x.shape)


def differences(
    models: int,
    windows: int,
    length: int,
    *,
    width: int,
    heads: int,
    rate: float,
    tokens: int,
    positions: list[int],
) -> dict[str, float]:
    """How far the kernels are from this: the outputs and each gradient, relative to their norms."""
    from saformer.kernels.block import fused_block

    device = "cuda" if torch.cuda.is_available() else "cpu"
    low = torch.bfloat16 if device == "cuda" else torch.float32
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    x = random(models * windows, length, width).requires_grad_()
    weights = (random(models, 12 * width * width) * width**-0.5).to(low).float().requires_grad_()
    vectors = 0.3 * random(models, 13 * width)
    vectors[:, 9 * width : 10 * width] += 1
    vectors[:, 11 * width : 12 * width] += 1
    vectors.requires_grad_()
    salts = salts_of(keys_of(torch.arange(models, device=device) + 5, 3), 7, 3)
    probe = random(models * windows, length // tokens * len(positions), width)
    ours = fused_block(
        x, weights, weights.detach().to(low), vectors, salts, tokens, positions, heads, rate, EPS
    )[0]
    theirs = torch.cat(
        [
            block_of_one(part, weights[m], vectors[m], salts[:, m], heads=heads, rate=rate)
            for m, part in enumerate(x.split(windows))
        ]
    )
    theirs = theirs.unflatten(1, (-1, tokens))[:, :, positions].flatten(1, 2)
    found = {"output": (ours, theirs)}
    sides = [
        torch.autograd.grad((side * probe).sum(), (x, weights, vectors)) for side in (ours, theirs)
    ]
    found |= dict(zip(("x", "weights", "vectors"), zip(*sides, strict=True), strict=True))
    return {
        name: float((a - b).detach().norm() / b.detach().norm()) for name, (a, b) in found.items()
    }


def embedding_differences(
    models: int, windows: int, steps: int, *, width: int, rate: float
) -> dict[str, float]:
    """The same for tokens of three kinds."""
    from saformer.kernels.ends import fused_embedding

    device, sizes, horizon = "cuda" if torch.cuda.is_available() else "cpu", [1, 17, 6], 11
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    values = random(models * windows, steps, sum(sizes))
    timestep = torch.randint(horizon, (models * windows, steps), generator=generator).to(device)
    weight, bias, time = (
        random(models, width, sum(sizes)),
        random(models, 3, width),
        random(models, horizon, width),
    )
    gain, shift = 1 + 0.3 * random(models, width), random(models, width)
    learnt = [part.requires_grad_() for part in (weight, bias, time, gain, shift)]
    salts = salts_of(keys_of(torch.arange(models, device=device) + 5, 3), 7, 1)[0]
    firsts = torch.tensor([0, 1, 18, 24], dtype=torch.int32, device=device)
    ours = fused_embedding(values, timestep, *learnt, firsts, salts, sizes, rate, EPS)[0]
    each = []
    for m, (value, at) in enumerate(
        zip(values.split(windows), timestep.split(windows), strict=True)
    ):
        kinds = zip(value.split(sizes, -1), weight[m].split(sizes, -1), bias[m], strict=True)
        lifted = torch.stack([v @ w.T + b + time[m][at] for v, w, b in kinds], 2)
        normed = F.layer_norm(lifted, (width,), gain[m], shift[m], EPS)
        index = torch.arange(normed.numel(), device=device).reshape(normed.shape)
        each.append(drop(normed, salts[m], index, rate).flatten(1, 2))
    theirs, probe = torch.cat(each), random(*ours.shape)
    found = {"output": (ours, theirs)}
    sides = [torch.autograd.grad((side * probe).sum(), learnt) for side in (ours, theirs)]
    found |= dict(
        zip(("weight", "bias", "time", "gain", "shift"), zip(*sides, strict=True), strict=True)
    )
    return {
        name: float((a - b).detach().norm() / b.detach().norm()) for name, (a, b) in found.items()
    }


def head_differences(models: int, windows: int, steps: int, *, width: int) -> dict[str, float]:
    """The same for a norm and two maps that read it in turn."""
    from saformer.kernels.ends import fused_heads

    device, generator = (
        "cuda" if torch.cuda.is_available() else "cpu",
        torch.Generator().manual_seed(2),
    )

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    x, gain, shift = (
        random(models * windows, steps * 2, width),
        1 + 0.3 * random(models, width),
        random(models, width),
    )
    learnt = [
        part.requires_grad_()
        for part in (x, gain, shift, random(models, 2, 16, width), random(models, 2, 16))
    ]
    ours = fused_heads(*learnt, EPS)
    weight, bias = learnt[3:]
    each = []
    for m, part in enumerate(x.split(windows)):
        normed = F.layer_norm(part, (width,), gain[m], shift[m], EPS).unflatten(1, (steps, 2))
        each.append((torch.einsum("bkaw,aow->bkao", normed, weight[m]) + bias[m]).flatten(1, 2))
    theirs, probe = torch.cat(each), random(*ours.shape)
    found = {"output": (ours, theirs)}
    sides = [torch.autograd.grad((side * probe).sum(), learnt) for side in (ours, theirs)]
    found |= dict(
        zip(("x", "gain", "shift", "weight", "bias"), zip(*sides, strict=True), strict=True)
    )
    return {
        name: float((a - b).detach().norm() / b.detach().norm()) for name, (a, b) in found.items()
    }


if __name__ == "__main__":
    on_gpu = torch.cuda.is_available()
    small, large = ((2, 16, 100), (3, 16, 40)) if on_gpu else ((2, 3, 20), (1, 2, 9))
    width = 128 if on_gpu else 32
    found = [
        differences(*small, width=width, heads=1, rate=0.0, tokens=5, positions=[0, 1, 2, 3, 4]),
        differences(
            *small,
            width=width // 2 if on_gpu else width,
            heads=2,
            rate=0.3,
            tokens=5,
            positions=[0, 1, 3],
        ),
        differences(*large, width=width, heads=1, rate=0.1, tokens=1, positions=[0]),
        differences(*small, width=width, heads=1, rate=0.1, tokens=2, positions=[1]),
        embedding_differences(2, 5, 7, width=width, rate=0.0),
        embedding_differences(1, 16, 20, width=width, rate=0.3),
        head_differences(2, 5, 7, width=width),
        head_differences(1, 16, 20, width=width),
    ]
    print(json.dumps(found))
