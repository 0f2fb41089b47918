"""Triton kernels of a transformer block, forwards and backwards, for M models side by side.

A block of `core.transformer` reads and writes its activations about twenty times. Here a tile of rows stays on the
chip from the attention's output to the next block's input, and only what the way back needs is kept. Residuals, norms
and sums are float32; what enters a matrix product is bfloat16. Gradients of weights are summed over splits of the
rows, and those sums over the splits by the caller, always in the same order.

Rows of all models lie behind each other: row n of model m stands at m * rows + n. `weights` [M, 12 * W * W] holds the
matrices of a block and `vectors` [M, 13 * W] its biases and norms, in the order of `WEIGHTS` and `VECTORS`. What enters
the four maps of a block lies side by side in `inputs` [rows, 7 * W], the gradients of what leaves them in `gradients`
[rows, 9 * W], at the columns of `INPUTS` and `GRADIENTS`.
"""

from __future__ import annotations

import triton
import triton.language as tl

WEIGHTS = {"query_key_value": 3, "output": 1, "up": 4, "down": 4}
"""Matrices of a block and their sizes, in squares of the width."""
VECTORS = {
    "query_key_value": 3,
    "output": 1,
    "up": 4,
    "down": 1,
    "attention_gain": 1,
    "attention_shift": 1,
    "perceptron_gain": 1,
    "perceptron_shift": 1,
}
"""Vectors of a block and their sizes, in widths."""
INPUTS = {"query_key_value": 0, "output": 1, "up": 2, "down": 3}
GRADIENTS = {"query_key_value": 0, "output": 3, "up": 4, "down": 8}
"""First columns of the maps' inputs, and of their outputs' gradients, in widths."""


@triton.jit
def _mixed(h):
    """murmur3's finaliser: every bit of the result depends on every bit of h (uint32)."""
    h ^= h >> 16
    h *= 0x85EBCA6B
    h ^= h >> 13
    h *= 0xC2B2AE35
    h ^= h >> 16
    return h


@triton.jit
def _dropped(values, salt, index, threshold, scale, DROP: tl.constexpr):
    """Dropout: what is kept is a function of the salt and the element, `training.dropout.kept`."""
    if DROP:
        bits = _mixed((index.to(tl.uint32) * 0x9E3779B9) ^ salt.to(tl.uint32))
        values = tl.where(bits >= threshold.to(tl.uint32), values * scale, 0.0)
    return values


@triton.jit
def salt(seeds, updates, salts, models, M: tl.constexpr):
    """salts [places, M] of this update, `training.dropout.salts_of`; a program for each place."""
    place, m = tl.program_id(0), tl.arange(0, M)
    update = tl.load(updates).to(tl.uint32)
    key = _mixed(_mixed(tl.load(seeds + m, mask=m < models, other=0).to(tl.uint32)) + update * 0x9E3779B9)
    bits = _mixed(key + place.to(tl.uint32) * 0x9E3779B9)
    tl.store(salts + place * models + m, bits.to(tl.int32, bitcast=True), mask=m < models)


@triton.jit
def drop(values, out, salts, threshold, keep_scale, elements, N: tl.constexpr):
    """Dropout of `elements` values of each model."""
    m, n = tl.program_id(1), tl.program_id(0) * N + tl.arange(0, N)
    kept = _dropped(
        tl.load(values + m * elements + n, mask=n < elements), tl.load(salts + m), n, threshold, keep_scale, True
    )
    tl.store(out + m * elements + n, kept, mask=n < elements)


@triton.jit
def _standardised(x, eps, W: tl.constexpr):
    """Rows of mean 0 and deviation 1, and one over their deviation."""
    centred = x - (tl.sum(x, 1) / W)[:, None]
    rate = 1 / tl.sqrt(tl.sum(centred * centred, 1) / W + eps)
    return centred * rate[:, None], rate


@triton.jit
def _norm_backward(gradient, gain, standardised, rate, W: tl.constexpr):
    """Through a layer norm: the gradient of what came in."""
    scaled = gradient * gain[None, :]
    mean = tl.sum(scaled, 1) / W
    along = tl.sum(scaled * standardised, 1) / W
    return (scaled - mean[:, None] - standardised * along[:, None]) * rate[:, None]


@triton.jit
def norm_linear(x, weights, vectors, inputs, out, rows, eps, W: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """inputs[0] = attention_norm(x); out [M * rows, 3 * W] = query_key_value(inputs[0]), C columns at a time."""
    m, n, w = tl.program_id(1), tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, W)
    row = (m * rows + n)[:, None]
    inside = (n < rows)[:, None]
    vector = vectors + m * 13 * W + w
    gain, shift = tl.load(vector + 9 * W), tl.load(vector + 10 * W)
    standardised, _ = _standardised(tl.load(x + row * W + w, mask=inside, other=0.0), eps, W)
    inner = (standardised * gain + shift).to(out.dtype.element_ty)
    tl.store(inputs + row * 7 * W + w, inner, mask=inside)
    weight, bias, c = weights + m * 12 * W * W, vectors + m * 13 * W, tl.arange(0, C)
    for column in range(0, 3 * W, C):
        y = tl.dot(inner, tl.trans(tl.load(weight + (column + c)[:, None] * W + w))) + tl.load(bias + column + c)
        tl.store(out + row * 3 * W + column + c, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _attention_weights(query, key, scale, T: tl.constexpr):
    t = tl.arange(0, T)
    scores = tl.dot(query, tl.trans(key)) * (scale * 1.4426950408889634)  # exp2 is what the hardware has
    scores = tl.where(t[:, None] >= t[None, :], scores, float("-inf"))
    powers = tl.exp2(scores - tl.max(scores, 1)[:, None])
    return powers / tl.sum(powers, 1)[:, None]


@triton.jit
def attend(qkv, inputs, salts, threshold, keep_scale, scale, length, windows, H: tl.constexpr, W: tl.constexpr,
           T: tl.constexpr, DROP: tl.constexpr):  # fmt: skip
    """inputs[1] = causal attention, of a whole window at once: qkv [M * windows, length, 3, H, W / H]."""
    D: tl.constexpr = W // H
    window, head = tl.program_id(0) // H, tl.program_id(0) % H
    t, d = tl.arange(0, T), tl.arange(0, D)
    at = (window * length + t)[:, None]
    inside = (t < length)[:, None]
    place = qkv + at * 3 * W + head * D + d
    query, key = tl.load(place, mask=inside, other=0.0), tl.load(place + W, mask=inside, other=0.0)
    weights = _attention_weights(query, key, scale, T)
    element = ((window % windows) * H + head) * T * T + t[:, None] * T + t
    weights = _dropped(weights, tl.load(salts + window // windows), element, threshold, keep_scale, DROP)
    value = tl.load(place + 2 * W, mask=inside, other=0.0)
    mixed = tl.dot(weights.to(qkv.dtype.element_ty), value)
    tl.store(inputs + at * 7 * W + W + head * D + d, mixed.to(qkv.dtype.element_ty), mask=inside)


@triton.jit
def attend_backward(qkv, gradient, gradients, salts, threshold, keep_scale, scale, length, windows, H: tl.constexpr,
                    W: tl.constexpr, T: tl.constexpr, DROP: tl.constexpr):  # fmt: skip
    """gradients[0:3], of qkv; what was attended to is computed again."""
    D: tl.constexpr = W // H
    window, head = tl.program_id(0) // H, tl.program_id(0) % H
    t, d = tl.arange(0, T), tl.arange(0, D)
    at = (window * length + t)[:, None]
    inside = (t < length)[:, None]
    place, onto = qkv + at * 3 * W + head * D + d, gradients + at * 9 * W + head * D + d
    query, key = tl.load(place, mask=inside, other=0.0), tl.load(place + W, mask=inside, other=0.0)
    weights = _attention_weights(query, key, scale, T)
    incoming = tl.load(gradient + at * W + head * D + d, mask=inside, other=0.0)
    element = ((window % windows) * H + head) * T * T + t[:, None] * T + t
    salt = tl.load(salts + window // windows)
    used = _dropped(weights, salt, element, threshold, keep_scale, DROP)
    to_value = tl.dot(tl.trans(used.to(qkv.dtype.element_ty)), incoming)
    tl.store(onto + 2 * W, to_value.to(qkv.dtype.element_ty), mask=inside)
    value = tl.load(place + 2 * W, mask=inside, other=0.0)
    to_used = tl.dot(incoming, tl.trans(value))
    to_weights = _dropped(to_used, salt, element, threshold, keep_scale, DROP)
    to_scores = weights * (to_weights - tl.sum(weights * to_weights, 1)[:, None]) * scale
    to_scores = tl.where(inside, to_scores, 0.0).to(qkv.dtype.element_ty)
    tl.store(onto, tl.dot(to_scores, key).to(qkv.dtype.element_ty), mask=inside)
    tl.store(onto + W, tl.dot(tl.trans(to_scores), query).to(qkv.dtype.element_ty), mask=inside)


@triton.jit
def finish(x, inputs, weights, vectors, between, out, salts, threshold, keep_scale, rows, eps,
           W: tl.constexpr, R: tl.constexpr, C: tl.constexpr, DROP: tl.constexpr):  # fmt: skip
    """The rest of a block after attention; the perceptron's hidden layer C columns at a time.

    between = x + drop(output(inputs[1])); inputs[2] = perceptron_norm(between); inputs[3:] = relu(up(inputs[2]));
    out = between + drop(down(inputs[3:]))
    """
    m, n, w = tl.program_id(1), tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, W)
    row = (m * rows + n)[:, None]
    inside = (n < rows)[:, None]
    weight = weights + m * 12 * W * W
    vector, element = vectors + m * 13 * W + w, n[:, None] * W + w
    first_salt, second_salt = tl.load(salts + m), tl.load(salts + tl.num_programs(1) + m)

    square = w[:, None] * W + w
    heads = tl.load(inputs + row * 7 * W + W + w, mask=inside, other=0.0)
    attended = tl.dot(heads, tl.trans(tl.load(weight + 3 * W * W + square)))
    attended = _dropped(attended + tl.load(vector + 3 * W), first_salt, element, threshold, keep_scale, DROP)
    residual = tl.load(x + row * W + w, mask=inside, other=0.0) + attended
    tl.store(between + row * W + w, residual, mask=inside)

    standardised, _ = _standardised(residual, eps, W)
    inner = (standardised * tl.load(vector + 11 * W) + tl.load(vector + 12 * W)).to(inputs.dtype.element_ty)
    tl.store(inputs + row * 7 * W + 2 * W + w, inner, mask=inside)
    added, c = tl.zeros((R, W), dtype=tl.float32), tl.arange(0, C)
    for column in range(0, 4 * W, C):
        up = tl.load(weight + 4 * W * W + (column + c)[:, None] * W + w)
        active = tl.dot(inner, tl.trans(up)) + tl.load(vectors + (m * 13 + 4) * W + column + c)
        active = tl.maximum(active, 0.0).to(inputs.dtype.element_ty)
        tl.store(inputs + row * 7 * W + 3 * W + column + c, active, mask=inside)
        down = tl.load(weight + 8 * W * W + w[:, None] * 4 * W + column + c)
        added = tl.dot(active, tl.trans(down), added)
    added = _dropped(added + tl.load(vector + 8 * W), second_salt, element, threshold, keep_scale, DROP)
    # read again rather than kept: registers are scarcer than cached memory
    tl.debug_barrier()
    residual = tl.load(between + row * W + w, mask=inside, other=0.0)
    tl.store(out + row * W + w, residual + added, mask=inside)


@triton.jit
def finish_backward(gradient, between, inputs, weights, vectors, gradients, to_between, to_mixed, norm_sums, salts,
                    threshold, keep_scale, rows, eps, W: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
                    DROP: tl.constexpr):  # fmt: skip
    """From a block's output back to what was attended to: gradients[3:], and those of `between` and of inputs[1]."""
    tile, m = tl.program_id(0), tl.program_id(1)
    n, w = tile * R + tl.arange(0, R), tl.arange(0, W)
    row = (m * rows + n)[:, None]
    inside = (n < rows)[:, None]
    weight = weights + m * 12 * W * W
    vector, element = vectors + m * 13 * W + w, n[:, None] * W + w
    first_salt, second_salt = tl.load(salts + m), tl.load(salts + tl.num_programs(1) + m)

    incoming = tl.load(gradient + row * W + w, mask=inside, other=0.0)
    through = _dropped(incoming, second_salt, element, threshold, keep_scale, DROP).to(inputs.dtype.element_ty)
    tl.store(gradients + row * 9 * W + 8 * W + w, through, mask=inside)
    to_normed, c = tl.zeros((R, W), dtype=tl.float32), tl.arange(0, C)
    for column in range(0, 4 * W, C):
        down = tl.load(weight + 8 * W * W + w[:, None] * 4 * W + column + c)
        active = tl.load(inputs + row * 7 * W + 3 * W + column + c, mask=inside, other=0.0)
        part = tl.where(active > 0, tl.dot(through, down), 0.0).to(inputs.dtype.element_ty)
        tl.store(gradients + row * 9 * W + 4 * W + column + c, part, mask=inside)
        to_normed = tl.dot(part, tl.load(weight + 4 * W * W + (column + c)[:, None] * W + w), to_normed)

    standardised, rate = _standardised(tl.load(between + row * W + w, mask=inside, other=0.0), eps, W)
    sums = norm_sums + (m * tl.num_programs(0) + tile) * 4 * W + w
    tl.store(sums + 2 * W, tl.sum(tl.where(inside, to_normed * standardised, 0.0), 0))
    tl.store(sums + 3 * W, tl.sum(tl.where(inside, to_normed, 0.0), 0))
    incoming = tl.load(gradient + row * W + w, mask=inside, other=0.0)  # again: registers are scarce
    residual = incoming + _norm_backward(to_normed, tl.load(vector + 11 * W), standardised, rate, W)
    tl.store(to_between + row * W + w, residual, mask=inside)
    back = _dropped(residual, first_salt, element, threshold, keep_scale, DROP).to(inputs.dtype.element_ty)
    tl.store(gradients + row * 9 * W + 3 * W + w, back, mask=inside)
    mixed = tl.dot(back, tl.load(weight + 3 * W * W + w[:, None] * W + w))
    tl.store(to_mixed + row * W + w, mixed.to(inputs.dtype.element_ty), mask=inside)


@triton.jit
def norm_linear_backward(x, gradients, to_between, weights, vectors, out, norm_sums, rows, eps, W: tl.constexpr,
                         R: tl.constexpr, C: tl.constexpr):  # fmt: skip
    """From queries, keys and values back to the block's input."""
    tile, m = tl.program_id(0), tl.program_id(1)
    n, w = tile * R + tl.arange(0, R), tl.arange(0, W)
    row = (m * rows + n)[:, None]
    inside = (n < rows)[:, None]
    weight = weights + m * 12 * W * W
    to_normed, c = tl.zeros((R, W), dtype=tl.float32), tl.arange(0, C)
    for column in range(0, 3 * W, C):
        part = tl.load(gradients + row * 9 * W + column + c, mask=inside, other=0.0)
        to_normed = tl.dot(part, tl.load(weight + (column + c)[:, None] * W + w), to_normed)
    standardised, rate = _standardised(tl.load(x + row * W + w, mask=inside, other=0.0), eps, W)
    sums = norm_sums + (m * tl.num_programs(0) + tile) * 4 * W + w
    tl.store(sums, tl.sum(tl.where(inside, to_normed * standardised, 0.0), 0))
    tl.store(sums + W, tl.sum(tl.where(inside, to_normed, 0.0), 0))
    back = _norm_backward(to_normed, tl.load(vectors + (m * 13 + 9) * W + w), standardised, rate, W)
    residual = tl.load(to_between + row * W + w, mask=inside, other=0.0)
    tl.store(out + row * W + w, residual + back, mask=inside)


@triton.jit
def weight_gradient(gradients, inputs, weight_sums, vector_sums, rows, W: tl.constexpr, R: tl.constexpr):
    """Gradients of all maps' weights and biases, summed over one split of the rows; a program for each square."""
    square, split, m = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    splits = tl.num_programs(1)
    is_down = square >= 8
    outer = tl.where(is_down, 8, square)
    inner = tl.where(is_down, square - 5, tl.where(square < 3, 0, tl.where(square == 3, 1, 2)))
    share, w = tl.cdiv(rows, splits * R) * R, tl.arange(0, W)
    total, bias = tl.zeros((W, W), dtype=tl.float32), tl.zeros((W,), dtype=tl.float32)
    for begin in range(split * share, tl.minimum((split + 1) * share, rows), R):
        n = begin + tl.arange(0, R)
        row, inside = (m * rows + n)[:, None], (n < rows)[:, None]
        outgoing = tl.load(gradients + row * 9 * W + outer * W + w, mask=inside, other=0.0)
        incoming = tl.load(inputs + row * 7 * W + inner * W + w, mask=inside, other=0.0)
        total = tl.dot(tl.trans(outgoing), incoming, total)
        bias += tl.sum(outgoing.to(tl.float32), 0)
    # the matrix of `down` is four squares wide
    first = tl.where(is_down, 8 * W * W + (square - 8) * W, square * W * W)
    stride = tl.where(is_down, 4 * W, W)
    place = m * splits + split
    tl.store(weight_sums + place * 12 * W * W + first + w[:, None] * stride + w, total)
    if square <= 8:
        tl.store(vector_sums + (place * 9 + outer) * W + w, bias)
