"""Metrics of an update, added up by one kernel."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _metrics_kernel(values, sums, latest, num_good, bad, size, B: tl.constexpr):
    at = tl.arange(0, B)
    there = at < size
    was_bad, value = tl.load(bad), tl.load(values + at, mask=there, other=0.0)
    is_infinite = tl.where(tl.abs(value) < float("inf"), 0.0, 1.0)  # NaN is below nothing
    is_bad = tl.maximum(was_bad, tl.max(is_infinite))
    total = tl.load(sums + at, mask=there, other=0.0)
    before = tl.load(latest + at, mask=there, other=0.0)
    tl.store(sums + at, total + tl.where(is_bad > 0, 0.0, value), mask=there)
    tl.store(latest + at, tl.where(was_bad > 0, before, value), mask=there)
    tl.store(num_good, tl.load(num_good) + 1 - is_bad)
    tl.store(bad, is_bad)


def add_metrics(
    values: Tensor, sums: Tensor, latest: Tensor, num_good: Tensor, bad: Tensor
) -> None:
    """Add values [metrics, M] to the sums and count a good update, until one is not finite.

    `latest` keeps the values of the first update that is not finite, or of the latest.
    """
    size = values.numel()
    _metrics_kernel[(1,)](values, sums, latest, num_good, bad, size, B=triton.next_power_of_2(size))
