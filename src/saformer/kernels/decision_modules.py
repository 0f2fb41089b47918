"""The parts of a model that decide, computed by kernels with the plain parts' own weights.

A tile of R rows stays on the chip through a whole kernel. Tensor cores multiply matrices in as many
passes (P, "tf32x3") as float32's digits take; weights are the model's own, read where they lie.

Rows are tokens. Of `tokens` tokens of each lane, `count` are queries: token `first` and each
`every`th after it. Their outputs lie close together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from triton.language import constexpr

from saformer.core.gaussian import LOG_DEVIATION_RANGE, Gaussian, GaussianHead
from saformer.core.normalizer import Normalizer
from saformer.core.tokens import TokenEmbedding
from saformer.core.transformer import Trunk
from saformer.kernels.parts import layer_norm

Tiles = Mapping[str, int]
PRECISION = "tf32x3"  # three passes of tensor cores, which is float32 to about 1e-6
QKV = {"R": 64, "C": 64, "K": 32, "num_warps": 4, "num_stages": 1}
ATTENTION = {"R": 32, "C": 64, "num_warps": 4, "num_stages": 2}
MLP = {"R": 64, "C": 64, "num_warps": 4, "num_stages": 2}
FEW_ROWS = 4096
QKV_FEW = {"R": 16, "C": 128, "K": 32, "num_warps": 4, "num_stages": 1}
ATTENTION_FEW = {"R": 16, "C": 64, "num_warps": 4, "num_stages": 2}
MLP_FEW = {"R": 16, "C": 64, "num_warps": 4, "num_stages": 2}
"""R rows, and C columns or positions, stay on the chip at a time; tiles are smaller for up to
FEW_ROWS rows, lest most of a GPU have nothing to do."""
EMBED = {"R": 16, "num_warps": 4}
DRAW_ACTIONS = {"R": 32, "num_warps": 4}
DRAW_RETURNS = {"R": 128, "num_warps": 4}


@triton.jit(do_not_specialize=["stride", "share", "time_stride", "time_share", "rows", "size",
                               "steps", "tokens", "first", "every", "horizon"])  # fmt: skip
def embed_kind_kernel(values, stride, share, weight, bias, times, timestep, time_stride, time_share,
        gain, shift, out, rows, size, steps, tokens, first, every, horizon, eps, W: constexpr,
        R: constexpr):  # fmt: skip
    """Tokens of one kind: out = norm(linear(values) + time), `steps` of them on each lane.
    `share` rows behind each other have one value [size], `time_share` of them one time."""
    n, w = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, W)
    inside = n < rows
    time = tl.load(timestep + n // time_share * time_stride, mask=inside, other=0)
    time = tl.minimum(time, horizon - 1)
    token = tl.load(times + time[:, None] * W + w) + tl.load(bias + w)
    for column in range(size):
        value = tl.load(values + (n // share) * stride + column, mask=inside, other=0.0)
        token += value[:, None] * tl.load(weight + w * size + column)
    row = (n // steps) * tokens + first + (n % steps) * every
    normed = layer_norm(token, gain, shift, eps, W)
    tl.store(out + row[:, None] * W + w, normed, mask=inside[:, None])


@triton.jit(do_not_specialize=["rows"])
def qkv_kernel(x, weight, bias, gain, shift, out, rows, eps, W: constexpr, R: constexpr,
        C: constexpr, K: constexpr, P: constexpr):  # fmt: skip
    """out [rows, 3 * W] = query_key_value(attention_norm(x)), by C columns, of K columns of x."""
    n, w = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, W)
    c, k = tl.arange(0, C), tl.arange(0, K)
    row, inside = n[:, None], (n < rows)[:, None]
    whole = tl.load(x + row * W + w, mask=inside, other=0.0)
    mean = (tl.sum(whole, 1) / W)[:, None]
    rate = 1 / tl.sqrt(tl.sum((whole - mean) * (whole - mean), 1) / W + eps)[:, None]
    for column in range(0, 3 * W, C):
        y = tl.zeros((R, C), dtype=tl.float32) + tl.load(bias + column + c)
        for begin in range(0, W, K):  # loaded again: registers are scarcer than cached memory
            part = tl.load(x + row * W + begin + k, mask=inside, other=0.0)
            part = (part - mean) * rate * tl.load(gain + begin + k) + tl.load(shift + begin + k)
            square = tl.load(weight + (column + c)[:, None] * W + begin + k)
            y = tl.dot(part, tl.trans(square), y, input_precision=P)
        tl.store(out + row * 3 * W + column + c, y, mask=inside)


@triton.jit(do_not_specialize=["count", "tokens", "first", "every", "length"])
def past_attention_kernel(qkv, past_qkv, past_mask, lanes, out, count, tokens, first, every, length,
        scale, H: constexpr, W: constexpr, M: constexpr, R: constexpr, C: constexpr,
        P: constexpr):  # fmt: skip
    """Attention of rows `qkv` to themselves and to what lies before them, by C positions.
    M = 0: the rows are the past itself. M = 1 or 2: they are branches of so many tokens after the
    whole past, which has `length` positions and lies at `lanes`. `past_mask` [lanes, length] is
    added to the scores of the past."""
    D: constexpr = W // H
    K: constexpr = C if C < D else D
    lane, head = tl.program_id(1) // H, tl.program_id(1) % H
    r, d, k = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, D), tl.arange(0, K)
    token, inside = first + r * every, (r < count)[:, None]
    own = qkv + (lane * tokens + token)[:, None] * 3 * W + head * D
    scale *= 1.4426950408889634  # exp2 is what the hardware has

    # each sees itself, so that no sum is empty, not even that of padding
    query = tl.load(own + d, mask=inside, other=0.0)
    highest = tl.sum(query * tl.load(own + W + d, mask=inside, other=0.0), 1) * scale
    total = tl.full((R,), 1.0, dtype=tl.float32)
    mixed = tl.load(own + 2 * W + d, mask=inside, other=0.0)
    if M == 2:
        is_second = (token % 2 == 1) & (r < count)
        first_key = tl.load(own - 2 * W + d, mask=is_second[:, None], other=0.0)
        score = tl.sum(query * first_key, 1) * scale
        higher = tl.maximum(highest, tl.where(is_second, score, float("-inf")))
        total, power = tl.exp2(highest - higher), tl.where(is_second, tl.exp2(score - higher), 0.0)
        before = tl.load(own - W + d, mask=is_second[:, None], other=0.0)
        mixed = mixed * total[:, None] + power[:, None] * before
        total, highest = total + power, higher

    lane = tl.load(lanes + lane)
    end = length
    if M == 0:
        end = first + (tl.minimum((tl.program_id(0) + 1) * R, count) - 1) * every
    for begin in range(0, end, C):
        t = begin + tl.arange(0, C)
        there = (t < length)[:, None]
        past = past_qkv + (lane * length + t)[:, None] * 3 * W + head * D
        scores = tl.zeros((R, C), dtype=tl.float32)
        for column in range(0, D, K):  # loaded again: registers are scarcer than cached memory
            part = tl.load(own + column + k, mask=inside, other=0.0)
            key = tl.load(past + W + column + k, mask=there, other=0.0)
            scores = tl.dot(part, tl.trans(key), scores, input_precision=P)
        scores *= scale
        masked = tl.load(past_mask + lane * length + t, mask=t < length, other=float("-inf"))
        scores += masked[None, :]
        if M == 0:
            scores = tl.where(t[None, :] < token[:, None], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        shrink, powers = tl.exp2(highest - higher), tl.exp2(scores - higher[:, None])
        total, highest = total * shrink + tl.sum(powers, 1), higher
        value = tl.load(past + 2 * W + d, mask=there, other=0.0)
        mixed = tl.dot(powers, value, mixed * shrink[:, None], input_precision=P)
    at = (tl.program_id(1) // H * count + r)[:, None]
    tl.store(out + at * W + head * D + d, mixed / total[:, None], mask=inside)


@triton.jit(do_not_specialize=["rows", "count", "tokens", "first", "every"])
def output_mlp_kernel(x, mixed, output, output_bias, gain, shift, up, up_bias, down, down_bias,
        last_gain, last_shift, out, rows, count, tokens, first, every, eps, W: constexpr,
        R: constexpr, C: constexpr, LAST: constexpr, P: constexpr):  # fmt: skip
    """between = x + output(mixed); out = between + down(relu(up(perceptron_norm(between)))), by C
    columns of the MLP's hidden layer; out is normed if the block is the LAST."""
    n, w, c = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, W), tl.arange(0, C)
    row, inside = n[:, None], (n < rows)[:, None]
    source = ((n // count) * tokens + first + (n % count) * every)[:, None]
    between = tl.load(x + source * W + w, mask=inside, other=0.0) + tl.load(output_bias + w)
    for column in range(0, W, C):
        part = tl.load(mixed + row * W + column + c, mask=inside, other=0.0)
        square = tl.load(output + w[:, None] * W + column + c)
        between = tl.dot(part, tl.trans(square), between, input_precision=P)
    # the MLP's input lies in `out` meanwhile: registers are scarcer than cached memory
    tl.store(out + row * W + w, layer_norm(between, gain, shift, eps, W), mask=inside)
    tl.debug_barrier()
    between += tl.load(down_bias + w)
    for column in range(0, 4 * W, C):
        active = tl.zeros((R, C), dtype=tl.float32) + tl.load(up_bias + column + c)
        for k in range(0, W, C):
            part = tl.load(out + row * W + k + c, mask=inside, other=0.0)
            weight = tl.load(up + (column + c)[:, None] * W + k + c)
            active = tl.dot(part, tl.trans(weight), active, input_precision=P)
        weight = tl.load(down + w[:, None] * 4 * W + column + c)
        between = tl.dot(tl.maximum(active, 0.0), tl.trans(weight), between, input_precision=P)
    tl.debug_barrier()
    if LAST:
        between = layer_norm(between, last_gain, last_shift, eps, W)
    tl.store(out + row * W + w, between, mask=inside)


@triton.jit
def _log_density(value, mean, log_deviation):
    standard = (value - mean) * tl.exp(-log_deviation)
    return -0.5 * standard * standard - log_deviation - 0.9189385332046727  # log(2 pi) / 2


@triton.jit(do_not_specialize=["rows", "candidates"])
def draw_returns_kernel(means, log_deviations, noise, centre, scale, out, density, rows, candidates,
        R: constexpr):  # fmt: skip
    """Returns-to-go [rows], `noise` deviations from their lane's mean, raw; their log-density."""
    n = tl.program_id(0) * R + tl.arange(0, R)
    inside = n < rows
    mean = tl.load(means + n // candidates, mask=inside, other=0.0)
    log_deviation = tl.load(log_deviations + n // candidates, mask=inside, other=0.0)
    drawn = mean + tl.exp(log_deviation) * tl.load(noise + n, mask=inside, other=0.0)
    tl.store(out + n, drawn * tl.load(scale) + tl.load(centre), mask=inside)
    tl.store(density + n, _log_density(drawn, mean, log_deviation), mask=inside)


@triton.jit(do_not_specialize=["rows", "size"])
def draw_actions_kernel(outputs, weight, bias, noise, centre, scale, low, high, out, density, rows,
        size, least, most, W: constexpr, R: constexpr):  # fmt: skip
    """A Gaussian head, and actions [rows, size] `noise` deviations from its mean, raw and within
    bounds; `density` [rows] is the logarithm of theirs before they were brought within bounds."""
    n, w = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, W)
    inside = n < rows
    output = tl.load(outputs + n[:, None] * W + w, mask=inside[:, None], other=0.0)
    total = tl.zeros((R,), dtype=tl.float32)
    for column in range(size):
        mean = tl.sum(output * tl.load(weight + column * W + w), 1) + tl.load(bias + column)
        spread = tl.sum(output * tl.load(weight + (size + column) * W + w), 1)
        spread += tl.load(bias + size + column)
        spread = tl.minimum(tl.maximum(spread, least), most)
        chosen = mean + tl.exp(spread) * tl.load(noise + n * size + column, mask=inside, other=0.0)
        raw = chosen * tl.load(scale + column) + tl.load(centre + column)
        raw = tl.minimum(tl.maximum(raw, tl.load(low + column)), tl.load(high + column))
        tl.store(out + n * size + column, raw, mask=inside)
        total += _log_density(chosen, mean, spread)
    tl.store(density + n, total, mask=inside)


@dataclass(frozen=True)
class QKVCache:
    """As `core.transformer.KVCache`, with queries, keys and values of a layer in one tensor."""

    qkv: tuple[Tensor, ...]  # per layer [L, P, 3 * E]
    mask: Tensor  # [L, P] added to every score: 0 where there is a token, else -inf
    lanes: Tensor  # [l] whose past each lane of branches sees

    def of_lanes(self, lanes: Tensor) -> Self:
        """Copies nothing: branches look up their lane."""
        return replace(self, lanes=self.lanes[lanes])


class DecisionEmbedding(nn.Module):
    """A `TokenEmbedding` as a kernel for each kind."""

    def __init__(self, plain: TokenEmbedding) -> None:
        super().__init__()
        self.layout, self.horizon = plain.layout, plain.horizon
        self.of_kind, self.of_time, self.norm = plain.of_kind, plain.of_time, plain.norm

    def embed(self, values: Mapping[str, Tensor], timestep: Tensor) -> Tensor:
        """As `TokenEmbedding.embed`: {kind: [B, K, _]}, [B, K] -> [B, K * len(values), E]."""
        lanes, steps = timestep.shape
        every, width, rows = len(values), self.norm.weight.numel(), timestep.numel()
        out = self.norm.weight.new_empty(lanes, steps * every, width)
        if not rows:
            return out
        time, time_stride, time_share = _rows_of(timestep[..., None])
        for first, (kind, of_kind) in enumerate(values.items()):
            linear, (value, stride, share) = self.of_kind[kind], _rows_of(of_kind)
            embed_kind_kernel[(triton.cdiv(rows, EMBED["R"]),)](value, stride, share, linear.weight,
                linear.bias, self.of_time.weight, time, time_stride, time_share, self.norm.weight,
                self.norm.bias, out, rows, value.shape[-1], steps, steps * every, first, every,
                self.horizon, self.norm.eps, W=width, **EMBED)  # fmt: skip
        return out


class DecisionTrunk(nn.Module):
    """A `Trunk` as three kernels a block; the last norm is part of the last one."""

    def __init__(self, plain: Trunk) -> None:
        super().__init__()
        self.norm, self.heads = plain.norm, plain.config.heads
        self.blocks: Any = plain.blocks

    def prefill(self, tokens: Tensor, valid: Tensor) -> tuple[Tensor, QKVCache]:
        """As `Trunk.prefill`: [L, P, E], [L, P] -> the last output [L, E] and the cache."""
        mask = torch.zeros(valid.shape, device=valid.device).masked_fill_(~valid, -torch.inf)
        cache = QKVCache((), mask, torch.arange(len(tokens), device=valid.device))
        out, each = self._run(tokens.contiguous(), 0, cache)
        return out[:, 0], replace(cache, qkv=each)

    def branch(self, tokens: Tensor, cache: QKVCache) -> Tensor:
        """As `Trunk.branch`: [L, N, m, E] -> the last outputs [L, N, E]."""
        return self._run(tokens.contiguous().flatten(1, 2), tokens.shape[2], cache)[0]

    def _run(self, x: Tensor, own: int, cache: QKVCache) -> tuple[Tensor, tuple[Tensor, ...]]:
        """All blocks, for branches of `own` tokens or, if that is 0, for the past itself:
        [L, tokens, E] -> outputs of the last token of each, and qkv of each layer."""
        (lanes, tokens, width), each = x.shape, list[Tensor]()
        for index, block in enumerate(self.blocks):
            output, norm, mlp = block.attention.output, block.perceptron_norm, block.perceptron
            is_last = index == len(self.blocks) - 1
            linear, first_norm = block.attention.query_key_value, block.attention_norm
            each.append(qkv := x.new_empty(lanes, tokens, 3 * width))
            launch = _launch(QKV, QKV_FEW, lanes * tokens, width)
            qkv_kernel[(triton.cdiv(lanes * tokens, launch["R"]),)](x, linear.weight, linear.bias,
                first_norm.weight, first_norm.bias, qkv, lanes * tokens, first_norm.eps,
                **launch)  # fmt: skip
            past = cache.qkv[index] if own else qkv
            every = (own or tokens) if is_last else 1
            count, first = tokens // every, every - 1  # of queries
            rows = lanes * count
            mixed, out = (x.new_empty(lanes, count, width) for _ in range(2))
            launch = _launch(ATTENTION, ATTENTION_FEW, rows, width)
            past_attention_kernel[(triton.cdiv(count, launch["R"]), lanes * self.heads)](qkv, past,
                cache.mask, cache.lanes, mixed, count, tokens, first, every, past.shape[1],
                (width // self.heads) ** -0.5, H=self.heads, M=own, **launch)  # fmt: skip
            launch = _launch(MLP, MLP_FEW, rows, width)
            output_mlp_kernel[(triton.cdiv(rows, launch["R"]),)](x, mixed, output.weight,
                output.bias, norm.weight, norm.bias, mlp[0].weight, mlp[0].bias, mlp[2].weight,
                mlp[2].bias, self.norm.weight, self.norm.bias, out, rows, count, tokens, first,
                every, norm.eps, LAST=is_last, **launch)  # fmt: skip
            x = out
        return x, tuple(each)


def draw_returns(expected: Gaussian, noise: Tensor,
                 normalizer: Normalizer) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `SaFormer.sample_returns`, of a Gaussian over [L, 1]: [L, N, 1], log-density [L, N]."""
    noise = noise.contiguous()
    drawn, density = torch.empty_like(noise), torch.empty_like(noise)
    draw_returns_kernel[(triton.cdiv(noise.numel(), DRAW_RETURNS["R"]),)](
        expected.mean.contiguous(), expected.log_deviation.contiguous(), noise,
        normalizer.centre("return_to_go"), normalizer.scale("return_to_go"), drawn, density,
        noise.numel(), noise.shape[1], **DRAW_RETURNS)  # fmt: skip
    return drawn[..., None], density


def draw_actions(outputs: Tensor, head: GaussianHead, noise: Tensor, normalizer: Normalizer,
                 bounds: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `SaFormer.sample_actions`, of outputs [L, N, E]: [L, N, A], log-density [L, N]."""
    noise = noise.contiguous()
    action, density = torch.empty_like(noise), noise.new_empty(noise.shape[:-1])
    draw_actions_kernel[(triton.cdiv(density.numel(), DRAW_ACTIONS["R"]),)](
        outputs, head.linear.weight, head.linear.bias, noise, normalizer.centre("action"),
        normalizer.scale("action"), *bounds, action, density, density.numel(), noise.shape[-1],
        *LOG_DEVIATION_RANGE, W=outputs.shape[-1], **DRAW_ACTIONS)  # fmt: skip
    return action, density


def _launch(many: Tiles, few: Tiles, rows: int, width: int) -> dict[str, Any]:
    """Tiles of a kernel; narrow models have fewer columns than a tile."""
    tiles = few if rows <= FEW_ROWS else many
    columns = {name: min(tiles[name], width) for name in ("C", "K") if name in tiles}
    return {**tiles, **columns, "W": width, "P": PRECISION}


def _rows_of(values: Tensor) -> tuple[Tensor, int, int]:
    """[B, K, size], the distance of rows, and how many in a row are one: K if it was repeated."""
    first, second, last = values.stride()
    if second == 0 and last == 1:
        return values, first, values.shape[1]
    values = values.contiguous()
    return values, values.shape[-1], 1
