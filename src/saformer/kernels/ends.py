"""Both ends of M transformers: their embeddings, and the last norm with the heads that read it.

Each is an operator that `torch` can differentiate. All is float32; tensor cores multiply it in
three passes (to 1e-7), but gradients of weights, whose sums are rounded anyway, in one. The values
of all J kinds of tokens lie side by side in `values` [M * steps, F], those of kind j from column
firsts[j] to firsts[j + 1]; so do the columns of `weight` [M, W, F]. The outputs of a step lie
behind each other, A of them, each read by a head of its own with N outputs.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, library
from triton.language import constexpr

from saformer.kernels.parts import dropout_constants, dropped, norm_backward, standardised

EMBED = {"R": 64, "num_warps": 4, "num_stages": 2}
HEADS = {"R": 64, "num_warps": 4, "num_stages": 1}
BACKWARD = {"R": 32, "num_warps": 4, "num_stages": 1}
"""R steps stay on the chip at a time; measured on an H200."""
FEWEST_OUTPUTS = 16  # a tensor core multiplies no fewer; heads of fewer outputs are padded
PROGRAMS = 720  # they keep a large GPU busy while gradients are summed


@triton.jit
def embed_kernel(values, timestep, weight, bias, time, gain, shift, firsts, out, saved, rates,
        salts, threshold, keep_scale, steps, horizon, columns, eps, J: constexpr, W: constexpr,
        R: constexpr, D: constexpr, P: constexpr, DROP: constexpr):  # fmt: skip
    """out [M * steps, J, W] = drop(norm(linear(value) + time)), a kind at a time.
    For the way back, `saved` gets the standardised rows and `rates` one over their deviations."""
    n, j, m = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1), tl.program_id(2)
    w, column = tl.arange(0, W), tl.load(firsts + j) + tl.arange(0, D)
    inside, there = n < steps, column < tl.load(firsts + j + 1)
    step = m * steps + n
    v = tl.load(values + step[:, None] * columns + column, mask=inside[:, None] & there, other=0.0)
    e = tl.load(weight + (m * W + w)[:, None] * columns + column, mask=there, other=0.0)
    at = m * horizon + tl.load(timestep + step, mask=inside, other=0)
    lifted = tl.dot(v, tl.trans(e), input_precision=P) + tl.load(bias + (m * J + j) * W + w)
    standard, rate = standardised(lifted + tl.load(time + at[:, None] * W + w), eps, W)
    row = step * J + j
    tl.store(saved + row[:, None] * W + w, standard, mask=inside[:, None])
    tl.store(rates + row, rate, mask=inside)
    normed = standard * tl.load(gain + m * W + w) + tl.load(shift + m * W + w)
    element = (n * J + j)[:, None] * W + w
    normed = dropped(normed, tl.load(salts + m), element, threshold, keep_scale, DROP)
    tl.store(out + row[:, None] * W + w, normed, mask=inside[:, None])


@triton.jit
def embed_backward_kernel(gradient, values, timestep, gain, firsts, saved, rates, to_time,
        weight_sums, norm_sums, salts, threshold, keep_scale, steps, horizon, columns, J: constexpr,
        W: constexpr, R: constexpr, D: constexpr, P: constexpr, DROP: constexpr):  # fmt: skip
    """Sums over a split of the steps: weight_sums [M, splits, J, W, D], norm_sums
    [M, splits, J, 2, W] (gain, shift); those of time are added up by step. The last column of D
    holds 1, so that the last sum is the bias's."""
    split, j, m = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    w, d = tl.arange(0, W), tl.arange(0, D)
    column = tl.load(firsts + j) + d
    there = column < tl.load(firsts + j + 1)
    own_gain, salt = tl.load(gain + m * W + w), tl.load(salts + m)
    total = tl.zeros((W, D), dtype=tl.float32)
    # rows are summed at the end: within the loop, warps would wait for each other
    to_gain, to_shift = tl.zeros((R, W), dtype=tl.float32), tl.zeros((R, W), dtype=tl.float32)
    share = tl.cdiv(steps, tl.num_programs(0) * R) * R
    for begin in range(split * share, tl.minimum((split + 1) * share, steps), R):
        n = begin + tl.arange(0, R)
        inside, step = n < steps, m * steps + n
        row = step * J + j
        standard = tl.load(saved + row[:, None] * W + w, mask=inside[:, None], other=0.0)
        incoming = tl.load(gradient + row[:, None] * W + w, mask=inside[:, None], other=0.0)
        element = (n * J + j)[:, None] * W + w
        incoming = dropped(incoming, salt, element, threshold, keep_scale, DROP)
        to_gain += incoming * standard
        to_shift += incoming
        rate = tl.load(rates + row, mask=inside, other=0.0)
        back = norm_backward(incoming, own_gain, standard, rate, W)
        value_at = values + step[:, None] * columns + column
        v = tl.load(value_at, mask=inside[:, None] & there, other=0.0)
        v = tl.where(d[None, :] == D - 1, 1.0, v)
        total = tl.dot(tl.trans(back), v, total, input_precision=P)
        at = m * horizon + tl.load(timestep + step, mask=inside, other=0)
        tl.atomic_add(to_time + at[:, None] * W + w, back, mask=inside[:, None], sem="relaxed")
    slot = (m * tl.num_programs(0) + split) * J + j
    tl.store(weight_sums + slot * W * D + w[:, None] * D + d, total)
    tl.store(norm_sums + slot * 2 * W + w, tl.sum(to_gain, 0))
    tl.store(norm_sums + slot * 2 * W + W + w, tl.sum(to_shift, 0))


@library.custom_op("saformer::embed", mutates_args=())
def fused_embedding(values: Tensor, timestep: Tensor, weight: Tensor, bias: Tensor, time: Tensor,
        gain: Tensor, shift: Tensor, firsts: Tensor, salts: Tensor, sizes: Sequence[int],
        rate: float, eps: float) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Values [M * B, K, F] of J kinds of these sizes, timesteps [M * B, K] -> [M * B, K * J, W].
    `weight` [M, W, F], `bias` [M, J, W], `time` [M, horizon, W], `gain` and `shift` [M, W];
    `firsts` [J + 1] are the kinds' first columns, `salts` [M] for dropout. Also activations."""
    steps, constants = timestep.numel() // len(gain), _embedding_constants(gain, sizes, rate)
    out, saved, rates = _activations(values, bias)
    embed_kernel[(triton.cdiv(steps, EMBED["R"]), len(sizes), len(gain))](values, timestep, weight,
        bias, time, gain, shift, firsts, out, saved, rates, salts, *dropout_constants(rate), steps,
        time.shape[1], values.shape[2], eps, **constants, P=_precision("tf32x3"),
        **EMBED)  # fmt: skip
    return out, saved, rates


@fused_embedding.register_fake
def _(values, timestep, weight, bias, *rest):
    return _activations(values, bias)


@library.custom_op("saformer::embed_backward", mutates_args=())
def fused_embedding_backward(gradient: Tensor, values: Tensor, timestep: Tensor, time: Tensor,
        gain: Tensor, firsts: Tensor, salts: Tensor, saved: Tensor, rates: Tensor,
        sizes: Sequence[int], rate: float) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Of time; to be summed over their second axes: of weights with biases in the end, of norms."""
    steps, constants = timestep.numel() // len(gain), _embedding_constants(gain, sizes, rate)
    to_time, (weight_sums, norm_sums) = torch.zeros_like(time), _embedding_sums(values, gain, sizes)
    embed_backward_kernel[(weight_sums.shape[1], len(sizes), len(gain))](
        gradient, values, timestep, gain, firsts, saved, rates, to_time, weight_sums, norm_sums,
        salts, *dropout_constants(rate), steps, time.shape[1], values.shape[2], **constants,
        P=_precision("tf32"), **BACKWARD)  # fmt: skip
    return to_time, weight_sums, norm_sums


@fused_embedding_backward.register_fake
def _(gradient, values, timestep, time, gain, firsts, salts, saved, rates, sizes, rate):
    return torch.empty_like(time), *_embedding_sums(values, gain, sizes)


def _save_embedding(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # only the first output has a gradient
    values, timestep, _, _, time, gain, _, firsts, salts, *ctx.rest, _ = inputs
    ctx.save_for_backward(values, timestep, time, gain, firsts, salts, *output[1:])


def _embedding_backward(ctx: Any, gradient: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
    to_time, *sums = fused_embedding_backward(gradient.contiguous(), *ctx.saved_tensors, *ctx.rest)
    of_kinds, norms = sums[0].sum(1), sums[1].sum((1, 2))  # [M, J, W, D], [M, 2, W]
    own = zip(of_kinds.unbind(1), ctx.rest[0], strict=True)
    to_weight, to_bias = torch.cat([part[..., :size] for part, size in own], -1), of_kinds[..., -1]
    return None, None, to_weight, to_bias, to_time, *norms.unbind(1), *[None] * 5


fused_embedding.register_autograd(_embedding_backward, setup_context=_save_embedding)


def _activations(values: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    """For tokens, for their standardised rows, and for one over their deviations."""
    (windows, length, _), (_, kinds, width) = values.shape, bias.shape
    rates = values.new_empty(windows, length * kinds)
    return *(values.new_empty(*rates.shape, width) for _ in range(2)), rates


def _embedding_sums(values: Tensor, gain: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    shape = gain.shape[1], _embedding_constants(gain, sizes)["D"]
    return _sums(values, gain, values.shape[0] * values.shape[1], len(sizes), shape)


def _embedding_constants(gain: Tensor, sizes: Sequence[int], rate: float = 0.0) -> dict[str, int]:
    columns = max(16, triton.next_power_of_2(max(sizes) + 1))
    return {"J": len(sizes), "W": gain.shape[1], "D": columns, "DROP": rate > 0}


@triton.jit
def heads_kernel(x, gain, shift, weight, bias, out, steps, eps, A: constexpr, W: constexpr,
        N: constexpr, R: constexpr, P: constexpr):  # fmt: skip
    """x [M * steps, A, W], weight [M, A, N, W] -> out [M * steps, A, N] = linear(norm(x))."""
    n, a, m = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1), tl.program_id(2)
    w, o = tl.arange(0, W), tl.arange(0, N)
    inside, row = (n < steps)[:, None], ((m * steps + n) * A + a)[:, None]
    standard, _ = standardised(tl.load(x + row * W + w, mask=inside, other=0.0), eps, W)
    normed = standard * tl.load(gain + m * W + w) + tl.load(shift + m * W + w)
    own = (m * A + a) * N + o
    matrix = tl.load(weight + own[:, None] * W + w)
    y = tl.dot(normed, tl.trans(matrix), input_precision=P) + tl.load(bias + own)
    tl.store(out + row * N + o, y, mask=inside)


@triton.jit
def heads_backward_kernel(gradient, x, gain, shift, weight, to_x, weight_sums, vector_sums, steps,
        eps, A: constexpr, W: constexpr, N: constexpr, R: constexpr, P: constexpr,
        Q: constexpr):  # fmt: skip
    """The gradient of x; summed over a split of the steps, of weight [M, splits, A, N, W] and of
    gain and shift [M, splits, A, 2, W]. The norm is computed again."""
    split, a, m = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    w, o = tl.arange(0, W), tl.arange(0, N)
    own_gain, own_shift = tl.load(gain + m * W + w), tl.load(shift + m * W + w)
    matrix = tl.load(weight + ((m * A + a) * N + o)[:, None] * W + w)
    total = tl.zeros((N, W), dtype=tl.float32)
    # rows are summed at the end: within the loop, warps would wait for each other
    to_gain, to_shift = tl.zeros((R, W), dtype=tl.float32), tl.zeros((R, W), dtype=tl.float32)
    share = tl.cdiv(steps, tl.num_programs(0) * R) * R
    for begin in range(split * share, tl.minimum((split + 1) * share, steps), R):
        n = begin + tl.arange(0, R)
        inside, row = (n < steps)[:, None], ((m * steps + n) * A + a)[:, None]
        incoming = tl.load(gradient + row * N + o, mask=inside, other=0.0)
        standard, rate = standardised(tl.load(x + row * W + w, mask=inside, other=0.0), eps, W)
        to_normed = tl.dot(incoming, matrix, input_precision=P)
        to_gain += to_normed * standard
        to_shift += to_normed
        normed = standard * own_gain + own_shift
        total = tl.dot(tl.trans(incoming), normed, total, input_precision=Q)
        back = norm_backward(to_normed, own_gain, standard, rate, W)
        tl.store(to_x + row * W + w, back, mask=inside)
    slot = (m * tl.num_programs(0) + split) * A + a
    tl.store(weight_sums + (slot * N + o)[:, None] * W + w, total)
    tl.store(vector_sums + slot * 2 * W + w, tl.sum(to_gain, 0))
    tl.store(vector_sums + slot * 2 * W + W + w, tl.sum(to_shift, 0))


@library.custom_op("saformer::heads", mutates_args=())
def fused_heads(x: Tensor, gain: Tensor, shift: Tensor, weight: Tensor, bias: Tensor,
        eps: float) -> Tensor:  # fmt: skip
    """x [M * B, K * A, W], gain and shift [M, W], weight [M, A, N, W], bias [M, A, N] ->
    [M * B, K * A, N]; N is a power of two, at least `FEWEST_OUTPUTS`."""
    models, heads, outputs, width = weight.shape
    steps, out = x.shape[0] * x.shape[1] // (models * heads), x.new_empty(*x.shape[:2], outputs)
    heads_kernel[(triton.cdiv(steps, HEADS["R"]), heads, models)](x, gain, shift, weight, bias, out,
        steps, eps, A=heads, W=width, N=outputs, P=_precision("tf32x3"), **HEADS)  # fmt: skip
    return out


@fused_heads.register_fake
def _(x, gain, shift, weight, *rest):
    return x.new_empty(*x.shape[:2], weight.shape[2])


@library.custom_op("saformer::heads_backward", mutates_args=())
def fused_heads_backward(gradient: Tensor, x: Tensor, gain: Tensor, shift: Tensor, weight: Tensor,
        eps: float) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x; to be summed over their second axes: of weights and of norms."""
    models, heads, outputs, width = weight.shape
    steps, to_x = x.shape[0] * x.shape[1] // (models * heads), torch.empty_like(x)
    weight_sums, norm_sums = _head_sums(x, gain, weight)
    heads_backward_kernel[(weight_sums.shape[1], heads, models)](
        gradient, x, gain, shift, weight, to_x, weight_sums, norm_sums, steps, eps, A=heads,
        W=width, N=outputs, P=_precision("tf32x3"), Q=_precision("tf32"), **BACKWARD)  # fmt: skip
    return to_x, weight_sums, norm_sums


@fused_heads_backward.register_fake
def _(gradient, x, gain, shift, weight, eps):
    return torch.empty_like(x), *_head_sums(x, gain, weight)


def _save_heads(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, _, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _heads_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    gradient, (models, heads, outputs, _) = gradient.contiguous(), ctx.saved_tensors[3].shape
    to_x, weight_sums, norm_sums = fused_heads_backward(gradient, *ctx.saved_tensors, ctx.eps)
    to_bias = gradient.reshape(models, -1, heads, outputs).sum(1)
    return to_x, *norm_sums.sum((1, 2)).unbind(1), weight_sums.sum(1), to_bias, None


fused_heads.register_autograd(_heads_backward, setup_context=_save_heads)


def _head_sums(x: Tensor, gain: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    _, heads, *shape = weight.shape
    return _sums(x, gain, x.shape[0] * x.shape[1] // heads, heads, shape)


def _sums(like: Tensor, gain: Tensor, steps: int, parts: int,
        shape: Sequence[int]) -> tuple[Tensor, ...]:  # fmt: skip
    """For gradients of weights and norms of so many parts, one for each split of a model's steps;
    `steps` are those of all models."""
    models, width = gain.shape
    most = triton.cdiv(steps // models, 2 * BACKWARD["R"])
    splits = max(1, min(triton.cdiv(PROGRAMS, parts * models), most))
    return tuple(like.new_empty(models, splits, parts, *own) for own in (shape, (2, width)))


def _precision(name: str) -> str:
    """How tensor cores multiply float32; the interpreter has none."""
    return "ieee" if triton.knobs.runtime.interpret else name
