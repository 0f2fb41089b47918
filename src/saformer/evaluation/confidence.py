"""Confidence bounds: how far a few episodes show that a limit holds."""

import math
from collections.abc import Sequence

import numpy as np

CONFIDENCE = 0.95


def upper_bound(values: Sequence[float], *, confidence: float = CONFIDENCE) -> float:
    """Student's upper bound of the true mean; infinite for fewer than two values."""
    from scipy import stats

    if len(values) < 2:
        return math.inf
    quantile = float(stats.t.ppf(confidence, len(values) - 1))
    return float(np.mean(values)) + quantile * float(np.std(values, ddof=1)) / len(values) ** 0.5


def holds(costs: Sequence[Sequence[float]], limit: Sequence[float]) -> bool:
    """Whether the mean of costs [episodes][C] is surely within the limit [C] of each constraint."""
    by_constraint = zip(zip(*costs, strict=True), limit, strict=True)
    return all(upper_bound(values) <= bound for values, bound in by_constraint)


def violation_bound(violations: int, episodes: int, *, confidence: float = CONFIDENCE) -> float:
    """Clopper and Pearson's upper bound of the true violation rate: under it, so few violations
    have a probability of 1 - confidence."""
    from scipy import stats

    if not 0 <= violations <= episodes or episodes < 1:
        counts = f"{violations} of {episodes}"
        raise ValueError(f"violations are a part of at least one episode, got {counts}")
    if violations == episodes:
        return 1.0
    return float(stats.beta.ppf(confidence, violations + 1, episodes - violations))


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95% interval of the true share, given `successes` out of `trials`."""
    from scipy import stats

    interval = stats.binomtest(successes, trials).proportion_ci(CONFIDENCE, method="wilson")
    return max(0.0, float(interval.low)), min(1.0, float(interval.high))
