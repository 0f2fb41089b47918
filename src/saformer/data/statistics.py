"""Correlations, percentiles, and numbers as strict JSON holds them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

ROUNDING = 1e-9  # Relative difference below which sums of float32 values count as the same
PERCENTILES = tuple(range(5, 100, 5))


def correlation(first: ArrayLike, second: ArrayLike) -> float:
    """Pearson's. NaN if one never changes."""
    if is_constant(first) or is_constant(second):
        return float("nan")
    matrix = np.atleast_2d(np.corrcoef(np.array([first, second], dtype=np.float64)))
    return float(matrix[0, 1])


def rank_correlation(first: ArrayLike, second: ArrayLike) -> float:
    """Spearman's: equal values share their mean rank. NaN if one never changes."""
    from scipy.stats import rankdata

    if is_constant(first) or is_constant(second):
        return float("nan")
    return correlation(rankdata(first), rankdata(second))


def is_constant(values: ArrayLike) -> bool:
    """Whether all values are the same, but for rounding."""
    array = np.asarray(values, dtype=np.float64)
    return bool(np.ptp(array) <= ROUNDING * np.abs(array).max())


def mean_known(values: Sequence[float]) -> float:
    """The mean of those that are not NaN; NaN if all are."""
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


def percentiles(values: ArrayLike, percents: Sequence[int] = PERCENTILES) -> dict[str, float]:
    """{"p5": ..., "p10": ..., ..., "p95": ...} of a value per trajectory."""
    results = np.percentile(np.asarray(values), percents).tolist()
    return {f"p{percent}": value for percent, value in zip(percents, results, strict=True)}


def without_nan(plain: Any) -> Any:
    """The same, with None wherever a number is not finite: strict JSON knows no NaN."""
    if isinstance(plain, dict):
        return {key: without_nan(value) for key, value in plain.items()}
    if isinstance(plain, list | tuple):
        return [without_nan(value) for value in plain]
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain
