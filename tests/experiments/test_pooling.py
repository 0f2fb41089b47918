"""Cells of several seeds, by hand."""

import numpy as np
import pytest

from saformer.experiments.pooling import (
    mean_interval,
    nothing_rows,
    nothing_tally,
    our_cells,
    paper_cells,
    pooled,
    tally,
)
from saformer.experiments.published import published_cell


def row(seed, costs, returns, *, share=0.5, limit=10.0):
    return {
        **{"dataset": "d", "seed": seed, "limit_name": "p10", "limit": limit},
        **{"costs": costs, "returns": returns, "frontier_share": share},
    }


def test_seeds_are_pooled():
    """Seen to fail when one seed speaks for all."""
    cell = pooled(
        [row(0, [8.0, 9.0], [1.0, 3.0]), row(1, [11.0, 10.0], [5.0, 7.0], share=0.7)],
        limit_name="p10",
    )
    assert (cell.cost.mean, cell.episode_return.mean) == (9.5, 4.0)
    assert cell.met
    assert cell.within == 0.75
    assert cell.share == pytest.approx(0.6)
    assert pooled([row(0, [10.0], [1.0])], limit_name="p10").met, (
        "a limit is met when it is reached"
    )
    missed = pooled([row(0, [10.0, 10.1], [1.0, 1.0])], limit_name="p10")
    assert not missed.met
    assert missed.safe_share == 0.0
    assert pooled([], limit_name="p10") is None


def test_intervals_hold_the_mean_and_widen_with_seeds_that_differ():
    """Seen to fail when episodes of all seeds are resampled as if they were one seed's."""
    draw = np.random.default_rng(1)
    alike = draw.normal(size=(3, 20))
    apart = alike + np.array([[-5.0], [0.0], [5.0]])
    near, far = mean_interval(alike), mean_interval(apart)
    assert near.low < near.mean < near.high
    assert far.high - far.low > 8
    exact = 1.96 * alike[:1].std(ddof=1) / np.sqrt(20)
    one = mean_interval(alike[:1])
    assert (one.high - one.low) / 2 == pytest.approx(exact, rel=0.1)


def test_cells_are_marked_for_readers_without_colours():
    met = our_cells(pooled([row(0, [9.0], [1.0])], limit_name="p10"))
    assert met[1] == ("9 [9, 9]", "safe")
    by_mean = our_cells(pooled([row(0, [2.0, 11.0], [1.0, 1.0])], limit_name="p10"))
    assert by_mean[1][1] == "met", "half of the episodes are not within"
    assert our_cells(None)[0] == "missing"
    theirs = paper_cells(published_cell(7, dataset="hopper-medium-replay", limit_name="p10"))
    assert theirs == [("50 ± 3.95 / 35", "missed"), "39.3 ± 6.35"]


def test_where_no_episode_may_end_early_those_that_did_are_not_within():
    """Seen to fail when costs alone decide, and when rows of older versions cannot be read."""
    early = {"ended_early": [True, False], "data_ended_early": 0.01}
    rows = [{**row(0, [8.0, 9.0], [1.0, 3.0]), **early, "may_end": False}]
    cell = pooled(rows)
    assert (cell.met, cell.within, cell.ended) == (False, 0.5, "50% (1%)")
    may = pooled([{**rows[0], "may_end": True}])
    assert (may.met, may.within) == (True, 1.0)
    assert pooled([row(0, [8.0, 9.0], [1.0, 3.0])]).ended == "0% (-)"


def test_doing_nothing_is_a_row_of_its_own():
    """Once for each cell, however many policies stand beside it. Seen to fail without that."""
    nothing = {"costs": [0.0], "returns": [-1.0], "ended_early": [False], "frontier_share": 0.0}
    rows = [
        {**row(seed, [9.0], [1.0]), "variant": way, "nothing": nothing}
        for seed in (0, 1)
        for way in ("critic", "no critic")
    ]
    idle = nothing_rows(rows)
    assert [(each["variant"], each["seed"]) for each in idle] == [
        ("doing nothing", 1),
        ("doing nothing", 0),
    ]
    assert nothing_tally(rows, [{"limit_name": "p10"}])[0][:2] == ["doing nothing", "1 of 1"]
    assert nothing_tally([row(0, [9.0], [1.0])], [{"limit_name": "p10"}]) == [], "older rows"


def test_a_tally_counts_what_was_found():
    """Seen to fail when shares are counted where the limit was missed."""
    found = [
        pooled([row(0, [9.0], [1.0], share=1.0)]),
        pooled([row(0, [12.0], [1.0], share=0.8)]),
        None,
    ]
    assert tally("all", found) == [
        "all",
        "1 of 2",
        "-",
        "50%",
        "0% (-)",
        "0.90",
        "0.90",
        "0.50",
    ]
