"""The threshold table, and the frontier at every limit at once."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saformer.data.limits import FrontierCurve, Limit, frontier, thresholds
from tests.data.made import made


def test_thresholds_are_the_papers_columns():
    """Seen to fail when the median is left out."""
    data = made([(float(k), 10.0 * k) for k in range(101)], [0.0] * 101)
    first, second = thresholds(data)
    assert first == {"min": 0.0, "p10": 10.0, "p20": 20.0, "p30": 30.0, "p50": 50.0, "max": 100.0}
    assert list(second.values()) == pytest.approx([0.0, 100.0, 200.0, 300.0, 500.0, 1000.0])


def test_a_curve_by_hand():
    """Costs 1, 2, 2, 3 and 4 to 7 after them; the dearest earns least.

    Seen to fail when trajectories of the same cost are not counted together.
    """
    data = made([1, 2, 2, 3, 4, 5, 6, 7], [10, 20, 60, 30, 0, 5, 50, -9])
    curve = FrontierCurve.of(data)
    # 10 | 10, 20, 60 | and 30: again 30, no step | and 0 | 5 replaces 0 | 50 replaces 5 | -9
    # changes nothing
    assert curve.cost == (1.0, 2.0, 4.0, 5.0, 6.0)
    assert curve.best == (10.0, 30.0, 24.0, 25.0, 34.0)
    assert curve.worst == -9.0
    assert curve.at(2.0).best == 30.0
    assert curve.at(1.999).best == 10.0
    assert curve.at(1e9).best == 34.0
    assert np.isnan(curve.at(0.5).best)


COSTS = st.one_of(
    st.integers(0, 12), st.floats(0, 12, width=32)
)  # whole numbers for ties, others for rounding
EPISODES = st.lists(st.tuples(COSTS, st.floats(-1e6, 1e6, width=32)), min_size=1, max_size=40)


@given(episodes=EPISODES, asked=st.floats(0, 13))
def test_a_curve_is_the_frontier_at_every_limit(episodes, asked):
    """At every stored cost and elsewhere, ties included, to the last bit, and after a round through
    JSON.

    Seen to fail when the sixth best counts, and when costs are rounded on their way to JSON.
    """
    costs, returns = zip(*episodes, strict=True)
    data = made(costs, returns)
    curve = FrontierCurve.of(data)
    kept = FrontierCurve.from_plain(json.loads(json.dumps(asdict(curve))))
    assert kept == curve
    for limit in (asked, *map(float, costs)):
        expected, found = frontier(data, Limit("d", (limit,))), kept.at(limit)
        np.testing.assert_equal((found.best, found.worst), (expected.best, expected.worst))


@given(episodes=EPISODES)
def test_a_curve_keeps_changes_only(episodes):
    """Seen to fail when steps of equal height are kept."""
    curve = FrontierCurve.of(made(*zip(*episodes, strict=True)))
    assert all(earlier < later for earlier, later in zip(curve.cost, curve.cost[1:], strict=False))
    assert all(earlier != later for earlier, later in zip(curve.best, curve.best[1:], strict=False))


def test_a_curve_is_of_one_constraint():
    """Seen to fail when the first constraint is always taken."""
    data = made([(1.0, 7.0), (2.0, 5.0)], [10.0, 20.0])
    assert FrontierCurve.of(data, constraint=1).cost == (5.0, 7.0)
    assert FrontierCurve.of(data, constraint=1).best == (20.0, 15.0)


@pytest.mark.parametrize(("cost", "best"), [((2.0, 1.0), (1.0, 2.0)), ((1.0,), ())])
def test_a_damaged_curve_is_refused(cost, best):
    with pytest.raises(ValueError, match=r"must rise|one value per cost"):
        FrontierCurve(cost, best, worst=0.0)
