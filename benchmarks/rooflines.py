"""What updates and decisions must compute and move at the least, and what a device can at the
most."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.measure import seconds
from saformer.core.batch import Dimensions
from saformer.core.model import ACTOR_LAYOUT, CRITIC_LAYOUT
from saformer.core.tokens import Layout
from saformer.core.transformer import TrunkConfig

PRODUCTS_PER_TOKEN = 12
"""Multiplications of a layer's linear maps for each token, in squared widths: 3 + 1 + 4 + 4."""
FORWARD, BACKWARD = 20, 31
"""Widths that a layer's products read and write for each token: its five products (queries, keys
and values; attention in one; output; up; down), their inputs and outputs forwards, gradients of
both and the inputs again backwards."""
SUMS = 8
"""Widths of the sum (float32) that a layer reads and writes for each token: twice in each
direction."""


FLOAT32 = 4
"""Bytes of a float32, which decisions are computed in."""


@dataclass(frozen=True)
class Work:
    """What has to be done."""

    operations: float
    """multiplications and additions of matrix products; everything else is small beside them"""
    bytes: float
    """if each product reads its operands and writes its result once, and all else happens on the
    way"""

    def __add__(self, other: Work) -> Work:
        return Work(self.operations + other.operations, self.bytes + other.bytes)

    def times(self, count: float) -> Work:
        """The same for so many packed models, layers or rounds: none of them shares anything with
        another."""
        return Work(count * self.operations, count * self.bytes)


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
        """No program is faster if every product leaves its result in memory; caches may hold small
        ones."""
        return work.bytes / self.bytes


def update_work(
    dimensions: Dimensions, config: TrunkConfig, *, window: int, batch: int, element_bytes: int
) -> Work:
    """An update of actor and critic: forwards, backwards and AdamW. All but products counts as
    fused with them.

    `element_bytes` is the size of what blocks compute in: 4 for float32, 2 for bfloat16.
    """
    both = [
        _network_work(
            dimensions, config, layout, window=window, batch=batch, element_bytes=element_bytes
        )
        for layout in (ACTOR_LAYOUT, CRITIC_LAYOUT)
    ]
    return both[0] + both[1]


def _network_work(
    dimensions: Dimensions,
    config: TrunkConfig,
    layout: Layout,
    *,
    window: int,
    batch: int,
    element_bytes: int,
) -> Work:
    width, length = config.width, len(layout) * window
    tokens = batch * length
    inputs = sum(dimensions.of(kind) for kind in layout.kinds)
    per_layer = 2 * tokens * width * (PRODUCTS_PER_TOKEN * width + 2 * length)
    forward = config.layers * per_layer + 2 * batch * window * inputs * width
    moved = tokens * width * config.layers * ((FORWARD + BACKWARD) * element_bytes + 4 * SUMS)
    parameters = (
        config.layers * PRODUCTS_PER_TOKEN * width**2 + (inputs + dimensions.horizon) * width
    )
    # weights are read in both directions; AdamW reads gradients, weights and two means, and writes
    # the last three
    weights = parameters * (2 * element_bytes + 4 * (1 + 7))
    return Work(3 * forward, moved + weights)


def block(width: int, *, tokens: float, answering: float, seen: float) -> Work:
    """One block over `tokens` tokens, of which `answering` are asked for an output and look at
    `seen` others."""
    projected = Work(2 * 3 * width**2 * tokens, FLOAT32 * (4 * width * tokens + 3 * width**2))
    attended = Work(2 * 2 * width * seen * answering, FLOAT32 * 2 * (seen + width) * answering)
    answered = Work(2 * 9 * width**2 * answering, FLOAT32 * (12 * width * answering + 9 * width**2))
    return projected + attended + answered


def reading(config: TrunkConfig, *, lanes: int, window: int) -> Work:
    """Both networks read each lane's past once; of the last block only the last answer is
    needed."""
    work = Work(0, 0)
    for length in prefixes(window):
        inner = block(config.width, tokens=lanes * length, answering=lanes * length, seen=length)
        work += inner.times(config.layers - 1) + block(
            config.width, tokens=lanes * length, answering=lanes, seen=length
        )
    return work


def one_round(config: TrunkConfig, *, lanes: int, candidates: int, window: int) -> Work:
    """Two tokens per candidate through the actor, one through the critic, all of which see the
    past."""
    work = Work(0, 0)
    for length, own in zip(prefixes(window), (2, 1), strict=True):
        count, seen = lanes * candidates, length + own
        past = Work(0, FLOAT32 * 2 * config.width * length * lanes)  # keys and values
        inner = block(config.width, tokens=own * count, answering=own * count, seen=seen) + past
        last = block(config.width, tokens=own * count, answering=count, seen=seen) + past
        work += inner.times(config.layers - 1) + last
    return work


def naive(config: TrunkConfig, *, lanes: int, candidates: int, window: int) -> Work:
    """Every candidate's whole window through both networks, and one window more per lane for the
    expected return."""
    work = Work(0, 0)
    for kinds, windows in ((len(ACTOR_LAYOUT), candidates + 1), (len(CRITIC_LAYOUT), candidates)):
        tokens = lanes * windows * kinds * window
        work += block(config.width, tokens=tokens, answering=tokens, seen=kinds * window).times(
            config.layers
        )
    return work


def prefixes(window: int) -> tuple[int, int]:
    """Tokens that actor and critic have read when candidates are proposed."""
    past = window - 1
    actor = len(ACTOR_LAYOUT) * past + len(ACTOR_LAYOUT.before("return_to_go"))
    return actor, len(CRITIC_LAYOUT) * past + len(CRITIC_LAYOUT.before("action"))


def ceilings(device: str, dtype: torch.dtype) -> Ceilings:
    """Measure both, for products in `dtype`."""
    size, copied = (8192, 2**30) if device != "cpu" else (2048, 2**28)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    source = torch.zeros(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    product = _seconds(lambda: torch.mm(left, right), device)
    copy = _seconds(lambda: target.copy_(source), device)
    return Ceilings(2 * size**3 / product, 2 * copied / copy)


def float32_ceilings(device: str) -> Ceilings:
    """Measure both, for products that keep float32's digits: by tensor cores in three passes where
    that is faster."""
    plain = ceilings(device, torch.float32)
    if device == "cpu":
        return plain
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return replace(
            plain, operations=max(plain.operations, ceilings(device, torch.float32).operations / 3)
        )
    finally:
        torch.set_float32_matmul_precision(before)


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
