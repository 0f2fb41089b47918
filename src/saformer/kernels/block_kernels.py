"""Kernels of a transformer block but for its attention, forwards and backwards, for M models.

A block of `core.transformer` reads and writes its activations about twenty times. Here a tile of
rows stays on the chip from the attention's output to the next block's input, and only what the way
back needs is written. Residuals, norms and sums are float32; what enters a matrix product is
bfloat16. Gradients of weights are summed over splits of the rows, and those sums over the splits by
the caller, always in the same order.

Rows of all models lie behind each other: row n of model m is row m * rows + n. Every token of a
window has a row in `x`, `normed` [rows, W], `qkv` and `to_qkv` [rows, 3 * W]; every query
(`parts.token_of_query`), of which a last block has fewer, has one in everything after attention.
`weights` [M, 12 * W * W] holds the matrices of a block: query_key_value (3), output (1), up (4) and
down (4); `vectors` [M, 13 * W] their biases (3, 1, 4, 1), then gain and shift of attention's norm
and of the MLP's. The inputs of the last three maps of a block lie side by side in `inputs`
[queries, 6 * W]: attended, normed, active (4); the gradients of their outputs in `gradients`
[queries, 6 * W]: of the output map, up (4), down.
"""

from __future__ import annotations

import triton
import triton.language as tl

from saformer.kernels.parts import (
    dropped,
    norm_backward,
    query_of_token,
    standardised,
    token_of_query,
)


@triton.jit
def norm_qkv_kernel(x, weights, vectors, normed, out, rows, eps, W: tl.constexpr, R: tl.constexpr,
                    C: tl.constexpr):  # fmt: skip
    """normed = attention_norm(x); out [M * rows, 3 * W] = query_key_value(normed), by C columns."""
    m, n, w = tl.program_id(1), tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, W)
    row = (m * rows + n)[:, None]
    inside = (n < rows)[:, None]
    vector = vectors + m * 13 * W + w
    gain, shift = tl.load(vector + 9 * W), tl.load(vector + 10 * W)
    standard, _ = standardised(tl.load(x + row * W + w, mask=inside, other=0.0), eps, W)
    inner = (standard * gain + shift).to(out.dtype.element_ty)
    tl.store(normed + row * W + w, inner, mask=inside)
    weight, bias, c = weights + m * 12 * W * W, vectors + m * 13 * W, tl.arange(0, C)
    for column in range(0, 3 * W, C):
        matrix = tl.load(weight + (column + c)[:, None] * W + w)
        y = tl.dot(inner, tl.trans(matrix)) + tl.load(bias + column + c)
        tl.store(out + row * 3 * W + column + c, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def mlp_kernel(x, inputs, output_of, up_of, down_of, vectors, between, out, salts, threshold,
               keep_scale, tokens, queries, eps, W: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
               TOKENS: tl.constexpr, QUERIES: tl.constexpr, POSITIONS: tl.constexpr,
               DROP: tl.constexpr):  # fmt: skip
    """The rest of a block after attention, for each query; the MLP's hidden layer by C columns.

    between = x + drop(output(inputs[0])); inputs[1] = perceptron_norm(between);
    inputs[2:] = relu(up(inputs[1])); out = between + drop(down(inputs[2:]))

    Matrices come by descriptors of `weights` as rows of W, or of 4 * W for `down_of`.
    """
    m, n, w = tl.program_id(1), tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, W)
    row = (m * queries + n)[:, None]
    token = token_of_query(n, TOKENS, QUERIES, POSITIONS)[:, None]
    inside = (n < queries)[:, None]
    vector, element = vectors + m * 13 * W + w, token * W + w
    first_salt, second_salt = tl.load(salts + m), tl.load(salts + tl.num_programs(1) + m)

    heads = tl.load(inputs + row * 6 * W + w, mask=inside, other=0.0)
    attended = tl.dot(heads, tl.trans(output_of.load([(m * 12 + 3) * W, 0])))
    attended += tl.load(vector + 3 * W)
    attended = dropped(attended, first_salt, element, threshold, keep_scale, DROP)
    residual = tl.load(x + (m * tokens + token) * W + w, mask=inside, other=0.0) + attended
    tl.store(between + row * W + w, residual, mask=inside)

    standard, _ = standardised(residual, eps, W)
    normed = standard * tl.load(vector + 11 * W) + tl.load(vector + 12 * W)
    inner = normed.to(inputs.dtype.element_ty)
    tl.store(inputs + row * 6 * W + W + w, inner, mask=inside)
    added, c = tl.zeros((R, W), dtype=tl.float32), tl.arange(0, C)
    for column in range(0, 4 * W, C):
        up = up_of.load([(m * 12 + 4) * W + column, 0])
        active = tl.dot(inner, tl.trans(up)) + tl.load(vectors + (m * 13 + 4) * W + column + c)
        active = tl.maximum(active, 0.0).to(inputs.dtype.element_ty)
        tl.store(inputs + row * 6 * W + 2 * W + column + c, active, mask=inside)
        down = down_of.load([(m * 3 + 2) * W, column])
        added = tl.dot(active, tl.trans(down), added)
    added += tl.load(vector + 8 * W)
    added = dropped(added, second_salt, element, threshold, keep_scale, DROP)
    # loaded again: registers are scarcer than cached memory
    tl.debug_barrier()
    residual = tl.load(between + row * W + w, mask=inside, other=0.0)
    tl.store(out + row * W + w, residual + added, mask=inside)


@triton.jit
def mlp_backward_kernel(gradient, between, inputs, weights, vectors, gradients, to_between,
                        to_mixed, norm_sums, salts, threshold, keep_scale, queries, eps,
                        W: tl.constexpr, R: tl.constexpr, C: tl.constexpr, TOKENS: tl.constexpr,
                        QUERIES: tl.constexpr, POSITIONS: tl.constexpr,
                        DROP: tl.constexpr):  # fmt: skip
    """Back to attention's outputs: `gradients`, and those of `between` and of inputs[0]."""
    tile, m = tl.program_id(0), tl.program_id(1)
    n, w = tile * R + tl.arange(0, R), tl.arange(0, W)
    row = (m * queries + n)[:, None]
    inside = (n < queries)[:, None]
    weight, vector = weights + m * 12 * W * W, vectors + m * 13 * W + w
    element = token_of_query(n, TOKENS, QUERIES, POSITIONS)[:, None] * W + w
    first_salt, second_salt = tl.load(salts + m), tl.load(salts + tl.num_programs(1) + m)

    incoming = tl.load(gradient + row * W + w, mask=inside, other=0.0)
    through = dropped(incoming, second_salt, element, threshold, keep_scale, DROP)
    through = through.to(inputs.dtype.element_ty)
    tl.store(gradients + row * 6 * W + 5 * W + w, through, mask=inside)
    to_normed, c = tl.zeros((R, W), dtype=tl.float32), tl.arange(0, C)
    for column in range(0, 4 * W, C):
        down = tl.load(weight + 8 * W * W + w[:, None] * 4 * W + column + c)
        active = tl.load(inputs + row * 6 * W + 2 * W + column + c, mask=inside, other=0.0)
        part = tl.where(active > 0, tl.dot(through, down), 0.0).to(inputs.dtype.element_ty)
        tl.store(gradients + row * 6 * W + W + column + c, part, mask=inside)
        up = tl.load(weight + 4 * W * W + (column + c)[:, None] * W + w)
        to_normed = tl.dot(part, up, to_normed)

    standard, rate = standardised(tl.load(between + row * W + w, mask=inside, other=0.0), eps, W)
    sums = norm_sums + (m * tl.num_programs(0) + tile) * 2 * W + w
    tl.store(sums, tl.sum(tl.where(inside, to_normed * standard, 0.0), 0))
    tl.store(sums + W, tl.sum(tl.where(inside, to_normed, 0.0), 0))
    # loaded again: registers are scarcer than cached memory
    incoming = tl.load(gradient + row * W + w, mask=inside, other=0.0)
    residual = incoming + norm_backward(to_normed, tl.load(vector + 11 * W), standard, rate, W)
    tl.store(to_between + row * W + w, residual, mask=inside)
    back = dropped(residual, first_salt, element, threshold, keep_scale, DROP)
    back = back.to(inputs.dtype.element_ty)
    tl.store(gradients + row * 6 * W + w, back, mask=inside)
    mixed = tl.dot(back, tl.load(weight + 3 * W * W + w[:, None] * W + w))
    tl.store(to_mixed + row * W + w, mixed.to(inputs.dtype.element_ty), mask=inside)


@triton.jit
def norm_qkv_backward_kernel(x, to_qkv, to_between, weights, vectors, out, norm_sums, tokens,
                             queries, eps, W: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
                             TOKENS: tl.constexpr, QUERIES: tl.constexpr,
                             POSITIONS: tl.constexpr):  # fmt: skip
    """From qkv back to the block's input; a query's residual adds its gradient."""
    tile, m = tl.program_id(0), tl.program_id(1)
    n, w = tile * R + tl.arange(0, R), tl.arange(0, W)
    row = (m * tokens + n)[:, None]
    inside = (n < tokens)[:, None]
    weight = weights + m * 12 * W * W
    to_normed, c = tl.zeros((R, W), dtype=tl.float32), tl.arange(0, C)
    for column in range(0, 3 * W, C):
        part = tl.load(to_qkv + row * 3 * W + column + c, mask=inside, other=0.0)
        to_normed = tl.dot(part, tl.load(weight + (column + c)[:, None] * W + w), to_normed)
    standard, rate = standardised(tl.load(x + row * W + w, mask=inside, other=0.0), eps, W)
    sums = norm_sums + (m * tl.num_programs(0) + tile) * 2 * W + w
    tl.store(sums, tl.sum(tl.where(inside, to_normed * standard, 0.0), 0))
    tl.store(sums + W, tl.sum(tl.where(inside, to_normed, 0.0), 0))
    back = norm_backward(to_normed, tl.load(vectors + (m * 13 + 9) * W + w), standard, rate, W)
    query, is_query = query_of_token(n, TOKENS, QUERIES, POSITIONS)
    residual = to_between + (m * queries + query)[:, None] * W + w
    back += tl.load(residual, mask=inside & is_query[:, None], other=0.0)
    tl.store(out + row * W + w, back, mask=inside)


@triton.jit
def weight_gradient_kernel(gradients, inputs, weight_sums, vector_sums, tokens, queries,
                           W: tl.constexpr, R: tl.constexpr):  # fmt: skip
    """Gradients of weights and biases, summed over one split of the rows; a program per square.

    `gradients` begins with to_qkv and `inputs` with `normed`, of all models, so that one loop
    serves all squares.
    """
    square, split, m = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    splits, models = tl.num_programs(1), tl.num_programs(2)
    of_qkv, is_down, w = square < 3, square >= 8, tl.arange(0, W)
    rows, behind = tl.where(of_qkv, tokens, queries), tl.where(of_qkv, 0, models * tokens)
    outer = tl.where(of_qkv, square, tl.where(is_down, 5, square - 3))
    inner = tl.where(of_qkv, 0, tl.where(is_down, square - 6, tl.where(square == 3, 0, 1)))
    outgoing_at = gradients + (3 * behind + outer) * W + w
    incoming_at = inputs + (behind + inner) * W + w
    outgoing_widths, incoming_widths = tl.where(of_qkv, 3, 6), tl.where(of_qkv, 1, 6)
    share = tl.cdiv(rows, splits * R) * R
    # biases are summed over rows at the end: within the loop, warps would wait for each other
    total, bias = tl.zeros((W, W), dtype=tl.float32), tl.zeros((R, W), dtype=tl.float32)
    for begin in range(split * share, tl.minimum((split + 1) * share, rows), R):
        n = begin + tl.arange(0, R)
        row, inside = (m * rows + n)[:, None], (n < rows)[:, None]
        outgoing = tl.load(outgoing_at + row * outgoing_widths * W, mask=inside, other=0.0)
        incoming = tl.load(incoming_at + row * incoming_widths * W, mask=inside, other=0.0)
        total = tl.dot(tl.trans(outgoing), incoming, total)
        bias += outgoing.to(tl.float32)
    # the matrix of `down` is four squares wide
    first = tl.where(is_down, 8 * W * W + (square - 8) * W, square * W * W)
    stride = tl.where(is_down, 4 * W, W)
    slot = m * splits + split
    tl.store(weight_sums + slot * 12 * W * W + first + w[:, None] * stride + w, total)
    if square <= 8:
        tl.store(vector_sums + (slot * 9 + square) * W + w, tl.sum(bias, 0))
