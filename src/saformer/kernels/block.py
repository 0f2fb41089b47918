"""A transformer block of M models: an operator that `torch` can differentiate and compile.

A block of `core.transformer` reads and writes its activations about twenty times. Here a tile of
rows stays on the chip from the attention's output to the next block's input, and only what the way
back needs is written. Residuals, norms and sums are float32; what enters a matrix product is
bfloat16. Gradients of weights are summed over splits of the rows, and those sums over the splits by
the caller, always in the same order.

Rows of all models lie behind each other: row n of model m is row m * rows + n. Every token of a
window has a row in `x`, `normed` [rows, W], `qkv` and `to_qkv` [rows, 3 * W]; every query
(`token_of_query`), of which a last block has fewer, has one in everything after attention.
`weights` [M, 12 * W * W] holds the matrices of a block: query_key_value (3), output (1), up (4) and
down (4); `vectors` [M, 13 * W] their biases (3, 1, 4, 1), then gain and shift of attention's norm
and of the MLP's. The inputs of the last three maps of a block lie side by side in `inputs`
[queries, 6 * W]: attended, normed, active (4); the gradients of their outputs in `gradients`
[queries, 6 * W]: of the output map, up (4), down.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, library
from triton.language import constexpr
from triton.tools.tensor_descriptor import TensorDescriptor

from saformer.kernels.parts import dropout_constants, dropped, norm_backward, standardised

NORM_QKV = {"R": 64, "C": 64, "num_warps": 8, "num_stages": 3}
MLP = {"R": 64, "C": 64, "num_warps": 4, "num_stages": 3}
MLP_BACKWARD = {"R": 64, "C": 32, "num_warps": 4, "num_stages": 4}
NORM_QKV_BACKWARD = {"R": 64, "C": 64, "num_warps": 4, "num_stages": 3}
WEIGHT_GRADIENT = {"R": 64, "num_warps": 4, "num_stages": 3}
"""R rows and C columns stay on the chip at a time; measured on an H200."""
PROGRAMS = 430  # they keep a large GPU busy while gradients of weights are summed
SQUARES = 12  # programs of each split of the rows


@triton.jit
def token_of_query(query, TOKENS: constexpr, QUERIES: constexpr, POSITIONS: constexpr):
    """Each step has TOKENS tokens; its QUERIES queries are those at the hex digits of POSITIONS."""
    token = query
    if QUERIES < TOKENS:
        token = query // QUERIES * TOKENS + ((POSITIONS >> (4 * (query % QUERIES))) & 15)
    return token


@triton.jit
def query_of_token(token, TOKENS: constexpr, QUERIES: constexpr, POSITIONS: constexpr):
    """The inverse of `token_of_query`, and whether the token is a query."""
    query, is_query = token, token >= 0
    if QUERIES < TOKENS:
        position = token % TOKENS
        rank, is_query = tl.zeros_like(token), token < 0
        for index in tl.static_range(QUERIES):
            here = position == ((POSITIONS >> (4 * index)) & 15)
            rank, is_query = tl.where(here, index, rank), is_query | here
        query = token // TOKENS * QUERIES + rank
    return query, is_query


@triton.jit
def norm_qkv_kernel(x, weights, vectors, normed, out, rows, eps, W: constexpr, R: constexpr,
        C: constexpr):  # fmt: skip
    """normed = attention_norm(x); out [M * rows, 3 * W] = query_key_value(normed), by C columns."""
    m, n, w = tl.program_id(1), tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, W)
    row, inside = (m * rows + n)[:, None], (n < rows)[:, None]
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
def _attention_weights(query, key, token, scale, T: constexpr):
    factor = scale * 1.4426950408889634  # exp2 is what the hardware has
    scores = tl.dot(query, tl.trans(key)) * factor
    scores = tl.where(token[:, None] >= tl.arange(0, T)[None, :], scores, float("-inf"))
    powers = tl.exp2(scores - tl.max(scores, 1)[:, None])
    return powers / tl.sum(powers, 1)[:, None]


@triton.jit
def attention_kernel(qkv, inputs, salts, threshold, keep_scale, scale, length, windows, num_queries,
        H: constexpr, W: constexpr, T: constexpr, Q: constexpr, TOKENS: constexpr,
        QUERIES: constexpr, POSITIONS: constexpr, DROP: constexpr):  # fmt: skip
    """inputs[0] = attention of each window's queries: qkv [M * windows, length, 3, H, W / H]."""
    D: constexpr = W // H
    window, head = tl.program_id(0) // H, tl.program_id(0) % H
    t, q, d = tl.arange(0, T), tl.arange(0, Q), tl.arange(0, D)
    there, wanted = (t < length)[:, None], (q < num_queries)[:, None]
    token = token_of_query(q, TOKENS, QUERIES, POSITIONS)
    own = qkv + head * D + d
    past = own + (window * length + t)[:, None] * 3 * W
    query = tl.load(own + (window * length + token)[:, None] * 3 * W, mask=wanted, other=0.0)
    weights = _attention_weights(query, tl.load(past + W, mask=there, other=0.0), token, scale, T)
    element = ((window % windows) * H + head) * T * T + token[:, None] * T + t
    salt = tl.load(salts + window // windows)
    weights = dropped(weights, salt, element, threshold, keep_scale, DROP)
    value = tl.load(past + 2 * W, mask=there, other=0.0)
    mixed = tl.dot(weights.to(qkv.dtype.element_ty), value)
    onto = inputs + (window * num_queries + q)[:, None] * 6 * W + head * D + d
    tl.store(onto, mixed.to(qkv.dtype.element_ty), mask=wanted)


@triton.jit
def mlp_kernel(x, inputs, output_of, up_of, down_of, vectors, between, out, salts, threshold,
        keep_scale, tokens, queries, eps, W: constexpr, R: constexpr, C: constexpr,
        TOKENS: constexpr, QUERIES: constexpr, POSITIONS: constexpr, DROP: constexpr):  # fmt: skip
    """The rest of a block after attention, for each query; the MLP's hidden layer by C columns.
    between = x + drop(output(inputs[0])); inputs[1] = perceptron_norm(between);
    inputs[2:] = relu(up(inputs[1])); out = between + drop(down(inputs[2:]))
    Matrices come by descriptors of `weights` as rows of W, or of 4 * W for `down_of`."""
    m, n, w = tl.program_id(1), tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, W)
    row, token = (m * queries + n)[:, None], token_of_query(n, TOKENS, QUERIES, POSITIONS)[:, None]
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
        to_mixed, norm_sums, salts, threshold, keep_scale, queries, eps, W: constexpr, R: constexpr,
        C: constexpr, TOKENS: constexpr, QUERIES: constexpr, POSITIONS: constexpr,
        DROP: constexpr):  # fmt: skip
    """Back to attention's outputs: `gradients`, and those of `between` and of inputs[0]."""
    tile, m = tl.program_id(0), tl.program_id(1)
    n, w = tile * R + tl.arange(0, R), tl.arange(0, W)
    row, inside = (m * queries + n)[:, None], (n < queries)[:, None]
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
def attention_backward_kernel(qkv, gradient, to_qkv, salts, threshold, keep_scale, scale, length,
        windows, num_queries, H: constexpr, W: constexpr, T: constexpr, Q: constexpr,
        TOKENS: constexpr, QUERIES: constexpr, POSITIONS: constexpr, DROP: constexpr):  # fmt: skip
    """The gradient of qkv; attention weights are computed again."""
    D: constexpr = W // H
    window, head = tl.program_id(0) // H, tl.program_id(0) % H
    t, q, d = tl.arange(0, T), tl.arange(0, Q), tl.arange(0, D)
    there, wanted = (t < length)[:, None], (q < num_queries)[:, None]
    token = token_of_query(q, TOKENS, QUERIES, POSITIONS)
    past = (window * length + t)[:, None] * 3 * W
    querying = (window * length + token)[:, None] * 3 * W
    own, onto = qkv + head * D + d, to_qkv + head * D + d
    if QUERIES < TOKENS:  # tokens that are no queries
        tl.store(onto + past, tl.zeros((T, D), dtype=qkv.dtype.element_ty), mask=there)
    query = tl.load(own + querying, mask=wanted, other=0.0)
    key = tl.load(own + past + W, mask=there, other=0.0)
    weights = _attention_weights(query, key, token, scale, T)
    incoming_at = gradient + (window * num_queries + q)[:, None] * W + head * D + d
    incoming = tl.load(incoming_at, mask=wanted, other=0.0)
    element = ((window % windows) * H + head) * T * T + token[:, None] * T + t
    salt = tl.load(salts + window // windows)
    used = dropped(weights, salt, element, threshold, keep_scale, DROP)
    to_value = tl.dot(tl.trans(used.to(qkv.dtype.element_ty)), incoming)
    tl.store(onto + past + 2 * W, to_value.to(qkv.dtype.element_ty), mask=there)
    value = tl.load(own + past + 2 * W, mask=there, other=0.0)
    to_used = tl.dot(incoming, tl.trans(value))
    to_weights = dropped(to_used, salt, element, threshold, keep_scale, DROP)
    to_scores = weights * (to_weights - tl.sum(weights * to_weights, 1)[:, None]) * scale
    to_scores = tl.where(wanted, to_scores, 0.0).to(qkv.dtype.element_ty)
    to_key = tl.dot(tl.trans(to_scores), query)
    tl.store(onto + past + W, to_key.to(qkv.dtype.element_ty), mask=there)
    if QUERIES < TOKENS:
        tl.debug_barrier()  # zeros first
    tl.store(onto + querying, tl.dot(to_scores, key).to(qkv.dtype.element_ty), mask=wanted)


@triton.jit
def norm_qkv_backward_kernel(x, to_qkv, to_between, weights, vectors, out, norm_sums, tokens,
        queries, eps, W: constexpr, R: constexpr, C: constexpr, TOKENS: constexpr,
        QUERIES: constexpr, POSITIONS: constexpr):  # fmt: skip
    """From qkv back to the block's input; a query's residual adds its gradient."""
    tile, m = tl.program_id(0), tl.program_id(1)
    n, w = tile * R + tl.arange(0, R), tl.arange(0, W)
    row, inside = (m * tokens + n)[:, None], (n < tokens)[:, None]
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
        W: constexpr, R: constexpr):  # fmt: skip
    """Gradients of weights and biases, summed over one split of the rows; a program per square.
    `gradients` begins with to_qkv and `inputs` with `normed`, of all models, so that one loop
    serves all squares."""
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


@library.custom_op("saformer::block", mutates_args=())
def fused_block(x: Tensor, weights: Tensor, rounded: Tensor, vectors: Tensor, salts: Tensor,
        tokens: int, positions: Sequence[int], heads: int, rate: float,
        eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """x [M * B, K * tokens, W] -> outputs [M * B, K * len(positions), W], and activations.
    `rounded` are the weights in bfloat16, with which it computes. `salts` [3, M] are for dropout
    after attention, after the MLP and within attention. Of the tokens of each step, those at
    `positions` are queries; all are keys."""
    shape = _Shape(x, rounded, tokens, positions)
    rows, queries, width = shape.rows, shape.queries, shape.width
    out, between, all_inputs, qkv = shape.activations()
    normed, inputs = shape.apart(all_inputs, 1)
    drop, constants = dropout_constants(rate), {**shape.positions, "DROP": rate > 0}
    shape.launch(norm_qkv_kernel, NORM_QKV, rows)(x, rounded, vectors, normed, qkv, rows, eps)
    attention_kernel[(len(x) * heads,)](qkv, inputs, salts[2], *drop, **shape.attention(heads),
        **constants, num_warps=4)  # fmt: skip
    # matrices of the maps after attention: output, and some rows of up, columns of down at a time
    columns = min(MLP["C"], width)
    narrow, wide = rounded.view(-1, width), rounded.view(-1, 4 * width)
    blocks = (narrow, [width, width]), (narrow, [columns, width]), (wide, [width, columns])
    matrices = [TensorDescriptor.from_tensor(matrix, block) for matrix, block in blocks]
    shape.launch(mlp_kernel, MLP, queries, **constants)(x, inputs, *matrices, vectors, between, out,
        salts, *drop, rows, queries, eps)  # fmt: skip
    return out, between, all_inputs, qkv


@fused_block.register_fake
def _(x, weights, rounded, vectors, salts, tokens, positions, *rest):
    return _Shape(x, rounded, tokens, positions).activations()


@library.custom_op("saformer::block_backward", mutates_args=())
def fused_block_backward(gradient: Tensor, x: Tensor, between: Tensor, all_inputs: Tensor,
        qkv: Tensor, rounded: Tensor, vectors: Tensor, salts: Tensor, tokens: int,
        positions: Sequence[int], heads: int, rate: float,
        eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x and, to be summed over their second axes, of weights, biases and norms (2)."""
    shape = _Shape(x, rounded, tokens, positions)
    rows, queries = shape.rows, shape.queries
    drop, constants = dropout_constants(rate), {**shape.positions, "DROP": rate > 0}
    all_gradients, to_mixed = shape.new(3 * rows + 6 * queries), shape.new(queries)
    (to_qkv, gradients), (_, inputs) = shape.apart(all_gradients, 3), shape.apart(all_inputs, 1)
    to_between, to_x = torch.empty_like(gradient), torch.empty_like(x)
    weight_sums, vector_sums, attention_sums, mlp_sums = shape.sums()
    shape.launch(mlp_backward_kernel, MLP_BACKWARD, queries, **constants)(
        gradient, between, inputs, rounded, vectors, gradients, to_between, to_mixed, mlp_sums,
        salts, *drop, queries, eps)  # fmt: skip
    attention_backward_kernel[(len(x) * heads,)](
        qkv, to_mixed, to_qkv, salts[2], *drop, **shape.attention(heads), **constants,
        num_warps=8 if shape.length > 64 and len(positions) == tokens else 4)  # fmt: skip
    shape.launch(norm_qkv_backward_kernel, NORM_QKV_BACKWARD, rows, **shape.positions)(x, to_qkv,
        to_between, rounded, vectors, to_x, attention_sums, rows, queries, eps)  # fmt: skip
    weight_gradient_kernel[(SQUARES, weight_sums.shape[1], shape.models)](all_gradients, all_inputs,
        weight_sums, vector_sums, rows, queries, W=shape.width, **WEIGHT_GRADIENT)  # fmt: skip
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
    return to_x, to_weights, None, torch.cat(to_vectors, 1), *[None] * 6


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
        return self._x.new_empty(self.models * rows, self.width, dtype=self._dtype)

    def apart(self, both: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """The part of all tokens, of `size` widths each, and behind it the part of all queries."""
        return both[: self.models * self.rows * size], both[self.models * self.rows * size :]

    def activations(self) -> tuple[Tensor, ...]:
        """The output, the residual between attention and MLP, the inputs of all maps, qkv."""
        shape = len(self._x), self._num_queries, self.width
        residuals = (self._x.new_empty(shape) for _ in range(2))
        return *residuals, self.new(self.rows + 6 * self.queries), self.new(3 * self.rows)

    def sums(self) -> tuple[Tensor, ...]:
        splits = triton.cdiv(PROGRAMS, SQUARES * self.models)
        splits = max(1, min(splits, triton.cdiv(self.rows, 8 * WEIGHT_GRADIENT["R"])))
        qkv = triton.cdiv(self.rows, NORM_QKV_BACKWARD["R"])
        mlp = triton.cdiv(self.queries, MLP_BACKWARD["R"])
        sizes = (splits, 12 * self.width), (splits, 9), (qkv, 2), (mlp, 2)
        return tuple(self._x.new_empty(self.models, n, size * self.width) for n, size in sizes)

    def launch(self, kernel: Any, tiles: dict[str, int], rows: int, **constants: Any) -> Any:
        """By tiles of rows of all models; narrow models have fewer columns than a tile."""
        constants = {**tiles, "C": min(tiles["C"], self.width), "W": self.width, **constants}
        return partial(kernel[triton.cdiv(rows, tiles["R"]), self.models], **constants)

    def attention(self, heads: int) -> dict[str, Any]:
        """A program has a whole window: T keys, Q queries."""
        t, q = (max(16, triton.next_power_of_2(n)) for n in (self.length, self._num_queries))
        sizes = {"length": self.length, "windows": self.windows, "num_queries": self._num_queries}
        constants = {"H": heads, "W": self.width, "T": t, "Q": q, "num_stages": 1}
        return {"scale": (self.width // heads) ** -0.5, **sizes, **constants}
