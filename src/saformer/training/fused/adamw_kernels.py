"""Kernels that clip and step the parameters of M models wherever they lie: tensors are known by
their addresses.

`tiles` [T, 3] int64 cuts a model's parameters into pieces that lie in one tensor each: the tensor's
number, the piece's first element within the model's row, and the length of such a row. `addresses`
[tensors, 4] int64 are where gradients, weights, averages and averages of squares begin. A program
has one tile of one model.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def place_of(tiles, B: tl.constexpr):
    """The tensor's number, the elements of this program's tile, and which of them there are."""
    tile, model = tl.program_id(0), tl.program_id(1)
    first, length = tl.load(tiles + 3 * tile + 1), tl.load(tiles + 3 * tile + 2)
    within = first + tl.arange(0, B)
    return tl.load(tiles + 3 * tile), model * length + within, within < length


@triton.jit
def tensor_at(addresses, tensor, column: tl.constexpr):
    """Where a tensor begins."""
    return tl.load(addresses + 4 * tensor + column).to(tl.pointer_type(tl.float32))


@triton.jit
def rest_of_power(x):
    """1 - e^x for x below 0, with all digits even where that is nearly 0."""
    series = -x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6 * (1 + x / 7))))))
    return tl.where(x > -0.5, series, 1 - tl.exp(x))


@triton.jit
def norms_of_tiles(tiles, addresses, norms, counts, B: tl.constexpr):
    """norms [M, T] of the gradients; and the steps made so far, counts[1], become those before the
    next, counts[0]."""
    tensor, at, there = place_of(tiles, B)
    gradient = tl.load(tensor_at(addresses, tensor, 0) + at, mask=there, other=0.0)
    here = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(norms + here, tl.sqrt(tl.sum(gradient * gradient)))
    if here == 0:
        tl.store(counts, tl.load(counts + 1))


@triton.jit
def step(
    tiles,
    addresses,
    norms,
    rate,
    counts,
    bad,
    bound,
    decay,
    LOG_FIRST: tl.constexpr,
    LOG_SECOND: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    EPS: tl.constexpr,
    B: tl.constexpr,
):
    """Weights and averages after one step of AdamW by gradients clipped to `bound`; nothing changes
    where `bad` is set.

    `norms` [M] are the gradients' before clipping; LOG_FIRST and LOG_SECOND are the logarithms of
    AdamW's rates of decay, FIRST and SECOND. All programs read counts[0], one writes counts[1].
    """
    if tl.load(bad) == 0:
        tensor, at, there = place_of(tiles, B)
        weights, averages = (
            tensor_at(addresses, tensor, 1) + at,
            tensor_at(addresses, tensor, 2) + at,
        )
        squares = tensor_at(addresses, tensor, 3) + at
        gradient = tl.load(tensor_at(addresses, tensor, 0) + at, mask=there, other=0.0)
        gradient *= tl.minimum(bound / (tl.load(norms + tl.program_id(1)) + 1e-6), 1.0)
        average = FIRST * tl.load(averages, mask=there, other=0.0) + (1 - FIRST) * gradient
        square = (
            SECOND * tl.load(squares, mask=there, other=0.0) + (1 - SECOND) * gradient * gradient
        )
        times, speed = tl.load(counts) + 1, tl.load(rate)
        size, deviation = (
            speed / rest_of_power(times * LOG_FIRST),
            tl.sqrt(square / rest_of_power(times * LOG_SECOND)),
        )
        weight = tl.load(weights, mask=there, other=0.0) * (1 - speed * decay)
        weight -= size * average / (deviation + EPS)
        tl.store(weights, weight, mask=there)
        tl.store(averages, average, mask=there)
        tl.store(squares, square, mask=there)
        if tl.program_id(0) + tl.program_id(1) == 0:
            tl.store(counts + 1, times)
