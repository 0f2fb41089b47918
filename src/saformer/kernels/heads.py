"""The last norm of M trunks and the heads that read it: an operator that `torch` can differentiate.

The outputs of a step lie behind each other, A of them, each read by a head of its own with N
outputs. All is float32; tensor cores multiply it, in three passes but for the gradients of weights.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, library

from saformer.kernels.launch import float32_precision, num_splits
from saformer.kernels.parts import layer_norm, norm_backward, standardised

HEADS = {"R": 64, "num_warps": 4, "num_stages": 1}
HEADS_BACKWARD = {"R": 32, "num_warps": 4, "num_stages": 1}
"""R steps stay on the chip at a time; measured on an H200."""
FEWEST_OUTPUTS = 16
"""What a tensor core multiplies at least; heads of fewer outputs are padded."""


@triton.jit
def heads_kernel(x, gain, shift, weight, bias, out, steps, eps, A: tl.constexpr, W: tl.constexpr,
                 N: tl.constexpr, R: tl.constexpr, P: tl.constexpr):  # fmt: skip
    """x [M * steps, A, W], weight [M, A, N, W] -> out [M * steps, A, N] = linear(norm(x))."""
    n, a, m = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1), tl.program_id(2)
    w, o = tl.arange(0, W), tl.arange(0, N)
    inside, row = (n < steps)[:, None], ((m * steps + n) * A + a)[:, None]
    inputs = tl.load(x + row * W + w, mask=inside, other=0.0)
    normed = layer_norm(inputs, gain + m * W, shift + m * W, eps, W)
    own = (m * A + a) * N + o
    matrix = tl.load(weight + own[:, None] * W + w)
    y = tl.dot(normed, tl.trans(matrix), input_precision=P) + tl.load(bias + own)
    tl.store(out + row * N + o, y, mask=inside)


@triton.jit
def heads_backward_kernel(gradient, x, gain, shift, weight, to_x, weight_sums, vector_sums, steps,
                          eps, A: tl.constexpr, W: tl.constexpr, N: tl.constexpr, R: tl.constexpr,
                          P: tl.constexpr, Q: tl.constexpr):  # fmt: skip
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
def fused_heads(
    x: Tensor, gain: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    """x [M * B, K * A, W], gain and shift [M, W], weight [M, A, N, W], bias [M, A, N] ->
    [M * B, K * A, N]; N is a power of two, at least `FEWEST_OUTPUTS`."""
    models, heads, outputs, width = weight.shape
    steps, out = x.shape[0] * x.shape[1] // (models * heads), x.new_empty(*x.shape[:2], outputs)
    heads_kernel[(triton.cdiv(steps, HEADS["R"]), heads, models)](
        x, gain, shift, weight, bias, out, steps, eps, A=heads, W=width, N=outputs,
        P=float32_precision("tf32x3"), **HEADS,
    )  # fmt: skip
    return out


@fused_heads.register_fake
def _(x, gain, shift, weight, *rest):
    return x.new_empty(*x.shape[:2], weight.shape[2])


@library.custom_op("saformer::heads_backward", mutates_args=())
def fused_heads_backward(
    gradient: Tensor, x: Tensor, gain: Tensor, shift: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x; to be summed over their second axes: of weights and of norms."""
    models, heads, outputs, width = weight.shape
    steps, to_x = x.shape[0] * x.shape[1] // (models * heads), torch.empty_like(x)
    weight_sums, norm_sums = _sums(x, weight)
    heads_backward_kernel[(weight_sums.shape[1], heads, models)](
        gradient, x, gain, shift, weight, to_x, weight_sums, norm_sums, steps, eps, A=heads,
        W=width, N=outputs, P=float32_precision("tf32x3"), Q=float32_precision("tf32"),
        **HEADS_BACKWARD,
    )  # fmt: skip
    return to_x, weight_sums, norm_sums


@fused_heads_backward.register_fake
def _(gradient, x, gain, shift, weight, eps):
    return torch.empty_like(x), *_sums(x, weight)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, gain, shift, weight, _, ctx.eps = inputs
    ctx.save_for_backward(x, gain, shift, weight)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    gradient = gradient.contiguous()
    models, heads, outputs, _ = ctx.saved_tensors[3].shape
    to_x, weight_sums, norm_sums = fused_heads_backward(gradient, *ctx.saved_tensors, ctx.eps)
    to_gain, to_shift = norm_sums.sum((1, 2)).unbind(1)
    to_bias = gradient.reshape(models, -1, heads, outputs).sum(1)
    return to_x, to_gain, to_shift, weight_sums.sum(1), to_bias, None


fused_heads.register_autograd(_backward, setup_context=_save_for_backward)


def _sums(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """For gradients of weights and norms, one for each split of the steps."""
    models, heads, outputs, width = weight.shape
    steps = x.shape[0] * x.shape[1] // (models * heads)
    splits = num_splits(steps, HEADS_BACKWARD["R"], heads * models)
    return tuple(x.new_empty(models, splits, heads, size, width) for size in (outputs, 2))
