"""A transformer block of M models as a handful of kernels: an operator that `torch` can differentiate and compile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor, library
from triton.tools.tensor_descriptor import TensorDescriptor

from saformer.training.fused import attention_kernels, block_kernels, parts

NORM_LINEAR = {"R": 64, "C": 64, "num_warps": 8, "num_stages": 3}
FINISH = {"R": 64, "C": 64, "num_warps": 4, "num_stages": 3}
FINISH_BACKWARD = {"R": 64, "C": 32, "num_warps": 4, "num_stages": 4}
NORM_LINEAR_BACKWARD = {"R": 64, "C": 64, "num_warps": 4, "num_stages": 3}
WEIGHT_GRADIENT = {"R": 64, "num_warps": 4, "num_stages": 3}
"""R rows and C columns stay on the chip at a time; measured on an H200."""
PROGRAMS, SQUARES = 430, 12
"""How many programs keep a large GPU busy while gradients of weights are summed, and how many a split of rows has."""


@library.custom_op("saformer::block", mutates_args=())
def block(
    x: Tensor,
    weights: Tensor,
    rounded: Tensor,
    vectors: Tensor,
    salts: Tensor,
    tokens: int,
    places: Sequence[int],
    heads: int,
    rate: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x [M * B, K * tokens, W] -> answers [M * B, K * len(places), W], and what the way back needs.

    `weights` [M, 12 * W * W] and `vectors` [M, 13 * W] are in the order of `block_kernels`; `rounded` are the weights
    in bfloat16, which is what is computed with. `salts` [3, M] are for dropout after attention, after the perceptron
    and within attention. Of the tokens of each step, those at `places` are answered at; all are seen.
    """
    shape = _Shape(x, rounded, tokens, places)
    out, between, every_input, qkv = shape.activations()
    normed, inputs = shape.apart(every_input, 1)
    drop, drops = dropping(rate), {"DROP": rate > 0}
    block_kernels.norm_linear[shape.tiles(shape.rows, NORM_LINEAR)](
        x, rounded, vectors, normed, qkv, shape.rows, eps, **shape.launch(NORM_LINEAR)
    )
    attention_kernels.attend[(len(x) * heads,)](
        qkv, inputs, salts[2], *drop, **shape.attention(heads), **shape.places, **drops, num_warps=4
    )
    block_kernels.finish[shape.tiles(shape.answers, FINISH)](
        x, inputs, *shape.matrices(rounded, FINISH), vectors, between, out, salts, *drop, shape.rows, shape.answers,
        eps, **shape.launch(FINISH), **shape.places, **drops,
    )  # fmt: skip
    return out, between, every_input, qkv


@block.register_fake
def _(x: Tensor, weights: Tensor, rounded: Tensor, vectors: Tensor, salts: Tensor, tokens: int, places: Any, *rest: Any
      ) -> tuple[Tensor, ...]:  # fmt: skip
    return _Shape(x, rounded, tokens, places).activations()


@library.custom_op("saformer::block_backward", mutates_args=())
def block_backward(
    gradient: Tensor,
    x: Tensor,
    between: Tensor,
    every_input: Tensor,
    qkv: Tensor,
    rounded: Tensor,
    vectors: Tensor,
    salts: Tensor,
    tokens: int,
    places: Sequence[int],
    heads: int,
    rate: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients, all float32: of x; and still to be summed over their second axes, of weights, biases, norms (2)."""
    shape = _Shape(x, rounded, tokens, places)
    drop, drops = dropping(rate), {"DROP": rate > 0}
    every_gradient, to_mixed = (
        shape.new(3 * shape.rows + 6 * shape.answers),
        shape.new(shape.answers),
    )
    to_qkv, gradients = shape.apart(every_gradient, 3)
    _, inputs = shape.apart(every_input, 1)
    to_between, to_x = torch.empty_like(gradient), torch.empty_like(x)
    weight_sums, vector_sums, attention_sums, perceptron_sums = shape.sums()
    block_kernels.finish_backward[shape.tiles(shape.answers, FINISH_BACKWARD)](
        gradient, between, inputs, rounded, vectors, gradients, to_between, to_mixed, perceptron_sums, salts, *drop,
        shape.answers, eps, **shape.launch(FINISH_BACKWARD), **shape.places, **drops,
    )  # fmt: skip
    attention_kernels.attend_backward[(len(x) * heads,)](
        qkv, to_mixed, to_qkv, salts[2], *drop, **shape.attention(heads), **shape.places, **drops,
        num_warps=8 if shape.length > 64 and len(places) == tokens else 4,
    )  # fmt: skip
    block_kernels.norm_linear_backward[shape.tiles(shape.rows, NORM_LINEAR_BACKWARD)](
        x, to_qkv, to_between, rounded, vectors, to_x, attention_sums, shape.rows, shape.answers, eps,
        **shape.launch(NORM_LINEAR_BACKWARD), **shape.places,
    )  # fmt: skip
    block_kernels.weight_gradient[(SQUARES, weight_sums.shape[1], shape.models)](
        every_gradient, every_input, weight_sums, vector_sums, shape.rows, shape.answers, W=shape.width,
        **WEIGHT_GRADIENT,
    )  # fmt: skip
    return to_x, weight_sums, vector_sums, attention_sums, perceptron_sums


@block_backward.register_fake
def _(gradient: Tensor, x: Tensor, between: Tensor, every_input: Tensor, qkv: Tensor, rounded: Tensor, vectors: Tensor,
      salts: Tensor, tokens: int, places: Any, *rest: Any) -> tuple[Tensor, ...]:  # fmt: skip
    return torch.empty_like(x), *_Shape(x, rounded, tokens, places).sums()


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # only the first output has a gradient
    x, _, rounded, vectors, salts, *ctx.rest = inputs
    ctx.save_for_backward(x, *output[1:], rounded, vectors, salts)


def _backward(ctx: Any, gradient: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
    to_x, *sums = block_backward(gradient.contiguous(), *ctx.saved_tensors, *ctx.rest)
    to_weights, *to_vectors = (part.sum(1) for part in sums)  # here, where the compiler sees it
    return to_x, to_weights, None, torch.cat(to_vectors, 1), None, None, None, None, None, None


block.register_autograd(_backward, setup_context=_keep_for_backward)


def draw_salts(seeds: Tensor, updates: Tensor, salts: Tensor) -> None:
    """Salts [places, M] for the next update, in place, of int64 seeds [M]."""
    places, models = salts.shape
    parts.draw_salts[(places,)](seeds, updates, salts, models, M=triton.next_power_of_2(models))
    updates.add_(1)


def precision(name: str) -> str:
    """How float32 is multiplied; the interpreter has no tensor cores."""
    return "ieee" if triton.knobs.runtime.interpret else name


def dropping(rate: float) -> tuple[int, float]:
    """What kernels need to know of a dropout rate: hashes below the first are dropped, the rest counts for more."""
    return int(rate * 2**32), 1 / (1 - rate)


class _Shape:
    """Sizes of a block, and room for its activations."""

    def __init__(self, x: Tensor, rounded: Tensor, tokens: int, places: Sequence[int]) -> None:
        self._x, self._dtype, self.models = x, rounded.dtype, len(rounded)
        self.windows, self.length, self.width = len(x) // self.models, *x.shape[1:]
        self._asked = self.length // tokens * len(places)
        self.rows, self.answers = self.windows * self.length, self.windows * self._asked
        digits = sum(place << (4 * number) for number, place in enumerate(places))
        self.places = {"TOKENS": tokens, "ANSWERS": len(places), "PLACES": digits}

    def new(self, rows: int) -> Tensor:
        """Room for rows of one width of each model."""
        return self._x.new_empty(self.models * rows, self.width, dtype=self._dtype)

    def apart(self, both: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """What every token has, so many widths; and behind it what every answer has."""
        return both[: self.models * self.rows * size], both[self.models * self.rows * size :]

    def activations(self) -> tuple[Tensor, ...]:
        """The output, the residual between attention and perceptron, the inputs of all maps, qkv."""
        residuals = (self._x.new_empty(len(self._x), self._asked, self.width) for _ in range(2))
        return *residuals, self.new(self.rows + 6 * self.answers), self.new(3 * self.rows)

    def matrices(self, rounded: Tensor, launch: dict[str, int]) -> tuple[TensorDescriptor, ...]:
        """Of the maps after attention: output, and C rows of up, C columns of down at a time."""
        width, columns = self.width, min(launch["C"], self.width)
        narrow, wide = rounded.view(-1, width), rounded.view(-1, 4 * width)
        blocks = ((narrow, [width, width]), (narrow, [columns, width]), (wide, [width, columns]))
        return tuple(TensorDescriptor.from_tensor(matrix, block) for matrix, block in blocks)

    def sums(self) -> tuple[Tensor, ...]:
        """Room for gradients of weights, biases and norms, one for each of several parts of the rows."""
        splits = triton.cdiv(PROGRAMS, SQUARES * self.models)
        splits = max(1, min(splits, triton.cdiv(self.rows, 8 * WEIGHT_GRADIENT["R"])))
        tiles = (
            self.tiles(self.rows, NORM_LINEAR_BACKWARD)[0],
            self.tiles(self.answers, FINISH_BACKWARD)[0],
        )
        sizes = ((splits, 12 * self.width), (splits, 9), *((number, 2) for number in tiles))
        return tuple(
            self._x.new_empty(self.models, number, size * self.width) for number, size in sizes
        )

    def tiles(self, rows: int, launch: dict[str, int]) -> tuple[int, int]:
        """Programs for all rows of all models."""
        return triton.cdiv(rows, launch["R"]), self.models

    def launch(self, launch: dict[str, int]) -> dict[str, int]:
        """Narrow models have fewer columns than a tile."""
        return {**launch, "C": min(launch["C"], self.width), "W": self.width}

    def attention(self, heads: int) -> dict[str, Any]:
        """A program has a whole window: T tokens that are seen, Q answers."""
        seen, asked = (
            max(16, triton.next_power_of_2(number)) for number in (self.length, self._asked)
        )
        return {
            "scale": (self.width // heads) ** -0.5,
            "length": self.length,
            "windows": self.windows,
            "asked": self._asked,
            "H": heads,
            "W": self.width,
            "T": seen,
            "Q": asked,
            "num_stages": 1,
        }
