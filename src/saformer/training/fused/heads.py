"""The last norm of M trunks and the maps that read it, as one kernel each way that `torch` can differentiate."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor, library

from saformer.training.fused import head_kernels as kernels
from saformer.training.fused.block import precision

ANSWER = {"R": 64, "num_warps": 4, "num_stages": 1}
ANSWER_BACKWARD = {"R": 32, "num_warps": 4, "num_stages": 1}
"""R steps stay on the chip at a time; measured on an H200."""
PROGRAMS = 720
"""How many programs keep a large GPU busy while gradients are summed."""
FEWEST_OUTPUTS = 16
"""What a tensor core multiplies at least; maps of fewer outputs are padded."""


@library.custom_op("saformer::answer", mutates_args=())
def answer(
    x: Tensor, gain: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    """x [M * B, K * A, W], gain and shift [M, W], weight [M, A, N, W], bias [M, A, N] -> [M * B, K * A, N].

    N is a power of two, at least `FEWEST_OUTPUTS`.
    """
    models, answers, outputs, width = weight.shape
    steps, out = x.shape[0] * x.shape[1] // (models * answers), x.new_empty(*x.shape[:2], outputs)
    kernels.answer[(triton.cdiv(steps, ANSWER["R"]), answers, models)](
        x,
        gain,
        shift,
        weight,
        bias,
        out,
        steps,
        eps,
        A=answers,
        W=width,
        N=outputs,
        P=precision("tf32x3"),
        **ANSWER,
    )
    return out


@answer.register_fake
def _(x: Tensor, gain: Tensor, shift: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(*x.shape[:2], weight.shape[2])


@library.custom_op("saformer::answer_backward", mutates_args=())
def answer_backward(
    gradient: Tensor, x: Tensor, gain: Tensor, shift: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x; and still to be summed over their second axes, of weights and of norms."""
    models, answers, outputs, width = weight.shape
    steps, to_x = x.shape[0] * x.shape[1] // (models * answers), torch.empty_like(x)
    weight_sums, norm_sums = _sums(x, weight)
    kernels.answer_backward[(weight_sums.shape[1], answers, models)](
        gradient, x, gain, shift, weight, to_x, weight_sums, norm_sums, steps, eps, A=answers, W=width, N=outputs,
        P=precision("tf32x3"), Q=precision("tf32"), **ANSWER_BACKWARD,
    )  # fmt: skip
    return to_x, weight_sums, norm_sums


@answer_backward.register_fake
def _(
    gradient: Tensor, x: Tensor, gain: Tensor, shift: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, ...]:
    return torch.empty_like(x), *_sums(x, weight)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, gain, shift, weight, _, ctx.eps = inputs
    ctx.save_for_backward(x, gain, shift, weight)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    gradient = gradient.contiguous()
    models, answers, outputs, _ = ctx.saved_tensors[3].shape
    to_x, weight_sums, norm_sums = answer_backward(gradient, *ctx.saved_tensors, ctx.eps)
    to_gain, to_shift = norm_sums.sum((1, 2)).unbind(1)
    to_bias = gradient.reshape(models, -1, answers, outputs).sum(1)
    return to_x, to_gain, to_shift, weight_sums.sum(1), to_bias, None


answer.register_autograd(_backward, setup_context=_keep_for_backward)


def _sums(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Room for gradients of weights and norms, one for each of several parts of the steps."""
    models, answers, outputs, width = weight.shape
    most = triton.cdiv(x.shape[0] * x.shape[1] // (models * answers), 2 * ANSWER_BACKWARD["R"])
    splits = max(1, min(triton.cdiv(PROGRAMS, answers * models), most))
    return tuple(x.new_empty(models, splits, answers, size, width) for size in (outputs, 2))
