"""Kernels that read pasts and branches: what `core` computes for a decision, in float32.

A tile of R rows stays on the chip through a whole kernel. Tensor cores multiply matrices in as many
passes (P, "tf32x3") as float32's digits take; weights are the model's own, read where they lie.

Rows are tokens. Of `tokens` tokens of each lane, `count` are queries: token `first` and each
`every`th after it. Their outputs lie close together.
"""

from __future__ import annotations

import triton
import triton.language as tl

from saformer.kernels.parts import layer_norm


@triton.jit(do_not_specialize=["stride", "share", "time_stride", "time_share", "rows", "size",
                               "steps", "tokens", "first", "every", "horizon"])  # fmt: skip
def embed_kind_kernel(values, stride, share, weight, bias, times, timestep, time_stride, time_share,
                      gain, shift, out, rows, size, steps, tokens, first, every, horizon, eps,
                      W: tl.constexpr, R: tl.constexpr):  # fmt: skip
    """Tokens of one kind: out = norm(linear(values) + time), `steps` of them on each lane.

    `share` rows behind each other have one value [size], `time_share` of them one time.
    """
    n, w = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, W)
    inside = n < rows
    time = tl.load(timestep + n // time_share * time_stride, mask=inside, other=0)
    time = tl.minimum(time, horizon - 1)
    token = tl.load(times + time[:, None] * W + w) + tl.load(bias + w)
    for column in range(size):
        value = tl.load(values + (n // share) * stride + column, mask=inside, other=0.0)
        token += value[:, None] * tl.load(weight + w * size + column)
    row = (n // steps) * tokens + first + (n % steps) * every
    normed = layer_norm(token, gain, shift, eps, W)
    tl.store(out + row[:, None] * W + w, normed, mask=inside[:, None])


@triton.jit(do_not_specialize=["rows"])
def qkv_kernel(x, weight, bias, gain, shift, out, rows, eps, W: tl.constexpr, R: tl.constexpr,
               C: tl.constexpr, K: tl.constexpr, P: tl.constexpr):  # fmt: skip
    """out [rows, 3 * W] = query_key_value(attention_norm(x)), by C columns, of K columns of x."""
    n, w = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, W)
    c, k = tl.arange(0, C), tl.arange(0, K)
    row, inside = n[:, None], (n < rows)[:, None]
    whole = tl.load(x + row * W + w, mask=inside, other=0.0)
    mean = (tl.sum(whole, 1) / W)[:, None]
    rate = 1 / tl.sqrt(tl.sum((whole - mean) * (whole - mean), 1) / W + eps)[:, None]
    for column in range(0, 3 * W, C):
        y = tl.zeros((R, C), dtype=tl.float32) + tl.load(bias + column + c)
        for begin in range(0, W, K):  # loaded again: registers are scarcer than cached memory
            part = tl.load(x + row * W + begin + k, mask=inside, other=0.0)
            part = (part - mean) * rate * tl.load(gain + begin + k) + tl.load(shift + begin + k)
            square = tl.load(weight + (column + c)[:, None] * W + begin + k)
            y = tl.dot(part, tl.trans(square), y, input_precision=P)
        tl.store(out + row * 3 * W + column + c, y, mask=inside)


@triton.jit(do_not_specialize=["count", "tokens", "first", "every", "length"])
def past_attention_kernel(qkv, past_qkv, past_mask, lanes, out, count, tokens, first, every, length,
                          scale, H: tl.constexpr, W: tl.constexpr, M: tl.constexpr, R: tl.constexpr,
                          C: tl.constexpr, P: tl.constexpr):  # fmt: skip
    """Attention of rows `qkv` to themselves and to what lies before them, by C positions.

    M = 0: the rows are the past itself. M = 1 or 2: they are branches of so many tokens after the
    whole past, which has `length` positions and lies at `lanes`. `past_mask` [lanes, length] is
    added to the scores of the past.
    """
    D: tl.constexpr = W // H
    K: tl.constexpr = C if C < D else D
    lane, head = tl.program_id(1) // H, tl.program_id(1) % H
    r, d, k = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, D), tl.arange(0, K)
    token, inside = first + r * every, (r < count)[:, None]
    own = qkv + (lane * tokens + token)[:, None] * 3 * W + head * D
    scale *= 1.4426950408889634  # exp2 is what the hardware has

    # each sees itself, so that no sum is empty, not even that of padding
    query = tl.load(own + d, mask=inside, other=0.0)
    highest = tl.sum(query * tl.load(own + W + d, mask=inside, other=0.0), 1) * scale
    total = tl.full((R,), 1.0, dtype=tl.float32)
    mixed = tl.load(own + 2 * W + d, mask=inside, other=0.0)
    if M == 2:
        is_second = (token % 2 == 1) & (r < count)
        first_key = tl.load(own - 2 * W + d, mask=is_second[:, None], other=0.0)
        score = tl.sum(query * first_key, 1) * scale
        higher = tl.maximum(highest, tl.where(is_second, score, float("-inf")))
        total, power = tl.exp2(highest - higher), tl.where(is_second, tl.exp2(score - higher), 0.0)
        before = tl.load(own - W + d, mask=is_second[:, None], other=0.0)
        mixed = mixed * total[:, None] + power[:, None] * before
        total, highest = total + power, higher

    lane = tl.load(lanes + lane)
    end = length
    if M == 0:
        end = first + (tl.minimum((tl.program_id(0) + 1) * R, count) - 1) * every
    for begin in range(0, end, C):
        t = begin + tl.arange(0, C)
        there = (t < length)[:, None]
        past = past_qkv + (lane * length + t)[:, None] * 3 * W + head * D
        scores = tl.zeros((R, C), dtype=tl.float32)
        for column in range(0, D, K):  # loaded again: registers are scarcer than cached memory
            part = tl.load(own + column + k, mask=inside, other=0.0)
            key = tl.load(past + W + column + k, mask=there, other=0.0)
            scores = tl.dot(part, tl.trans(key), scores, input_precision=P)
        scores *= scale
        masked = tl.load(past_mask + lane * length + t, mask=t < length, other=float("-inf"))
        scores += masked[None, :]
        if M == 0:
            scores = tl.where(t[None, :] < token[:, None], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        shrink, powers = tl.exp2(highest - higher), tl.exp2(scores - higher[:, None])
        total, highest = total * shrink + tl.sum(powers, 1), higher
        value = tl.load(past + 2 * W + d, mask=there, other=0.0)
        mixed = tl.dot(powers, value, mixed * shrink[:, None], input_precision=P)
    at = (tl.program_id(1) // H * count + r)[:, None]
    tl.store(out + at * W + head * D + d, mixed / total[:, None], mask=inside)


@triton.jit(do_not_specialize=["rows", "count", "tokens", "first", "every"])
def output_mlp_kernel(x, mixed, output, output_bias, gain, shift, up, up_bias, down, down_bias,
                      last_gain, last_shift, out, rows, count, tokens, first, every, eps,
                      W: tl.constexpr, R: tl.constexpr, C: tl.constexpr, LAST: tl.constexpr,
                      P: tl.constexpr):  # fmt: skip
    """between = x + output(mixed); out = between + down(relu(up(perceptron_norm(between)))), by C
    columns of the MLP's hidden layer; out is normed if the block is the LAST."""
    n, w, c = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, W), tl.arange(0, C)
    row, inside = n[:, None], (n < rows)[:, None]
    source = ((n // count) * tokens + first + (n % count) * every)[:, None]
    between = tl.load(x + source * W + w, mask=inside, other=0.0) + tl.load(output_bias + w)
    for column in range(0, W, C):
        part = tl.load(mixed + row * W + column + c, mask=inside, other=0.0)
        square = tl.load(output + w[:, None] * W + column + c)
        between = tl.dot(part, tl.trans(square), between, input_precision=P)
    # the MLP's input lies in `out` meanwhile: registers are scarcer than cached memory
    tl.store(out + row * W + w, layer_norm(between, gain, shift, eps, W), mask=inside)
    tl.debug_barrier()
    between += tl.load(down_bias + w)
    for column in range(0, 4 * W, C):
        active = tl.zeros((R, C), dtype=tl.float32) + tl.load(up_bias + column + c)
        for k in range(0, W, C):
            part = tl.load(out + row * W + k + c, mask=inside, other=0.0)
            weight = tl.load(up + (column + c)[:, None] * W + k + c)
            active = tl.dot(part, tl.trans(weight), active, input_precision=P)
        weight = tl.load(down + w[:, None] * 4 * W + column + c)
        between = tl.dot(tl.maximum(active, 0.0), tl.trans(weight), between, input_precision=P)
    tl.debug_barrier()
    if LAST:
        between = layer_norm(between, last_gain, last_shift, eps, W)
    tl.store(out + row * W + w, between, mask=inside)


@triton.jit
def _log_density(value, mean, log_deviation):
    standard = (value - mean) * tl.exp(-log_deviation)
    return -0.5 * standard * standard - log_deviation - 0.9189385332046727  # log(2 pi) / 2


@triton.jit(do_not_specialize=["rows", "candidates"])
def draw_returns_kernel(means, log_deviations, noise, centre, scale, out, density, rows, candidates,
                        R: tl.constexpr):  # fmt: skip
    """Returns-to-go [rows], `noise` deviations from their lane's mean, raw; their log-density."""
    n = tl.program_id(0) * R + tl.arange(0, R)
    inside = n < rows
    mean = tl.load(means + n // candidates, mask=inside, other=0.0)
    log_deviation = tl.load(log_deviations + n // candidates, mask=inside, other=0.0)
    drawn = mean + tl.exp(log_deviation) * tl.load(noise + n, mask=inside, other=0.0)
    tl.store(out + n, drawn * tl.load(scale) + tl.load(centre), mask=inside)
    tl.store(density + n, _log_density(drawn, mean, log_deviation), mask=inside)


@triton.jit(do_not_specialize=["rows", "size"])
def draw_actions_kernel(outputs, weight, bias, noise, centre, scale, low, high, out, density, rows,
                        size, least, most, W: tl.constexpr, R: tl.constexpr):  # fmt: skip
    """A Gaussian head, and actions [rows, size] `noise` deviations from its mean, raw and within
    bounds; `density` [rows] is the logarithm of theirs before they were brought within bounds."""
    n, w = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, W)
    inside = n < rows
    output = tl.load(outputs + n[:, None] * W + w, mask=inside[:, None], other=0.0)
    total = tl.zeros((R,), dtype=tl.float32)
    for column in range(size):
        mean = tl.sum(output * tl.load(weight + column * W + w), 1) + tl.load(bias + column)
        spread = tl.sum(output * tl.load(weight + (size + column) * W + w), 1)
        spread += tl.load(bias + size + column)
        spread = tl.minimum(tl.maximum(spread, least), most)
        chosen = mean + tl.exp(spread) * tl.load(noise + n * size + column, mask=inside, other=0.0)
        raw = chosen * tl.load(scale + column) + tl.load(centre + column)
        raw = tl.minimum(tl.maximum(raw, tl.load(low + column)), tl.load(high + column))
        tl.store(out + n * size + column, raw, mask=inside)
        total += _log_density(chosen, mean, spread)
    tl.store(density + n, total, mask=inside)
