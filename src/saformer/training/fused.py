"""A transformer block of M models as a handful of kernels: an operator that `torch` can differentiate and compile."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor, library

from saformer.training import kernels
from saformer.training.dropout import threshold_of

NORM_LINEAR = {"R": 64, "C": 64, "num_warps": 8, "num_stages": 3}
ATTEND = {"num_warps": 4, "num_stages": 1}
FINISH = {"R": 64, "C": 64, "num_warps": 4, "num_stages": 3}
FINISH_BACKWARD = {"R": 64, "C": 32, "num_warps": 4, "num_stages": 4}
ATTEND_BACKWARD = {"num_warps": 8, "num_stages": 1}
NORM_LINEAR_BACKWARD = {"R": 64, "C": 64, "num_warps": 4, "num_stages": 3}
WEIGHT_GRADIENT = {"R": 128, "num_warps": 4, "num_stages": 3}
"""R rows and C columns stay on the chip at a time; measured on an H200."""
PROGRAMS = 660
"""How many programs keep a large GPU busy while gradients of weights are summed."""


@library.custom_op("saformer::block", mutates_args=())
def block(
    x: Tensor, weights: Tensor, rounded: Tensor, vectors: Tensor, salts: Tensor, heads: int, rate: float, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x [M * B, T, W] -> the block's output, and what the way back needs.

    `weights` [M, 12 * W * W] and `vectors` [M, 13 * W] are in the order of `kernels`; `rounded` are the weights in
    bfloat16, which is what is computed with. `salts` [3, M] are for dropout after attention, after the perceptron and
    within attention.
    """
    shape = _Shape(x, rounded)
    out, between, inputs, qkv = shape.activations()
    rows, drop = shape.rows, _dropping(rate)
    kernels.norm_linear[shape.tiles(NORM_LINEAR)](
        x, rounded, vectors, inputs, qkv, rows, eps, **shape.launch(NORM_LINEAR)
    )
    kernels.attend[(len(x) * heads,)](qkv, inputs, salts[2], *drop, **shape.attention(heads), **ATTEND, DROP=rate > 0)
    kernels.finish[shape.tiles(FINISH)](
        x, inputs, rounded, vectors, between, out, salts, *drop, rows, eps, **shape.launch(FINISH), DROP=rate > 0
    )
    return out, between, inputs, qkv


@block.register_fake
def _(x: Tensor, weights: Tensor, rounded: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _Shape(x, rounded).activations()


@library.custom_op("saformer::block_backward", mutates_args=())
def block_backward(
    gradient: Tensor,
    x: Tensor,
    between: Tensor,
    inputs: Tensor,
    qkv: Tensor,
    rounded: Tensor,
    vectors: Tensor,
    salts: Tensor,
    heads: int,
    rate: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, of the weights [M, 12 * W * W] and of the vectors [M, 13 * W], all float32."""
    shape = _Shape(x, rounded)
    width, rows, models, drop = shape.width, shape.rows, shape.models, _dropping(rate)
    gradients, to_mixed = shape.new(9), shape.new(1)
    to_between, to_x = torch.empty_like(x), torch.empty_like(x)
    norm_sums = x.new_empty(models, triton.cdiv(rows, FINISH_BACKWARD["R"]), 4 * width)
    kernels.finish_backward[shape.tiles(FINISH_BACKWARD)](
        gradient, between, inputs, rounded, vectors, gradients, to_between, to_mixed, norm_sums, salts, *drop, rows,
        eps, **shape.launch(FINISH_BACKWARD), DROP=rate > 0,
    )  # fmt: skip
    kernels.attend_backward[(len(x) * heads,)](
        qkv, to_mixed, gradients, salts[2], *drop, **shape.attention(heads), **ATTEND_BACKWARD, DROP=rate > 0
    )
    kernels.norm_linear_backward[shape.tiles(NORM_LINEAR_BACKWARD)](
        x, gradients, to_between, rounded, vectors, to_x, norm_sums, rows, eps, **shape.launch(NORM_LINEAR_BACKWARD)
    )
    splits = max(1, min(triton.cdiv(PROGRAMS, 12 * models), triton.cdiv(rows, 4 * WEIGHT_GRADIENT["R"])))
    weight_sums = x.new_empty(models, splits, 12 * width * width)
    vector_sums = x.new_empty(models, splits, 9 * width)
    kernels.weight_gradient[(12, splits, models)](
        gradients, inputs, weight_sums, vector_sums, rows, W=width, **WEIGHT_GRADIENT
    )
    return to_x, weight_sums.sum(1), torch.cat([vector_sums.sum(1), norm_sums.sum(1)], 1)


@block_backward.register_fake
def _(gradient: Tensor, x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    rounded, vectors = rest[3:5]
    return torch.empty_like(x), torch.empty_like(rounded, dtype=x.dtype), torch.empty_like(vectors)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # only the first output has a gradient
    x, _, rounded, vectors, salts, *ctx.rest = inputs
    ctx.save_for_backward(x, *output[1:], rounded, vectors, salts)


def _backward(ctx: Any, gradient: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
    to_x, to_weights, to_vectors = block_backward(gradient.contiguous(), *ctx.saved_tensors, *ctx.rest)
    return to_x, to_weights, None, to_vectors, None, None, None, None


block.register_autograd(_backward, setup_context=_keep_for_backward)


@library.custom_op("saformer::dropout", mutates_args=())
def dropout(values: Tensor, salts: Tensor, rate: float) -> Tensor:
    """Drop elements of [M * B, ...] by a salt per model; what is kept counts for more."""
    out, elements = torch.empty_like(values), values.numel() // len(salts)
    grid = (triton.cdiv(elements, 1024), len(salts))
    kernels.drop[grid](values, out, salts, *_dropping(rate), elements, N=1024)
    return out


@dropout.register_fake
def _(values: Tensor, salts: Tensor, rate: float) -> Tensor:
    return torch.empty_like(values)


def _keep_salts(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, salts, ctx.rate = inputs
    ctx.save_for_backward(salts)


def _drop_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return dropout(gradient.contiguous(), *ctx.saved_tensors, ctx.rate), None, None


dropout.register_autograd(_drop_backward, setup_context=_keep_salts)


def draw_salts(seeds: Tensor, updates: Tensor, salts: Tensor) -> None:
    """Salts [places, M] for the next update, in place, of int64 seeds [M]."""
    places, models = salts.shape
    kernels.salt[(places,)](seeds, updates, salts, models, M=triton.next_power_of_2(models))
    updates.add_(1)


class _Shape:
    """Sizes of a block, and room for its activations."""

    def __init__(self, x: Tensor, rounded: Tensor) -> None:
        self._x, self._dtype, self.models = x, rounded.dtype, len(rounded)
        self.windows, self.length, self.width = len(x) // self.models, *x.shape[1:]
        self.rows = self.windows * self.length

    def new(self, size: int) -> Tensor:
        return self._x.new_empty(*self._x.shape[:2], size * self.width, dtype=self._dtype)

    def activations(self) -> tuple[Tensor, ...]:
        """The output, the residual between attention and perceptron, the inputs of all maps, qkv."""
        return torch.empty_like(self._x), torch.empty_like(self._x), self.new(7), self.new(3)

    def tiles(self, launch: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(self.rows, launch["R"]), self.models

    def launch(self, launch: dict[str, int]) -> dict[str, int]:
        """Narrow models have fewer columns than a tile."""
        return {**launch, "C": min(launch["C"], self.width), "W": self.width}

    def attention(self, heads: int) -> dict[str, Any]:
        return {
            "scale": (self.width // heads) ** -0.5,
            "length": self.length,
            "windows": self.windows,
            "H": heads,
            "W": self.width,
            "T": max(16, triton.next_power_of_2(self.length)),
        }


def _dropping(rate: float) -> tuple[int, float]:
    return threshold_of(rate), 1 / (1 - rate)
