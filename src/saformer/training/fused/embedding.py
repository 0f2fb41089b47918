"""Embeddings of M models as one kernel each way: an operator that `torch` can differentiate and compile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor, library

from saformer.training.fused import embedding_kernels as kernels
from saformer.training.fused.block import dropping, precision

EMBED = {"R": 64, "num_warps": 4, "num_stages": 2}
EMBED_BACKWARD = {"R": 32, "num_warps": 4, "num_stages": 1}
"""R steps stay on the chip at a time; measured on an H200."""
PROGRAMS = 720
"""How many programs keep a large GPU busy while gradients are summed."""


@library.custom_op("saformer::embed", mutates_args=())
def embed(
    values: Tensor,
    timestep: Tensor,
    weight: Tensor,
    bias: Tensor,
    time: Tensor,
    gain: Tensor,
    shift: Tensor,
    firsts: Tensor,
    salts: Tensor,
    sizes: Sequence[int],
    rate: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Values [M * B, K, F] of J kinds of these sizes, timesteps [M * B, K] -> tokens [M * B, K * J, W].

    `weight` [M, W, F], `bias` [M, J, W], `time` [M, horizon, W], `gain` and `shift` [M, W]; `firsts` [J + 1] are the
    kinds' first columns, `salts` [M] for dropout. Also what the way back needs.
    """
    windows, length, columns = values.shape
    models, width, kinds = len(weight), weight.shape[1], len(sizes)
    steps, (out, kept, rates) = windows * length // models, _activations(values, width, kinds)
    kernels.embed[(triton.cdiv(steps, EMBED["R"]), kinds, models)](
        values, timestep, weight, bias, time, gain, shift, firsts, out, kept, rates, salts, *dropping(rate), steps,
        time.shape[1], columns, eps, **_constants(sizes, width), P=precision("tf32x3"), DROP=rate > 0, **EMBED,
    )  # fmt: skip
    return out, kept, rates


@embed.register_fake
def _(
    values: Tensor, timestep: Tensor, weight: Tensor, bias: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    return _activations(values, weight.shape[1], bias.shape[1])


@library.custom_op("saformer::embed_backward", mutates_args=())
def embed_backward(
    gradient: Tensor,
    values: Tensor,
    timestep: Tensor,
    time: Tensor,
    gain: Tensor,
    firsts: Tensor,
    salts: Tensor,
    kept: Tensor,
    rates: Tensor,
    sizes: Sequence[int],
    rate: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of time; and still to be summed over their second axes, of weights and biases [M, splits, J, W, D], of norms."""
    (models, width), (windows, length, columns), kinds = gain.shape, values.shape, len(sizes)
    steps = windows * length // models
    to_time, (weight_sums, norm_sums) = torch.zeros_like(time), _sums(values, gain, sizes)
    kernels.embed_backward[(weight_sums.shape[1], kinds, models)](
        gradient, values, timestep, gain, firsts, kept, rates, to_time, weight_sums, norm_sums, salts, *dropping(rate),
        steps, time.shape[1], columns, **_constants(sizes, width), P=precision("tf32"), DROP=rate > 0,
        **EMBED_BACKWARD,
    )  # fmt: skip
    return to_time, weight_sums, norm_sums


@embed_backward.register_fake
def _(gradient: Tensor, values: Tensor, timestep: Tensor, time: Tensor, gain: Tensor, firsts: Tensor, salts: Tensor,
      kept: Tensor, rates: Tensor, sizes: Any, rate: float) -> tuple[Tensor, ...]:  # fmt: skip
    return torch.empty_like(time), *_sums(values, gain, sizes)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # only the first output has a gradient
    values, timestep, _, _, time, gain, _, firsts, salts, ctx.sizes, ctx.rate, _ = inputs
    ctx.save_for_backward(values, timestep, time, gain, firsts, salts, *output[1:])


def _backward(ctx: Any, gradient: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
    to_time, weight_sums, norm_sums = embed_backward(
        gradient.contiguous(), *ctx.saved_tensors, ctx.sizes, ctx.rate
    )
    of_kinds = weight_sums.sum(1)  # [M, J, W, D]
    own = zip(of_kinds.unbind(1), ctx.sizes, strict=True)
    to_weight, to_bias = torch.cat([part[..., :size] for part, size in own], -1), of_kinds[..., -1]
    to_gain, to_shift = norm_sums.sum((1, 2)).unbind(1)
    return None, None, to_weight, to_bias, to_time, to_gain, to_shift, None, None, None, None, None


embed.register_autograd(_backward, setup_context=_keep_for_backward)


def _activations(values: Tensor, width: int, kinds: int) -> tuple[Tensor, ...]:
    """Room for tokens, for what the norm made of them, and for one over their deviations."""
    windows, length, _ = values.shape
    tokens = (values.new_empty(windows, length * kinds, width) for _ in range(2))
    return *tokens, values.new_empty(windows, length * kinds)


def _sums(values: Tensor, gain: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Room for gradients of weights and norms, one for each of several parts of the steps."""
    (models, width), kinds = gain.shape, len(sizes)
    most = triton.cdiv(values.shape[0] * values.shape[1] // models, 2 * EMBED_BACKWARD["R"])
    splits = max(1, min(triton.cdiv(PROGRAMS, kinds * models), most))
    shapes = ((width, _constants(sizes, width)["D"]), (2, width))
    return tuple(values.new_empty(models, splits, kinds, *shape) for shape in shapes)


def _constants(sizes: Sequence[int], width: int) -> dict[str, int]:
    return {"J": len(sizes), "W": width, "D": max(16, triton.next_power_of_2(max(sizes) + 1))}
