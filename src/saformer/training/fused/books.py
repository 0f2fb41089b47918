"""What an update measured, added up by one kernel."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _book(values, sums, odd, num_good, bad, size, B: tl.constexpr):
    at = tl.arange(0, B)
    there = at < size
    was_bad, value = tl.load(bad), tl.load(values + at, mask=there, other=0.0)
    is_bad = tl.maximum(
        was_bad, tl.max(tl.where(tl.abs(value) < float("inf"), 0.0, 1.0))
    )  # NaN is below nothing
    known, seen = (
        tl.load(sums + at, mask=there, other=0.0),
        tl.load(odd + at, mask=there, other=0.0),
    )
    tl.store(sums + at, known + tl.where(is_bad > 0, 0.0, value), mask=there)
    tl.store(odd + at, tl.where(was_bad > 0, seen, value), mask=there)
    tl.store(num_good, tl.load(num_good) + 1 - is_bad)
    tl.store(bad, is_bad)


def book(values: Tensor, sums: Tensor, odd: Tensor, num_good: Tensor, bad: Tensor) -> None:
    """Add values [metrics, M] to the sums and count a good update; from the first that is not
    finite on, neither.

    `odd` keeps the values of that one, or of the latest.
    """
    size = values.numel()
    _book[(1,)](values, sums, odd, num_good, bad, size, B=triton.next_power_of_2(size))
