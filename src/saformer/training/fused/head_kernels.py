"""Triton kernels of a trunk's last norm and the linear maps that read it, forwards and backwards, for M models.

Answers of a step stand behind each other, A of them, each read by a map of its own with N outputs. All is float32;
tensor cores multiply it, in three passes but for the gradients of weights.
"""

from __future__ import annotations

import triton
import triton.language as tl

from saformer.training.fused.parts import norm_backward, standardised


@triton.jit
def answer(x, gain, shift, weight, bias, out, steps, eps, A: tl.constexpr, W: tl.constexpr, N: tl.constexpr,
           R: tl.constexpr, P: tl.constexpr):  # fmt: skip
    """x [M * steps, A, W], weight [M, A, N, W] -> out [M * steps, A, N] = linear(norm(x)), an answer at a time."""
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
def answer_backward(gradient, x, gain, shift, weight, to_x, weight_sums, vector_sums, steps, eps, A: tl.constexpr,
                    W: tl.constexpr, N: tl.constexpr, R: tl.constexpr, P: tl.constexpr, Q: tl.constexpr):  # fmt: skip
    """The gradient of x; summed over a split of the steps, of weight [M, splits, A, N, W] and of gain and shift
    [M, splits, A, 2, W]. What was normed is computed again."""
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
        total = tl.dot(
            tl.trans(incoming), standard * own_gain + own_shift, total, input_precision=Q
        )
        tl.store(
            to_x + row * W + w, norm_backward(to_normed, own_gain, standard, rate, W), mask=inside
        )
    place = (m * tl.num_programs(0) + split) * A + a
    tl.store(weight_sums + (place * N + o)[:, None] * W + w, total)
    tl.store(vector_sums + place * 2 * W + w, tl.sum(to_gain, 0))
    tl.store(vector_sums + place * 2 * W + W + w, tl.sum(to_shift, 0))
