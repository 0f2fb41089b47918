"""How sure a few episodes make one that a limit holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.95


def upper_bound(values: Sequence[float], *, confidence: float = CONFIDENCE) -> float:
    """What the true mean lies below with this confidence, by Student's t; infinite for fewer than two values."""
    if len(values) < 2:
        return math.inf
    margin = student_quantile(confidence, len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)) + margin


def student_quantile(share: float, freedom: int) -> float:
    """Of Student's t: the normal quantile and two terms of its expansion, within 1% from 4 degrees of freedom on."""
    z = NormalDist().inv_cdf(share)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def holds(costs: Sequence[Sequence[float]], limit: Sequence[float]) -> bool:
    """Whether the mean cost of episodes [episodes][C] is surely within the limit [C], in every constraint."""
    by_constraint = zip(*costs, strict=True)
    return all(upper_bound(one) <= bound for one, bound in zip(by_constraint, limit, strict=True))
