"""Correlations by hand."""

import json
import math

import pytest

from saformer.data.statistics import correlation, is_constant, rank_correlation, without_nan


def test_rank_correlation_by_hand():
    """Seen to fail when ties do not share their rank."""
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 90]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert rank_correlation([1, 1, 2, 2], [1, 2, 3, 4]) == pytest.approx(2 / math.sqrt(5))
    assert math.isnan(rank_correlation([1, 1], [1, 2]))


def test_correlation_by_hand():
    """Deviations (-1, 0, 1) and (-4, -1, 5): 9 / sqrt(2 * 42)."""
    assert correlation([1, 2, 3], [1, 4, 10]) == pytest.approx(9 / math.sqrt(84))
    assert math.isnan(correlation([1, 2, 3], [5, 5, 5]))


def test_rounding_is_no_change():
    """Sums of the same numbers in another order differ in their last digit. Seen to fail without a
    tolerance."""
    rounded = [0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1]
    assert rounded[0] != rounded[1]
    assert is_constant(rounded)
    assert math.isnan(correlation(rounded, [1, 2]))
    assert not is_constant([1.0, 1.001])


def test_without_nan_is_strict_json():
    plain = {"a": [float("nan"), 1.5, (float("inf"), None)], "b": {"c": 2, "d": "nan"}}
    assert without_nan(plain) == {"a": [None, 1.5, [None, None]], "b": {"c": 2, "d": "nan"}}
    json.dumps(without_nan(plain), allow_nan=False)
