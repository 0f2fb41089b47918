"""What operators need to launch kernels: salts of dropout, constants, numbers of programs."""

from __future__ import annotations

import triton
from torch import Tensor

from saformer.kernels.parts import salts_kernel

PROGRAMS = 720
"""How many programs keep a large GPU busy while gradients are summed."""


def draw_salts(seeds: Tensor, updates: Tensor, salts: Tensor) -> None:
    """Salts [sites, M] for the next update, in place, of int64 seeds [M]."""
    sites, models = salts.shape
    salts_kernel[(sites,)](seeds, updates, salts, models, M=triton.next_power_of_2(models))
    updates.add_(1)


def dropout_constants(rate: float) -> tuple[int, float]:
    """The hash below which elements are dropped, and the factor of all others."""
    return int(rate * 2**32), 1 / (1 - rate)


def float32_precision(name: str) -> str:
    """How tensor cores multiply float32; the interpreter has none."""
    return "ieee" if triton.knobs.runtime.interpret else name


def num_splits(steps: int, rows: int, columns: int) -> int:
    """Into how many parts the steps are split while gradients are summed, `rows` at a time."""
    return max(1, min(triton.cdiv(PROGRAMS, columns), triton.cdiv(steps, 2 * rows)))
