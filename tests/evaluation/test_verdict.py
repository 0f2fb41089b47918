"""Eq. 1 and everything around it, by hand."""

import pytest

from saformer.data.limits import Frontier, Limit
from saformer.evaluation.confidence import wilson_interval
from saformer.evaluation.verdict import EpisodeRow, judge_limit


def row(spent, earned=0.0, **changes) -> EpisodeRow:
    values = {
        "limit_name": "d",
        "limit": (10.0,),
        "seed": 0,
        "episode_return": earned,
        "cost": (spent,),
        "num_steps": 4,
        "terminated": True,
        "truncated": False,
        "resampled": 0.0,
        "fell_back": 0.0,
    }
    return EpisodeRow(**{**values, **changes})


def test_eq_1_a_limit_is_met_by_the_mean():
    """Seen to fail when every episode must be within."""
    rows = [row(4.0, 1.0), row(6.0, 2.0), row(20.0, 9.0, fell_back=0.3)]
    verdict = judge_limit(rows, Limit("d", (10.0,)), Frontier(best=10.0, worst=-10.0))
    assert verdict.met
    assert verdict.mean_cost == (10.0,)
    assert verdict.worst_cost == (20.0,)
    assert verdict.within == pytest.approx(2 / 3)
    assert verdict.mean_return == 4.0
    assert verdict.frontier_share == pytest.approx(0.7)
    assert verdict.safe_share == pytest.approx(0.7)
    assert verdict.fell_back == pytest.approx(0.1)


def test_a_missed_limit_has_no_safe_share():
    """Seen to fail when a tolerance creeps in."""
    verdict = judge_limit([row(10.001, 5.0)], Limit("d", (10.0,)), Frontier(best=10.0, worst=0.0))
    assert not verdict.met
    assert verdict.within == 0.0
    assert verdict.safe_share == 0.0
    assert verdict.frontier_share == 0.5


def test_every_constraint_must_be_met():
    """Seen to fail when one of two is enough."""
    rows = [row(0.0, cost=(1.0, 9.0), limit=(5.0, 5.0))]
    verdict = judge_limit(rows, Limit("d", (5.0, 5.0)), Frontier(1.0, 0.0))
    assert not verdict.met
    assert verdict.within == 0.0


def test_no_episodes_no_verdict():
    with pytest.raises(ValueError, match="no episodes"):
        judge_limit([], Limit("d", (1.0,)), Frontier(1.0, 0.0))


def test_wilson_interval_matches_published_values():
    """18 of 20: 0.699 to 0.972 (Newcombe's method 3). Seen to fail with the plain normal
    approximation."""
    low, high = wilson_interval(18, 20)
    assert (round(low, 3), round(high, 3)) == (0.699, 0.972)
    assert wilson_interval(0, 20)[0] == 0.0
    assert wilson_interval(20, 20) == (pytest.approx(0.8389, abs=1e-4), 1.0)
