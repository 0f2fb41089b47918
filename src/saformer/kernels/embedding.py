"""Embeddings of M models as one kernel each way: an operator that `torch` can differentiate.

Values of all J kinds of tokens lie side by side in `values` [M * steps, F], those of kind j from
column firsts[j] to firsts[j + 1]; so do the columns of `weight` [M, W, F]. All is float32; tensor
cores multiply it, forwards in three passes (to 1e-7), backwards, where sums are rounded as other
gradients of weights are, in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, library

from saformer.kernels.launch import dropout_constants, float32_precision, num_splits
from saformer.kernels.parts import dropped, norm_backward, standardised

EMBED = {"R": 64, "num_warps": 4, "num_stages": 2}
EMBED_BACKWARD = {"R": 32, "num_warps": 4, "num_stages": 1}
"""R steps stay on the chip at a time; measured on an H200."""


@triton.jit
def embed_kernel(values, timestep, weight, bias, time, gain, shift, firsts, out, saved, rates,
                 salts, threshold, keep_scale, steps, horizon, columns, eps, J: tl.constexpr,
                 W: tl.constexpr, R: tl.constexpr, D: tl.constexpr, P: tl.constexpr,
                 DROP: tl.constexpr):  # fmt: skip
    """out [M * steps, J, W] = drop(norm(linear(value) + time)), a kind at a time.

    For the way back, `saved` gets the standardised rows and `rates` one over their deviations.
    """
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
                          weight_sums, norm_sums, salts, threshold, keep_scale, steps, horizon,
                          columns, J: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
                          D: tl.constexpr, P: tl.constexpr, DROP: tl.constexpr):  # fmt: skip
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
def fused_embedding(
    values: Tensor, timestep: Tensor, weight: Tensor, bias: Tensor, time: Tensor, gain: Tensor,
    shift: Tensor, firsts: Tensor, salts: Tensor, sizes: Sequence[int], rate: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Values [M * B, K, F] of J kinds of these sizes, timesteps [M * B, K] -> [M * B, K * J, W].

    `weight` [M, W, F], `bias` [M, J, W], `time` [M, horizon, W], `gain` and `shift` [M, W];
    `firsts` [J + 1] are the kinds' first columns, `salts` [M] for dropout. Also activations.
    """
    windows, length, columns = values.shape
    models, width, kinds = len(weight), weight.shape[1], len(sizes)
    steps, (out, saved, rates) = windows * length // models, _activations(values, width, kinds)
    embed_kernel[(triton.cdiv(steps, EMBED["R"]), kinds, models)](
        values, timestep, weight, bias, time, gain, shift, firsts, out, saved, rates, salts,
        *dropout_constants(rate), steps, time.shape[1], columns, eps, **_constants(sizes, width),
        P=float32_precision("tf32x3"), DROP=rate > 0, **EMBED,
    )  # fmt: skip
    return out, saved, rates


@fused_embedding.register_fake
def _(values, timestep, weight, bias, *rest):
    return _activations(values, weight.shape[1], bias.shape[1])


@library.custom_op("saformer::embed_backward", mutates_args=())
def fused_embedding_backward(
    gradient: Tensor, values: Tensor, timestep: Tensor, time: Tensor, gain: Tensor, firsts: Tensor,
    salts: Tensor, saved: Tensor, rates: Tensor, sizes: Sequence[int], rate: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Of time; to be summed over their second axes: of weights with biases in the end, of norms."""
    (models, width), (windows, length, columns), kinds = gain.shape, values.shape, len(sizes)
    steps = windows * length // models
    to_time, (weight_sums, norm_sums) = torch.zeros_like(time), _sums(values, gain, sizes)
    embed_backward_kernel[(weight_sums.shape[1], kinds, models)](
        gradient, values, timestep, gain, firsts, saved, rates, to_time, weight_sums, norm_sums,
        salts, *dropout_constants(rate), steps, time.shape[1], columns, **_constants(sizes, width),
        P=float32_precision("tf32"), DROP=rate > 0, **EMBED_BACKWARD,
    )  # fmt: skip
    return to_time, weight_sums, norm_sums


@fused_embedding_backward.register_fake
def _(gradient, values, timestep, time, gain, firsts, salts, saved, rates, sizes, rate):
    return torch.empty_like(time), *_sums(values, gain, sizes)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # only the first output has a gradient
    values, timestep, _, _, time, gain, _, firsts, salts, ctx.sizes, ctx.rate, _ = inputs
    ctx.save_for_backward(values, timestep, time, gain, firsts, salts, *output[1:])


def _backward(ctx: Any, gradient: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
    to_time, weight_sums, norm_sums = fused_embedding_backward(
        gradient.contiguous(), *ctx.saved_tensors, ctx.sizes, ctx.rate
    )
    of_kinds = weight_sums.sum(1)  # [M, J, W, D]
    own = zip(of_kinds.unbind(1), ctx.sizes, strict=True)
    to_weight, to_bias = torch.cat([part[..., :size] for part, size in own], -1), of_kinds[..., -1]
    to_gain, to_shift = norm_sums.sum((1, 2)).unbind(1)
    return None, None, to_weight, to_bias, to_time, to_gain, to_shift, None, None, None, None, None


fused_embedding.register_autograd(_backward, setup_context=_save_for_backward)


def _activations(values: Tensor, width: int, kinds: int) -> tuple[Tensor, ...]:
    """For tokens, for their standardised rows, and for one over their deviations."""
    windows, length, _ = values.shape
    tokens = (values.new_empty(windows, length * kinds, width) for _ in range(2))
    return *tokens, values.new_empty(windows, length * kinds)


def _sums(values: Tensor, gain: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """For gradients of weights and norms, one for each split of the steps."""
    (models, width), kinds = gain.shape, len(sizes)
    steps = values.shape[0] * values.shape[1] // models
    splits = num_splits(steps, EMBED_BACKWARD["R"], kinds * models)
    shapes = ((width, _constants(sizes, width)["D"]), (2, width))
    return tuple(values.new_empty(models, splits, kinds, *shape) for shape in shapes)


def _constants(sizes: Sequence[int], width: int) -> dict[str, int]:
    return {"J": len(sizes), "W": width, "D": max(16, triton.next_power_of_2(max(sizes) + 1))}
