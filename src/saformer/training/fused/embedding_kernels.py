"""Triton kernels that lift tokens of J kinds to the width of a trunk and drop, forwards and backwards, for M models.

Values of all kinds lie side by side in `values` [M * steps, F], those of kind j from column firsts[j] on to
firsts[j + 1]; so do the columns of `weight` [M, W, F]. All is float32; tensor cores multiply it, there in three passes
(to 1e-7), back, where sums are rounded as other gradients of weights are, in one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from saformer.training.fused.parts import dropped, norm_backward, standardised


@triton.jit
def embed(values, timestep, weight, bias, time, gain, shift, firsts, out, kept, rates, salts, threshold, keep_scale,
          steps, horizon, columns, eps, J: tl.constexpr, W: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
          P: tl.constexpr, DROP: tl.constexpr):  # fmt: skip
    """out [M * steps, J, W] = drop(norm(linear(value) + time)), a kind at a time; what the norm made is kept."""
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
    tl.store(kept + row[:, None] * W + w, standard, mask=inside[:, None])
    tl.store(rates + row, rate, mask=inside)
    normed = standard * tl.load(gain + m * W + w) + tl.load(shift + m * W + w)
    element = (n * J + j)[:, None] * W + w
    normed = dropped(normed, tl.load(salts + m), element, threshold, keep_scale, DROP)
    tl.store(out + row[:, None] * W + w, normed, mask=inside[:, None])


@triton.jit
def embed_backward(gradient, values, timestep, gain, firsts, kept, rates, to_time, weight_sums, norm_sums, salts,
                   threshold, keep_scale, steps, horizon, columns, J: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
                   D: tl.constexpr, P: tl.constexpr, DROP: tl.constexpr):  # fmt: skip
    """Sums over a split of the steps: weight_sums [M, splits, J, W, D], norm_sums [M, splits, J, 2, W] (gain, shift);
    those of time are added up by step. In the last column of D stands 1, so that the last sum is the bias's."""
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
        standard = tl.load(kept + row[:, None] * W + w, mask=inside[:, None], other=0.0)
        incoming = tl.load(gradient + row[:, None] * W + w, mask=inside[:, None], other=0.0)
        incoming = dropped(
            incoming, salt, (n * J + j)[:, None] * W + w, threshold, keep_scale, DROP
        )
        to_gain += incoming * standard
        to_shift += incoming
        back = norm_backward(
            incoming, own_gain, standard, tl.load(rates + row, mask=inside, other=0.0), W
        )
        v = tl.load(
            values + step[:, None] * columns + column, mask=inside[:, None] & there, other=0.0
        )
        v = tl.where(d[None, :] == D - 1, 1.0, v)
        total = tl.dot(tl.trans(back), v, total, input_precision=P)
        at = m * horizon + tl.load(timestep + step, mask=inside, other=0)
        tl.atomic_add(to_time + at[:, None] * W + w, back, mask=inside[:, None], sem="relaxed")
    place = (m * tl.num_programs(0) + split) * J + j
    tl.store(weight_sums + place * W * D + w[:, None] * D + d, total)
    tl.store(norm_sums + place * 2 * W + w, tl.sum(to_gain, 0))
    tl.store(norm_sums + place * 2 * W + W + w, tl.sum(to_shift, 0))
