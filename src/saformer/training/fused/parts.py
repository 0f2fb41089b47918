"""What the kernels share: dropout, layer norms, and where in a window the answers stand."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mixed_bits(h):
    """murmur3's finaliser: every bit of the result depends on every bit of h (uint32)."""
    h ^= h >> 16
    h *= 0x85EBCA6B
    h ^= h >> 13
    h *= 0xC2B2AE35
    h ^= h >> 16
    return h


@triton.jit
def dropped(values, salt, index, threshold, scale, DROP: tl.constexpr):
    """Dropout: what is kept is a function of the salt and the element, `kept` of the tests' reference."""
    if DROP:
        bits = mixed_bits((index.to(tl.uint32) * 0x9E3779B9) ^ salt.to(tl.uint32))
        values = tl.where(bits >= threshold.to(tl.uint32), values * scale, 0.0)
    return values


@triton.jit
def draw_salts(seeds, updates, salts, models, M: tl.constexpr):
    """salts [places, M] of this update, `salts_of` of the tests' reference; a program for each place."""
    place, m = tl.program_id(0), tl.arange(0, M)
    update = tl.load(updates).to(tl.uint32)
    key = mixed_bits(
        mixed_bits(tl.load(seeds + m, mask=m < models, other=0).to(tl.uint32)) + update * 0x9E3779B9
    )
    bits = mixed_bits(key + place.to(tl.uint32) * 0x9E3779B9)
    tl.store(salts + place * models + m, bits.to(tl.int32, bitcast=True), mask=m < models)


@triton.jit
def standardised(x, eps, W: tl.constexpr):
    """Rows of mean 0 and deviation 1, and one over their deviation."""
    centred = x - (tl.sum(x, 1) / W)[:, None]
    rate = 1 / tl.sqrt(tl.sum(centred * centred, 1) / W + eps)
    return centred * rate[:, None], rate


@triton.jit
def norm_backward(gradient, gain, normed, rate, W: tl.constexpr):
    """Through a layer norm: the gradient of what came in."""
    scaled = gradient * gain[None, :]
    mean = tl.sum(scaled, 1) / W
    along = tl.sum(scaled * normed, 1) / W
    return (scaled - mean[:, None] - normed * along[:, None]) * rate[:, None]


@triton.jit
def token_of(answer, TOKENS: tl.constexpr, ANSWERS: tl.constexpr, PLACES: tl.constexpr):
    """The token at which an answer is given: each step has TOKENS of them, and ANSWERS at the hex
    digits of PLACES."""
    token = answer
    if ANSWERS < TOKENS:
        token = answer // ANSWERS * TOKENS + ((PLACES >> (4 * (answer % ANSWERS))) & 15)
    return token


@triton.jit
def answer_of(token, TOKENS: tl.constexpr, ANSWERS: tl.constexpr, PLACES: tl.constexpr):
    """The other way round, and whether there is one."""
    answer, is_one = token, token >= 0
    if ANSWERS < TOKENS:
        place = token % TOKENS
        rank, is_one = tl.zeros_like(token), token < 0
        for number in tl.static_range(ANSWERS):
            here = place == ((PLACES >> (4 * number)) & 15)
            rank, is_one = tl.where(here, number, rank), is_one | here
        answer = token // TOKENS * ANSWERS + rank
    return answer, is_one
