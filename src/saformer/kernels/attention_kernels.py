"""Causal attention of whole windows, both ways. Layouts are those of `block_kernels`."""

from __future__ import annotations

import triton
import triton.language as tl

from saformer.kernels.parts import dropped, token_of_query


@triton.jit
def _attention_weights(query, key, token, scale, T: tl.constexpr):
    factor = scale * 1.4426950408889634  # exp2 is what the hardware has
    scores = tl.dot(query, tl.trans(key)) * factor
    scores = tl.where(token[:, None] >= tl.arange(0, T)[None, :], scores, float("-inf"))
    powers = tl.exp2(scores - tl.max(scores, 1)[:, None])
    return powers / tl.sum(powers, 1)[:, None]


@triton.jit
def attention_kernel(qkv, inputs, salts, threshold, keep_scale, scale, length, windows, num_queries,
                     H: tl.constexpr, W: tl.constexpr, T: tl.constexpr, Q: tl.constexpr,
                     TOKENS: tl.constexpr, QUERIES: tl.constexpr, POSITIONS: tl.constexpr,
                     DROP: tl.constexpr):  # fmt: skip
    """inputs[0] = attention of each window's queries: qkv [M * windows, length, 3, H, W / H]."""
    D: tl.constexpr = W // H
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
def attention_backward_kernel(qkv, gradient, to_qkv, salts, threshold, keep_scale, scale, length,
                              windows, num_queries, H: tl.constexpr, W: tl.constexpr,
                              T: tl.constexpr, Q: tl.constexpr, TOKENS: tl.constexpr,
                              QUERIES: tl.constexpr, POSITIONS: tl.constexpr,
                              DROP: tl.constexpr):  # fmt: skip
    """The gradient of qkv; attention weights are computed again."""
    D: tl.constexpr = W // H
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
