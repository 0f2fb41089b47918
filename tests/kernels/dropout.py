"""The kernels' dropout in plain PyTorch: a function of a run's seed, of the update, of the site in
the network and of the element.

It needs no generator, so a run drops the same whether it is trained alone or packed beside others.
"""

from __future__ import annotations

import torch
from torch import Tensor

GOLDEN = 0x9E3779B9
WORD = 0xFFFFFFFF


def mixed(bits: Tensor) -> Tensor:
    """murmur3's finaliser: every bit of the result depends on every bit that came in (int64 that
    holds 32 bits)."""
    bits = bits ^ (bits >> 16)
    bits = (bits * 0x85EBCA6B) & WORD
    bits = bits ^ (bits >> 13)
    bits = (bits * 0xC2B2AE35) & WORD
    return bits ^ (bits >> 16)


def keys_of(seeds: Tensor, update: int | Tensor) -> Tensor:
    """A key per model for this update: int64 seeds [M], update [] -> [M]."""
    return mixed((mixed(seeds & WORD) + update * GOLDEN) & WORD)


def salts_of(keys: Tensor, first: int, count: int) -> Tensor:
    """A salt for each of `count` places in a network: [count, M], 32 bits each."""
    places = torch.arange(first, first + count, device=keys.device)[:, None]
    return _as_int32(mixed((keys + places * GOLDEN) & WORD))


def survives(salt: Tensor, index: Tensor, rate: float) -> Tensor:
    """Whether elements survive, given the salt of their place and their number within their
    model."""
    return mixed(((index * GOLDEN) & WORD) ^ (salt.long() & WORD)) >= threshold_of(rate)


def threshold_of(rate: float) -> int:
    """Hashes below it are dropped."""
    return int(rate * 2**32)


def _as_int32(bits: Tensor) -> Tensor:
    return torch.where(bits >= 2**31, bits - 2**32, bits).to(torch.int32)
