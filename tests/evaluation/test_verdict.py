"""Eq. 1 and everything around it, by hand."""

import numpy as np
import pytest

from saformer.data.limits import Frontier, Limit
from saformer.evaluation.confidence import wilson_interval
from saformer.evaluation.verdict import Endings, EpisodeRow, judge_limit


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


def endings(num_early: int, of_data: float, *, may_end: bool = False):
    """The verdict on 100 cheap episodes, of which so many ended early."""
    early = [row(1.0, ended_early=index < num_early, may_end=may_end) for index in range(100)]
    frontier = Frontier(best=1.0, worst=0.0)
    return judge_limit(early, Limit("d", (10.0,)), frontier, Endings(may_end, of_data))


@pytest.mark.parametrize(
    ("num_early", "of_data", "met"),
    [
        *((2, 0.0, True), (3, 0.0, False), (7, 0.05, True), (8, 0.05, False)),
        *((10, 0.5, True), (11, 0.5, False), (2, np.nan, True), (3, np.nan, False)),
    ],
)
def test_where_no_episode_may_end_a_limit_is_met_if_hardly_more_do_than_in_the_data(
    num_early, of_data, met
):
    """Its share and 2 points, never above 10%; 0 where it is unknown. Seen to fail without each."""
    verdict = endings(num_early, of_data)
    assert verdict.met is met
    assert verdict.ended_early == num_early / 100
    assert verdict.within == pytest.approx(1 - num_early / 100)
    assert verdict.num_violations == num_early


def test_where_episodes_may_end_eq_1_alone_decides():
    """Seen to fail when endings count whatever is declared."""
    verdict = endings(100, 0.0, may_end=True)
    assert verdict.met
    assert verdict.within == 1.0
    assert verdict.ended_early == 1.0


def test_a_limit_with_nothing_to_earn_counts_for_no_share():
    """Met or missed. Seen to fail when a missed one counts as 0."""
    nothing = Frontier(best=1.0, worst=0.0, spread=100.0)
    for cost in (1.0, 11.0):
        verdict = judge_limit([row(cost, 1.0)], Limit("d", (10.0,)), nothing)
        assert np.isnan(verdict.frontier_share)
        assert np.isnan(verdict.safe_share)


def test_the_uncapped_share_stands_beside():
    verdict = judge_limit([row(1.0, 30.0)], Limit("d", (10.0,)), Frontier(best=10.0, worst=0.0))
    assert (verdict.frontier_share, verdict.uncapped_share) == (1.25, 3.0)


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
