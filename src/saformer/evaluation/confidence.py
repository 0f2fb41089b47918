"""How sure a few episodes make one that a limit holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.95
BOUND_PRECISION = 1e-10


def upper_bound(values: Sequence[float], *, confidence: float = CONFIDENCE) -> float:
    """What the true mean lies below with this confidence, by Student's t; infinite for fewer than
    two values."""
    if len(values) < 2:
        return math.inf
    margin = (
        student_quantile(confidence, len(values) - 1)
        * float(np.std(values, ddof=1))
        / math.sqrt(len(values))
    )
    return float(np.mean(values)) + margin


def student_quantile(share: float, freedom: int) -> float:
    """Of Student's t: the normal quantile and two terms of its expansion, within 1% from 4 degrees
    of freedom on."""
    z = NormalDist().inv_cdf(share)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def holds(costs: Sequence[Sequence[float]], limit: Sequence[float]) -> bool:
    """Whether the mean cost of episodes [episodes][C] is surely within the limit [C], in every
    constraint."""
    by_constraint = zip(*costs, strict=True)
    return all(upper_bound(one) <= bound for one, bound in zip(by_constraint, limit, strict=True))


def violation_bound(violations: int, episodes: int, *, confidence: float = CONFIDENCE) -> float:
    """What the true violation rate lies below with this confidence: the one-sided bound of Clopper
    and Pearson.

    It is the rate under which so few violations have a probability of 1 - confidence; found by
    bisection.
    """
    if not 0 <= violations <= episodes or episodes < 1:
        raise ValueError(
            f"violations are a part of at least one episode, got {violations} of {episodes}"
        )
    if violations == episodes:
        return 1.0
    low, high = violations / episodes, 1.0
    while high - low > BOUND_PRECISION:
        middle = (low + high) / 2
        is_likely = probability_of_at_most(violations, episodes, middle) > 1 - confidence
        low, high = (middle, high) if is_likely else (low, middle)
    return high


def probability_of_at_most(successes: int, trials: int, share: float) -> float:
    """That a binomial count does not pass `successes`, for a share strictly between 0 and 1."""
    every, factorial = range(successes + 1), math.lgamma(trials + 1)
    ways = [
        factorial - math.lgamma(k + 1) - math.lgamma(trials - k + 1) for k in every
    ]  # logarithms, as all here
    logs = [ways[k] + k * math.log(share) + (trials - k) * math.log1p(-share) for k in every]
    return math.fsum(map(math.exp, logs))
