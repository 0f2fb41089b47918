"""Which limits can this data support? By hand, and every warning heard and not heard."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saformer.criteria import torque
from saformer.data.inspection import Distribution, close_limits, inspect
from saformer.data.limits import Limit, frontier
from saformer.data.relabel import RelabelledStore, relabel
from tests.data.made import made

MANY = [float(k) for k in range(1, 402)]  # p5 = 21, p10 = 41, p50 = 201, p90 = 361


def kinds(data: RelabelledStore, limits: list[Limit] | None = None) -> list[str]:
    return [warning.kind for warning in inspect(data, limits).warnings]


def text(data: RelabelledStore, kind: str) -> str:
    return next(warning.text for warning in inspect(data).warnings if warning.kind == kind)


def test_the_facts_by_hand():
    """Seen to fail when the spread is of the deviation."""
    found = inspect(
        made(MANY, [3 * cost for cost in MANY], lengths=[1, 2, 6] + [4] * 398, num_left_out=2)
    )
    (constraint,) = found.constraints
    assert (found.num_trajectories, found.num_left_out, found.num_steps) == (401, 2, 1601)
    assert found.length == {"min": 1, "median": 4.0, "max": 6}
    assert constraint.criterion == "torque"
    assert constraint.thresholds == {
        "min": 1.0,
        "p10": 41.0,
        "p20": 81.0,
        "p30": 121.0,
        "p50": 201.0,
        "max": 401.0,
    }
    assert constraint.cost.mean == 201.0
    assert constraint.cost.deviation == pytest.approx(math.sqrt((401**2 - 1) / 12))
    assert constraint.relative_spread == pytest.approx((361 - 41) / 201)
    assert constraint.variation == pytest.approx(math.sqrt((401**2 - 1) / 12) / 201)
    assert constraint.correlation == pytest.approx(1.0)
    assert constraint.rank_correlation == pytest.approx(1.0)
    assert found.episode_return.percentiles["p95"] == pytest.approx(3 * 381)
    assert sum(found.episode_return.counts) == 401
    assert found.warnings == ()


def test_what_lies_within_each_limit():
    """Seen to fail when a trajectory that costs just the limit is left out."""
    found = inspect(made(MANY, [3 * cost for cost in MANY]))
    assert [limit.name for limit in found.limits] == [
        "p5",
        "p10",
        "p20",
        "p30",
        "p50",
        "p70",
        "p90",
    ]
    p10 = found.limits[1]
    assert p10.values == (41.0,)
    assert (p10.num_within, p10.share_within) == (41, 41 / 401)
    assert p10.frontier == 3 * 39  # of 37 to 41
    assert p10.median_return == 3 * 21


def test_limits_hold_for_all_constraints_at_once():
    """Seen to fail when one constraint is enough."""
    data = made([(1.0, 9.0), (2.0, 2.0), (9.0, 1.0)], [10.0, 20.0, 30.0])
    found = inspect(data, [Limit("5,5", (5.0, 5.0))])
    assert (found.limits[0].num_within, found.limits[0].median_return) == (1, 20.0)
    assert [constraint.criterion for constraint in found.constraints] == ["torque[0]", "torque[1]"]
    assert found.constraints[0].correlation == pytest.approx(
        -found.constraints[1].correlation, abs=0.1
    )
    with pytest.raises(ValueError, match="'d' has 1 values, the data has 2 constraints"):
        inspect(data, [Limit("d", (5.0,))])


@given(
    episodes=st.lists(
        st.tuples(st.floats(0, 1e5, width=32), st.floats(-1e5, 1e5, width=32), st.integers(1, 3)),
        min_size=1,
        max_size=30,
    )
)
def test_any_data_can_be_inspected(episodes):
    """Strict JSON, every trajectory in the histogram, limits as `frontier` sees them. Seen to fail
    with NaN in it."""
    data = made(
        *(list(column) for column in zip(*[e[:2] for e in episodes], strict=True)),
        lengths=[e[2] for e in episodes],
    )
    found = inspect(data)
    json.dumps(found.plain(), allow_nan=False)
    assert (
        sum(found.constraints[0].cost.counts) == sum(found.episode_return.counts) == len(episodes)
    )
    for limit in found.limits:
        best = frontier(data, Limit(limit.name, limit.values)).best
        np.testing.assert_equal(limit.frontier, best)


def test_values_alike_but_for_rounding_have_a_histogram():
    """Seen to fail when bins are cut between numbers that differ in their last digit."""
    values = np.array([0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1] * 30)
    assert values.min() < values.max()
    assert sum(Distribution.of(values).counts) == 60


def test_the_sample_is_small_and_even():
    """Seen to fail when the first trajectories are taken."""
    sample = inspect(made([float(k) for k in range(4001)], [0.0] * 4000 + [1.0])).sample
    assert len(sample["episode_return"]) == len(sample["episode_cost"]) == 1500
    costs = [cost for (cost,) in sample["episode_cost"]]
    assert (costs[0], costs[-1]) == (0.0, 4000.0)
    assert set(np.diff(costs)) == {2.0, 3.0}


NOISY = [cost + 1000 * (cost % 2) for cost in MANY]
"""Variance 13,400 of cost among 263,400: a correlation of 0.23."""
FAIR = made(MANY, MANY)
"""No warning at all."""


def test_data_without_faults_is_not_warned_of():
    assert kinds(FAIR) == []


@pytest.mark.parametrize(
    ("kind", "faulty", "fair", "says"),
    [
        ("weak_correlation", made(MANY, NOISY), FAIR, "hardly correlated (0.23, at least 0.3"),
        ("weak_correlation", made(MANY, NOISY), made(MANY, MANY[::-1]), "cannot steer the return"),
        (
            "negative_correlation",
            made(MANY, MANY[::-1]),
            made(MANY, NOISY[::-1]),
            "(correlation -1.00)",
        ),
        (
            "small_spread",
            made([1000 + cost / 10 for cost in MANY], MANY),
            made([100 + cost / 10 for cost in MANY], MANY),
            "p10 to p90 is 1004 to 1036 (3.1% of the median). Limits less than 2 apart",
        ),
        (
            "close_limits",
            made([1000 + cost / 10 for cost in MANY], MANY),
            FAIR,
            "p5 = 1002, p10 = 1004, p20 = 1008, p30 = 1012, p50 = 1020, p70 = 1028 and p90 = 1036",
        ),
        ("few_within", made(MANY[:380], MANY[:380]), FAIR, "within p5 = 19.9 (19):"),
        (
            "all_costs_zero",
            made([0.0] * 401, MANY),
            made([0.0] * 400 + [1.0], MANY),
            "Every trajectory costs 0 (torque)",
        ),
        (
            "constant_return",
            made(MANY, [5.0] * 401),
            made(MANY, [5.0] * 400 + [6.0]),
            "Every trajectory earns 5:",
        ),
        (
            "few_trajectories",
            made(MANY[:49], MANY[:49]),
            made(MANY[:50], MANY[:50]),
            "Only 49 trajectories",
        ),
        (
            "many_left_out",
            made(MANY[:360], MANY[:360], num_left_out=41),
            made(MANY[:360], MANY[:360], num_left_out=40),
            "41 of 401 trajectories (10%) are unfinished",
        ),
        (
            "cost_follows_length",
            made(MANY[:60], MANY[:60], lengths=list(range(1, 61))),
            made(MANY[:60], MANY[:60], lengths=[1, 40] * 30),
            "(correlation 1.00, 1 to 60 steps)",
        ),
    ],
)
def test_each_warning_is_heard_and_not_heard(kind, faulty, fair, says):
    """Seen to fail when a threshold is moved to where nothing reaches it."""
    assert kind in kinds(faulty)
    assert says in text(faulty, kind)
    assert kind not in kinds(fair)


def test_one_fault_is_told_once():
    """Costs of zero are neither close, alike nor uncorrelated. Seen to fail when the other checks
    go on."""
    assert kinds(made([0.0] * 401, MANY)) == ["all_costs_zero"]


def test_mostly_zero_costs_are_alike():
    """A median of 0 divides nothing. Seen to fail when a spread of 0 passes."""
    data = made([0.0] * 390 + MANY[:11], MANY)
    assert "small_spread" in kinds(data)
    assert "of the median" not in text(data, "small_spread")
    assert inspect(data).plain()["constraints"][0]["relative_spread"] is None


def test_a_limit_below_all_costs_has_nothing_within():
    found = inspect(FAIR, [Limit("0.5", (0.5,))])
    assert found.plain()["limits"][0] == {
        "name": "0.5",
        "values": [0.5],
        "num_within": 0,
        "share_within": 0.0,
        "frontier": None,
        "median_return": None,
    }
    assert kinds(FAIR, [Limit("0.5", (0.5,))]) == ["few_within"]


def test_close_limits_come_in_chains():
    """Seen to fail when only the first of a chain is compared."""
    limits = [("a", 100.0), ("d", 300.0), ("b", 100.9), ("c", 101.8), ("e", 500.0), ("f", 500.0)]
    assert [[name for name, _ in chain] for chain in close_limits(limits)] == [
        ["a", "b", "c"],
        ["e", "f"],
    ]
    assert close_limits([("a", 100.0), ("b", 101.5)]) == []


def test_discounted_costs_are_inspected_as_discounted(data):
    found = inspect(relabel(data.store, [torque], cost_discount=0.5))
    assert found.cost_discount == 0.5
    assert found.constraints[0].thresholds["max"] < 2.0
