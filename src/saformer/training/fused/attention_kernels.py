"""Causal attention of whole windows, forwards and backwards. Names and layouts are those of `block_kernels`."""

from __future__ import annotations

import triton
import triton.language as tl

from saformer.training.fused.parts import dropped, token_of


@triton.jit
def _attention_weights(query, key, asking, scale, T: tl.constexpr):
    scores = tl.dot(query, tl.trans(key)) * (
        scale * 1.4426950408889634
    )  # exp2 is what the hardware has
    scores = tl.where(asking[:, None] >= tl.arange(0, T)[None, :], scores, float("-inf"))
    powers = tl.exp2(scores - tl.max(scores, 1)[:, None])
    return powers / tl.sum(powers, 1)[:, None]


@triton.jit
def attend(qkv, inputs, salts, threshold, keep_scale, scale, length, windows, asked, H: tl.constexpr, W: tl.constexpr,
           T: tl.constexpr, Q: tl.constexpr, TOKENS: tl.constexpr, ANSWERS: tl.constexpr, PLACES: tl.constexpr,
           DROP: tl.constexpr):  # fmt: skip
    """inputs[0] = attention of the `asked` answers of each window: qkv [M * windows, length, 3, H, W / H]."""
    D: tl.constexpr = W // H
    window, head = tl.program_id(0) // H, tl.program_id(0) % H
    t, q, d = tl.arange(0, T), tl.arange(0, Q), tl.arange(0, D)
    there, wanted = (t < length)[:, None], (q < asked)[:, None]
    asking = token_of(q, TOKENS, ANSWERS, PLACES)
    place = qkv + head * D + d
    past = place + (window * length + t)[:, None] * 3 * W
    query = tl.load(place + (window * length + asking)[:, None] * 3 * W, mask=wanted, other=0.0)
    weights = _attention_weights(query, tl.load(past + W, mask=there, other=0.0), asking, scale, T)
    element = ((window % windows) * H + head) * T * T + asking[:, None] * T + t
    weights = dropped(
        weights, tl.load(salts + window // windows), element, threshold, keep_scale, DROP
    )
    value = tl.load(past + 2 * W, mask=there, other=0.0)
    mixed = tl.dot(weights.to(qkv.dtype.element_ty), value)
    onto = inputs + (window * asked + q)[:, None] * 6 * W + head * D + d
    tl.store(onto, mixed.to(qkv.dtype.element_ty), mask=wanted)


@triton.jit
def attend_backward(qkv, gradient, to_qkv, salts, threshold, keep_scale, scale, length, windows, asked, H: tl.constexpr,
                    W: tl.constexpr, T: tl.constexpr, Q: tl.constexpr, TOKENS: tl.constexpr, ANSWERS: tl.constexpr,
                    PLACES: tl.constexpr, DROP: tl.constexpr):  # fmt: skip
    """The gradient of qkv; what was attended to is computed again."""
    D: tl.constexpr = W // H
    window, head = tl.program_id(0) // H, tl.program_id(0) % H
    t, q, d = tl.arange(0, T), tl.arange(0, Q), tl.arange(0, D)
    there, wanted = (t < length)[:, None], (q < asked)[:, None]
    asking = token_of(q, TOKENS, ANSWERS, PLACES)
    past, asker = (
        (window * length + t)[:, None] * 3 * W,
        (window * length + asking)[:, None] * 3 * W,
    )
    place, onto = qkv + head * D + d, to_qkv + head * D + d
    if ANSWERS < TOKENS:  # who asked nothing
        tl.store(onto + past, tl.zeros((T, D), dtype=qkv.dtype.element_ty), mask=there)
    query, key = (
        tl.load(place + asker, mask=wanted, other=0.0),
        tl.load(place + past + W, mask=there, other=0.0),
    )
    weights = _attention_weights(query, key, asking, scale, T)
    incoming = tl.load(
        gradient + (window * asked + q)[:, None] * W + head * D + d, mask=wanted, other=0.0
    )
    element = ((window % windows) * H + head) * T * T + asking[:, None] * T + t
    salt = tl.load(salts + window // windows)
    used = dropped(weights, salt, element, threshold, keep_scale, DROP)
    to_value = tl.dot(tl.trans(used.to(qkv.dtype.element_ty)), incoming)
    tl.store(onto + past + 2 * W, to_value.to(qkv.dtype.element_ty), mask=there)
    value = tl.load(place + past + 2 * W, mask=there, other=0.0)
    to_used = tl.dot(incoming, tl.trans(value))
    to_weights = dropped(to_used, salt, element, threshold, keep_scale, DROP)
    to_scores = weights * (to_weights - tl.sum(weights * to_weights, 1)[:, None]) * scale
    to_scores = tl.where(wanted, to_scores, 0.0).to(qkv.dtype.element_ty)
    tl.store(
        onto + past + W, tl.dot(tl.trans(to_scores), query).to(qkv.dtype.element_ty), mask=there
    )
    if ANSWERS < TOKENS:
        tl.debug_barrier()  # zeros first
    tl.store(onto + asker, tl.dot(to_scores, key).to(qkv.dtype.element_ty), mask=wanted)
