"""A transformer block of M models: an operator that `torch` can differentiate and compile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor, library
from triton.tools.tensor_descriptor import TensorDescriptor

from saformer.kernels import attention_kernels, block_kernels
from saformer.kernels.launch import dropout_constants

NORM_QKV = {"R": 64, "C": 64, "num_warps": 8, "num_stages": 3}
MLP = {"R": 64, "C": 64, "num_warps": 4, "num_stages": 3}
MLP_BACKWARD = {"R": 64, "C": 32, "num_warps": 4, "num_stages": 4}
NORM_QKV_BACKWARD = {"R": 64, "C": 64, "num_warps": 4, "num_stages": 3}
WEIGHT_GRADIENT = {"R": 64, "num_warps": 4, "num_stages": 3}
"""R rows and C columns stay on the chip at a time; measured on an H200."""
PROGRAMS = 430  # they keep a large GPU busy while gradients of weights are summed
SQUARES = 12  # programs of each split of the rows


@library.custom_op("saformer::block", mutates_args=())
def fused_block(
    x: Tensor, weights: Tensor, rounded: Tensor, vectors: Tensor, salts: Tensor, tokens: int,
    positions: Sequence[int], heads: int, rate: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """x [M * B, K * tokens, W] -> outputs [M * B, K * len(positions), W], and activations.

    `weights` [M, 12 * W * W] and `vectors` [M, 13 * W] are in the order of `block_kernels`;
    `rounded` are the weights in bfloat16, with which it computes. `salts` [3, M] are for dropout
    after attention, after the MLP and within attention. Of the tokens of each step, those at
    `positions` are queries; all are keys.
    """
    shape = _Shape(x, rounded, tokens, positions)
    out, between, all_inputs, qkv = shape.activations()
    normed, inputs = shape.apart(all_inputs, 1)
    drop, drops = dropout_constants(rate), {"DROP": rate > 0}
    block_kernels.norm_qkv_kernel[shape.tiles(shape.rows, NORM_QKV)](
        x, rounded, vectors, normed, qkv, shape.rows, eps, **shape.launch(NORM_QKV)
    )
    attention_kernels.attention_kernel[(len(x) * heads,)](
        qkv, inputs, salts[2], *drop, **shape.attention(heads), **shape.positions, **drops,
        num_warps=4,
    )  # fmt: skip
    block_kernels.mlp_kernel[shape.tiles(shape.queries, MLP)](
        x, inputs, *shape.matrices(rounded, MLP), vectors, between, out, salts, *drop, shape.rows,
        shape.queries, eps, **shape.launch(MLP), **shape.positions, **drops,
    )  # fmt: skip
    return out, between, all_inputs, qkv


@fused_block.register_fake
def _(x, weights, rounded, vectors, salts, tokens, positions, *rest):
    return _Shape(x, rounded, tokens, positions).activations()


@library.custom_op("saformer::block_backward", mutates_args=())
def fused_block_backward(
    gradient: Tensor, x: Tensor, between: Tensor, all_inputs: Tensor, qkv: Tensor, rounded: Tensor,
    vectors: Tensor, salts: Tensor, tokens: int, positions: Sequence[int], heads: int, rate: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x and, to be summed over their second axes, of weights, biases and norms (2)."""
    shape = _Shape(x, rounded, tokens, positions)
    drop, drops = dropout_constants(rate), {"DROP": rate > 0}
    all_gradients = shape.new(3 * shape.rows + 6 * shape.queries)
    to_mixed = shape.new(shape.queries)
    to_qkv, gradients = shape.apart(all_gradients, 3)
    _, inputs = shape.apart(all_inputs, 1)
    to_between, to_x = torch.empty_like(gradient), torch.empty_like(x)
    weight_sums, vector_sums, attention_sums, mlp_sums = shape.sums()
    block_kernels.mlp_backward_kernel[shape.tiles(shape.queries, MLP_BACKWARD)](
        gradient, between, inputs, rounded, vectors, gradients, to_between, to_mixed, mlp_sums,
        salts, *drop, shape.queries, eps, **shape.launch(MLP_BACKWARD), **shape.positions, **drops,
    )  # fmt: skip
    attention_kernels.attention_backward_kernel[(len(x) * heads,)](
        qkv, to_mixed, to_qkv, salts[2], *drop, **shape.attention(heads), **shape.positions,
        **drops, num_warps=8 if shape.length > 64 and len(positions) == tokens else 4,
    )  # fmt: skip
    block_kernels.norm_qkv_backward_kernel[shape.tiles(shape.rows, NORM_QKV_BACKWARD)](
        x, to_qkv, to_between, rounded, vectors, to_x, attention_sums, shape.rows, shape.queries,
        eps, **shape.launch(NORM_QKV_BACKWARD), **shape.positions,
    )  # fmt: skip
    block_kernels.weight_gradient_kernel[(SQUARES, weight_sums.shape[1], shape.models)](
        all_gradients, all_inputs, weight_sums, vector_sums, shape.rows, shape.queries,
        W=shape.width, **WEIGHT_GRADIENT,
    )  # fmt: skip
    return to_x, weight_sums, vector_sums, attention_sums, mlp_sums


@fused_block_backward.register_fake
def _(gradient, x, between, all_inputs, qkv, rounded, vectors, salts, tokens, positions, *rest):
    return torch.empty_like(x), *_Shape(x, rounded, tokens, positions).sums()


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # only the first output has a gradient
    x, _, rounded, vectors, salts, *ctx.rest = inputs
    ctx.save_for_backward(x, *output[1:], rounded, vectors, salts)


def _backward(ctx: Any, gradient: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
    to_x, *sums = fused_block_backward(gradient.contiguous(), *ctx.saved_tensors, *ctx.rest)
    to_weights, *to_vectors = (part.sum(1) for part in sums)  # here, where the compiler sees it
    return to_x, to_weights, None, torch.cat(to_vectors, 1), None, None, None, None, None, None


fused_block.register_autograd(_backward, setup_context=_save_for_backward)


class _Shape:
    """Sizes of a block, and empty tensors for its activations."""

    def __init__(self, x: Tensor, rounded: Tensor, tokens: int, positions: Sequence[int]) -> None:
        self._x, self._dtype, self.models = x, rounded.dtype, len(rounded)
        self.windows, self.length, self.width = len(x) // self.models, *x.shape[1:]
        self._num_queries = self.length // tokens * len(positions)
        self.rows, self.queries = self.windows * self.length, self.windows * self._num_queries
        digits = sum(position << (4 * index) for index, position in enumerate(positions))
        self.positions = {"TOKENS": tokens, "QUERIES": len(positions), "POSITIONS": digits}

    def new(self, rows: int) -> Tensor:
        """For rows of one width of each model."""
        return self._x.new_empty(self.models * rows, self.width, dtype=self._dtype)

    def apart(self, both: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """The part of all tokens, of `size` widths each, and behind it the part of all queries."""
        return both[: self.models * self.rows * size], both[self.models * self.rows * size :]

    def activations(self) -> tuple[Tensor, ...]:
        """The output, the residual between attention and MLP, the inputs of all maps, qkv."""
        shape = len(self._x), self._num_queries, self.width
        residuals = (self._x.new_empty(shape) for _ in range(2))
        return *residuals, self.new(self.rows + 6 * self.queries), self.new(3 * self.rows)

    def matrices(self, rounded: Tensor, launch: dict[str, int]) -> tuple[TensorDescriptor, ...]:
        """Of the maps after attention: output, and C rows of up, C columns of down at a time."""
        width, columns = self.width, min(launch["C"], self.width)
        narrow, wide = rounded.view(-1, width), rounded.view(-1, 4 * width)
        blocks = ((narrow, [width, width]), (narrow, [columns, width]), (wide, [width, columns]))
        return tuple(TensorDescriptor.from_tensor(matrix, block) for matrix, block in blocks)

    def sums(self) -> tuple[Tensor, ...]:
        """For gradients of weights, biases and norms (2), one for each split of the rows."""
        splits = triton.cdiv(PROGRAMS, SQUARES * self.models)
        splits = max(1, min(splits, triton.cdiv(self.rows, 8 * WEIGHT_GRADIENT["R"])))
        tiles = self.tiles(self.rows, NORM_QKV_BACKWARD), self.tiles(self.queries, MLP_BACKWARD)
        sizes = (splits, 12 * self.width), (splits, 9), (tiles[0][0], 2), (tiles[1][0], 2)
        return tuple(self._x.new_empty(self.models, n, size * self.width) for n, size in sizes)

    def tiles(self, rows: int, launch: dict[str, int]) -> tuple[int, int]:
        """Programs for all rows of all models."""
        return triton.cdiv(rows, launch["R"]), self.models

    def launch(self, launch: dict[str, int]) -> dict[str, int]:
        """Narrow models have fewer columns than a tile."""
        return {**launch, "C": min(launch["C"], self.width), "W": self.width}

    def attention(self, heads: int) -> dict[str, Any]:
        """A program has a whole window: T keys, Q queries."""
        t, q = (max(16, triton.next_power_of_2(n)) for n in (self.length, self._num_queries))
        sizes = {"length": self.length, "windows": self.windows, "num_queries": self._num_queries}
        constants = {"H": heads, "W": self.width, "T": t, "Q": q, "num_stages": 1}
        return {"scale": (self.width // heads) ** -0.5, **sizes, **constants}
