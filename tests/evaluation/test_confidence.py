"""Bounds and intervals against tables and against their definitions."""

import math

import pytest

from saformer.evaluation.confidence import upper_bound, violation_bound, wilson_interval

STUDENT = {4: 2.131846786327, 9: 1.833112932653, 19: 1.729132811521}
"""95% quantiles of Student's t, by degrees of freedom, from tables."""


@pytest.mark.parametrize("freedom", STUDENT)
def test_the_bound_of_a_mean_is_students(freedom):
    """Seen to fail with the normal quantile."""
    values = [float(value) for value in range(freedom + 1)]
    num, mean = len(values), sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / freedom)
    expected = mean + STUDENT[freedom] * deviation / math.sqrt(num)
    assert upper_bound(values) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("violations", "episodes"), [(0, 20), (1, 20), (7, 100), (199, 200)])
def test_under_the_bound_so_few_violations_have_a_chance_of_one_in_twenty(violations, episodes):
    """By the binomial sum. Seen to fail when the bound is of both sides."""
    rate = violation_bound(violations, episodes)
    chances = [
        math.comb(episodes, k) * rate**k * (1 - rate) ** (episodes - k)
        for k in range(violations + 1)
    ]
    assert math.fsum(chances) == pytest.approx(0.05, abs=1e-9)


@pytest.mark.parametrize(("successes", "trials"), [(0, 20), (3, 7), (18, 20), (20, 20)])
def test_wilsons_interval_is_where_the_score_test_does_not_reject(successes, trials):
    """|share - p| = z * sqrt(p (1 - p) / n) at both ends. Seen to fail without the correction."""
    share, z = successes / trials, 1.959963984540054
    for end in wilson_interval(successes, trials):
        assert abs(share - end) == pytest.approx(z * math.sqrt(end * (1 - end) / trials), abs=1e-9)
