"""What an update must compute and move at the least, and what a device can compute and move at the most."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.measure import seconds
from saformer.core.actor import ACTOR_LAYOUT
from saformer.core.batch import Dimensions
from saformer.core.critic import CRITIC_LAYOUT
from saformer.core.tokens import Layout
from saformer.core.transformer import TrunkConfig

PRODUCTS_PER_TOKEN = 12
"""Multiplications of a layer's linear maps for each token, in squared widths: 3 + 1 + 4 + 4."""
FORWARD, BACKWARD = 20, 31
"""Widths that a layer's products read and write for each token: its five products (queries, keys and values; attention
in one; output; up; down), their inputs and outputs forwards, gradients of both and the inputs again backwards."""
SUMS = 8
"""Widths of the sum (float32) that a layer reads and writes for each token: twice in each direction."""


@dataclass(frozen=True)
class Work:
    """What has to be done."""

    operations: float
    """multiplications and additions"""
    bytes: float

    def __add__(self, other: Work) -> Work:
        return Work(self.operations + other.operations, self.bytes + other.bytes)

    def times(self, models: int) -> Work:
        """The same for M packed models: none of them shares weights or windows with another."""
        return Work(models * self.operations, models * self.bytes)


@dataclass(frozen=True)
class Ceilings:
    """What a device does in a second, measured with nothing else to do."""

    operations: float
    """in a large product of matrices"""
    bytes: float
    """read and written in a large copy"""

    def arithmetic_seconds(self, work: Work) -> float:
        """No program is faster if it computes everything."""
        return work.operations / self.operations

    def byte_seconds(self, work: Work) -> float:
        """No program is faster if every product leaves its result in memory; caches may hold small ones."""
        return work.bytes / self.bytes


def update_work(dimensions: Dimensions, config: TrunkConfig, *, window: int, batch: int, element_bytes: int) -> Work:
    """An update of actor and critic: forwards, backwards and AdamW. All but products counts as fused with them.

    `element_bytes` is the size of what blocks compute in: 4 for float32, 2 for bfloat16.
    """
    both = [
        _network_work(dimensions, config, layout, window=window, batch=batch, element_bytes=element_bytes)
        for layout in (ACTOR_LAYOUT, CRITIC_LAYOUT)
    ]
    return both[0] + both[1]


def _network_work(
    dimensions: Dimensions, config: TrunkConfig, layout: Layout, *, window: int, batch: int, element_bytes: int
) -> Work:
    width, length = config.width, len(layout) * window
    tokens = batch * length
    inputs = sum(dimensions.of(kind) for kind in layout.kinds)
    per_layer = 2 * tokens * width * (PRODUCTS_PER_TOKEN * width + 2 * length)
    forward = config.layers * per_layer + 2 * batch * window * inputs * width
    moved = tokens * width * config.layers * ((FORWARD + BACKWARD) * element_bytes + 4 * SUMS)
    parameters = config.layers * PRODUCTS_PER_TOKEN * width**2 + (inputs + dimensions.horizon) * width
    # weights are read in both directions; AdamW reads gradients, weights and two means, and writes the last three
    weights = parameters * (2 * element_bytes + 4 * (1 + 7))
    return Work(3 * forward, moved + weights)


def ceilings(device: str, dtype: torch.dtype) -> Ceilings:
    """Measure both, for products in `dtype`."""
    size, copied = (8192, 2**30) if device != "cpu" else (2048, 2**28)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    source = torch.zeros(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    product = _seconds(lambda: torch.mm(left, right), device)
    copy = _seconds(lambda: target.copy_(source), device)
    return Ceilings(2 * size**3 / product, 2 * copied / copy)


def _seconds(function: Callable[[], Tensor], device: str, *, times: int = 20) -> float:
    if device == "cpu":
        return seconds(function, repeat=5)
    function()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        function()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / times
