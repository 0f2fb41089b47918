"""What kernels share: dropout and layer norms."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr


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
def dropped(values, salt, index, threshold, scale, DROP: constexpr):
    """Dropout that is a function of the salt and the element, so that it needs no generator."""
    if DROP:
        bits = mixed_bits((index.to(tl.uint32) * 0x9E3779B9) ^ salt.to(tl.uint32))
        values = tl.where(bits >= threshold.to(tl.uint32), values * scale, 0.0)
    return values


@triton.jit
def salts_kernel(seeds, updates, salts, models, M: constexpr):
    """salts [sites, models] of this update; a program for each site."""
    site, m = tl.program_id(0), tl.arange(0, M)
    update = tl.load(updates).to(tl.uint32)
    seed = tl.load(seeds + m, mask=m < models, other=0).to(tl.uint32)
    key = mixed_bits(mixed_bits(seed) + update * 0x9E3779B9)
    bits = mixed_bits(key + site.to(tl.uint32) * 0x9E3779B9)
    tl.store(salts + site * models + m, bits.to(tl.int32, bitcast=True), mask=m < models)


def draw_salts(seeds: Tensor, updates: Tensor, salts: Tensor) -> None:
    """Salts [sites, M] for the next update, in place, of int64 seeds [M]."""
    sites, models = salts.shape
    salts_kernel[(sites,)](seeds, updates, salts, models, M=triton.next_power_of_2(models))
    updates.add_(1)


def dropout_constants(rate: float) -> tuple[int, float]:
    """The hash below which elements are dropped, and the factor of all others."""
    return int(rate * 2**32), 1 / (1 - rate)


@triton.jit
def standardised(x, eps, W: constexpr):
    """Rows of mean 0 and deviation 1, and one over their deviation."""
    centred = x - (tl.sum(x, 1) / W)[:, None]
    rate = 1 / tl.sqrt(tl.sum(centred * centred, 1) / W + eps)
    return centred * rate[:, None], rate


@triton.jit
def layer_norm(x, gain, shift, eps, W: constexpr):
    """Of rows [R, W]; `gain` and `shift` point to [W]."""
    w = tl.arange(0, W)
    standard, _ = standardised(x, eps, W)
    return standard * tl.load(gain + w) + tl.load(shift + w)


@triton.jit
def norm_backward(gradient, gain, normed, rate, W: constexpr):
    """Through a layer norm: the gradient of its input."""
    scaled = gradient * gain[None, :]
    mean = tl.sum(scaled, 1) / W
    along = tl.sum(scaled * normed, 1) / W
    return (scaled - mean[:, None] - normed * along[:, None]) * rate[:, None]
