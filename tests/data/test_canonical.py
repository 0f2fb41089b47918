"""What is frozen stays, and reads as it was written."""

import json
from dataclasses import replace

import numpy as np
import pytest

from saformer.criteria import criterion, torque
from saformer.data.canonical import CanonicalBuild, canonical, frontier_of, parse_builds
from saformer.data.limits import Limit, frontier
from saformer.data.relabel import relabel, relabelled
from saformer.envs.plants import ROOM
from saformer.envs.tasks import find_task, load_data, task_names
from tests.data.made import made

HUNDRED_AND_ONE = [float(k) for k in range(101)]


@pytest.fixture
def build() -> CanonicalBuild:
    """Costs 0 to 100; returns twice as much."""
    return CanonicalBuild.of(made(HUNDRED_AND_ONE, [2 * cost for cost in HUNDRED_AND_ONE]))


def test_facts_of_a_build(build):
    assert (build.num_trajectories, build.num_steps) == (101, 101)
    assert (build.return_min, build.return_mean, build.return_max) == (0.0, 100.0, 200.0)
    assert build.thresholds == {
        "min": 0.0,
        "p10": 10.0,
        "p20": 20.0,
        "p30": 30.0,
        "p50": 50.0,
        "max": 100.0,
    }
    assert list(build.percentiles) == [f"p{percent}" for percent in range(5, 100, 5)]
    assert build.percentiles["p95"] == pytest.approx(95.0)
    assert build.correlation == pytest.approx(1.0)
    assert build.frontier.at(50.0).best == 96.0  # 92, 94, 96, 98, 100


def test_a_frozen_build_reads_as_it_was_written(data):
    """Seen to fail when costs are rounded: the frontier at a stored cost must be that of the
    data."""
    text = json.dumps({"allowance": CanonicalBuild.of(data).plain()}, allow_nan=False)
    kept = parse_builds(text)["allowance"]
    assert kept == CanonicalBuild.of(data)
    for cost in data.episode_cost[:20, 0]:
        assert kept.frontier.at(cost) == frontier(data, Limit("d", (float(cost),)))


def test_an_unknown_correlation_is_kept_as_unknown():
    found = CanonicalBuild.of(made([1.0, 2.0], [5.0, 5.0]))
    assert found.plain()["correlation"] is None
    assert np.isnan(CanonicalBuild.from_plain(found.plain()).correlation)


def test_only_the_store_s_own_cost_is_frozen_undiscounted(data, two_cost_data):
    """Seen to fail when a discount or another criterion goes unnoticed."""
    discounted = relabel(data.store, [torque], cost_discount=0.9)
    for bad in (discounted, two_cost_data, relabel(data.store, [criterion("energy")])):
        with pytest.raises(ValueError, match="store's own criterion"):
            CanonicalBuild.of(bad)


def test_a_plant_is_frozen_under_its_own_cost():
    """Seen to fail when frontiers are those of torque, whatever the store names."""
    data = relabelled(ROOM.logs(episodes=30), (), 1.0)
    assert CanonicalBuild.of(data).criterion == ROOM.criterion
    limit = Limit("p50", (canonical(ROOM.name).thresholds["p50"],))
    frozen = frontier_of(ROOM.name, data, limit)
    assert frozen == canonical(ROOM.name).frontier.at(limit.values[0]) != frontier(data, limit)
    by_torque, limit = relabel(data.store, [torque]), Limit("60", (60.0,))
    assert frontier_of(ROOM.name, by_torque, limit) == frontier(by_torque, limit)


def test_what_the_package_has_frozen():
    """A task without an entry has none; an entry has the task's canonical size."""
    assert canonical("no-such-task") is None
    frozen = {name: canonical(name) for name in task_names()}
    for name, build in frozen.items():
        assert build is None or build.num_steps >= find_task(name).steps


FROZEN = [name for name in task_names() if name != "allowance"]


def test_every_task_but_the_toy_is_frozen():
    """Seen to fail when effort tasks are forgotten."""
    assert len(FROZEN) == 15
    for name in FROZEN:
        build = canonical(name)
        assert build is not None
        values = list(build.thresholds.values())
        assert values == sorted(values)
        assert build.num_steps >= find_task(name).steps
        assert build.frontier.worst == build.return_min
        assert build.frontier.at(build.thresholds["max"]).best <= build.return_max
        assert np.isnan(build.frontier.at(build.thresholds["min"] - 1).best)


def test_policies_of_the_nine_are_held_against_the_canonical_build(data):
    """Whatever data they were trained on. Seen to fail when the run's own data is the yardstick."""
    name, limit = "hopper-medium", Limit("700", (700.0,))
    assert frontier_of(name, data, limit) == canonical(name).frontier.at(700.0)
    assert frontier_of("allowance", data, limit) == frontier(data, limit)
    energy = criterion("energy")
    for criteria in ((energy,), (*data.criteria, energy)):
        assert frontier_of(name, replace(data, criteria=criteria), limit) == frontier(data, limit)
    assert frontier_of(name, replace(data, cost_discount=0.9), limit) == frontier(data, limit)
    whole = data.with_environment(may_end=False)
    assert frontier_of(name, whole, limit) == frontier(whole, limit), "frozen for the other setting"


@pytest.mark.long
@pytest.mark.parametrize("name", FROZEN)
def test_canonical_builds_can_be_made_again(name):
    """Where the simulator is the one they were made with."""
    frozen = canonical(name)
    store = load_data(find_task(name))
    if store.provenance["versions"] != frozen.versions:
        pytest.skip(f"frozen with {frozen.versions}")
    assert CanonicalBuild.of(relabelled(store, (), 1.0)) == frozen
