"""Costs in hindsight, limits and frontiers, by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest

from saformer.criteria import CostCriterion, Step, criterion, joint_torque, torque
from saformer.data.limits import Frontier, FrontierCurve, Limit, frontier, parse_limit
from saformer.data.relabel import relabel
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory
from tests.editing import unsigned

TrajectoryStore_blocks = TrajectoryStore.blocks
BOX = EnvironmentSpec(action_low=(-1.0, -1.0), action_high=(1.0, 1.0), horizon=5)


def episode(actions, rewards, *, terminated=True, truncated=False) -> Trajectory:
    states = np.arange(float(len(actions)))[:, None]
    return Trajectory.of(
        states, actions, rewards, [99.0], terminated=terminated, truncated=truncated
    )


@pytest.fixture
def store() -> TrajectoryStore:
    return TrajectoryStore.of(
        [
            episode(
                [[0.5, -0.5], [3.0, 0.0], [0.0, 0.25]], [1.0, 2.0, 4.0]
            ),  # costs 1, 1 (clipped from 3), 0.25
            episode(
                [[0.0, 0.0], [-1.0, 1.0]], [5.0, -1.0], terminated=False, truncated=True
            ),  # costs 0, 2
        ],
        BOX,
    )


def test_costs_and_what_is_to_come(store):
    """Seen to fail when actions are costed before they are brought within bounds."""
    data = relabel(store, [torque])
    assert data.cost[:, 0].tolist() == [1.0, 1.0, 0.25, 0.0, 2.0]
    assert data.cost_to_go[:, 0].tolist() == [2.25, 1.25, 0.25, 2.0, 2.0]
    assert data.return_to_go.tolist() == [7.0, 6.0, 4.0, 4.0, -1.0]
    assert data.episode_cost.tolist() == [[2.25], [2.0]]
    assert data.episode_return.tolist() == [7.0, 4.0]


def test_discounted_costs_count_from_the_start_of_the_episode(store):
    """Seen to fail when the discount restarts at every step."""
    data = relabel(store, [torque], cost_discount=0.5)
    assert data.cost_to_go[:, 0].tolist() == [1.5625, 0.5625, 0.0625, 1.0, 1.0]
    assert data.cost[:, 0].tolist() == [1.0, 1.0, 0.25, 0.0, 2.0]


def test_several_criteria_give_several_constraints(store):
    """Seen to fail when the constraint axis comes first."""
    data = relabel(store, [joint_torque(0), joint_torque(1)])
    assert data.episode_cost.tolist() == [[1.5, 0.75], [1.0, 1.0]]


def test_a_criterion_may_read_the_next_state(store):
    """Seen to fail when the last step of a trajectory looks into the next one."""
    reads = frozenset({"state", "next_state"})
    moved = CostCriterion("moved", lambda step: np.abs(step.next_state - step.state)[:, 0], reads)
    assert relabel(store, [moved]).cost[:, 0].tolist() == [1.0, 1.0, 97.0, 1.0, 98.0]


def test_relabelling_in_blocks_and_of_views_changes_nothing(data, monkeypatch):
    """Seen to fail when a view is relabelled as if its trajectories lay end to end on disk."""
    monkeypatch.setattr(TrajectoryStore, "blocks", lambda store: TrajectoryStore_blocks(store, 50))
    again = relabel(data.store, data.criteria)
    assert np.array_equal(again.cost_to_go, data.cost_to_go)
    chosen = np.array([7, 3, 4, 150])
    some = relabel(data.store.filter(chosen), data.criteria)
    assert np.array_equal(some.episode_cost, data.episode_cost[chosen])
    assert np.array_equal(some.cost_to_go[20:40], data.cost_to_go[60:80])


def test_unfinished_trajectories_are_left_out_and_counted(store):
    """Seen to fail when they are kept: what they would have cost is unknown."""
    cut = episode([[1.0, 1.0]], [100.0], terminated=False, truncated=False)
    data = relabel(TrajectoryStore.of([*store, cut], BOX), [torque])
    assert data.num_left_out == 1
    assert data.episode_return.tolist() == [7.0, 4.0]
    with pytest.raises(ValueError, match="no trajectory is finished"):
        relabel(TrajectoryStore.of([cut], BOX), [torque])


@pytest.mark.parametrize(("value", "message"), [(-1.0, "cost of -1"), (np.nan, "NaN or infinite")])
def test_negative_or_missing_costs_are_refused(store, value, message):
    """Seen to fail when the criterion's answer is not checked."""
    bad = CostCriterion("bad", lambda step: np.full(len(step.action), value))
    with pytest.raises(ValueError, match=message):
        relabel(store, [bad])


def test_a_criterion_must_cost_each_step(store):
    with pytest.raises(ValueError, match="one cost per step"):
        relabel(store, [CostCriterion("sum", lambda step: np.abs(step.action))])
    with pytest.raises(ValueError, match="at least one"):
        relabel(store, [])
    with pytest.raises(ValueError, match="cost_discount"):
        relabel(store, [torque], cost_discount=0.0)


def test_criteria_by_name():
    step = Step(action=np.array([0.5, -2.0]))
    assert criterion("torque")(step) == 2.5
    assert criterion("torque[1]")(step) == 2.0
    with pytest.raises(
        ValueError, match="criterion 'heat' reads 'heat', which the data does not offer"
    ):
        criterion("heat")(step)


@pytest.fixture
def many() -> TrajectoryStore:
    """Eleven episodes of costs 0.0, 0.1, ..., 1.0 and returns of ten times that; the dearest one
    earns least."""
    parts = [episode([[k / 10, 0.0]], [float(k)]) for k in range(10)]
    store = TrajectoryStore.of([*parts, episode([[1.0, 0.0]], [-5.0])], BOX)
    return store.with_environment(may_end=True)


def test_limits_by_percentile_and_by_value(many):
    """Seen to fail when percentiles are read as shares."""
    data = relabel(many, [torque])
    assert parse_limit("p10", data).values == (pytest.approx(0.1),)
    assert parse_limit("p50", data).values == (pytest.approx(0.5),)
    assert parse_limit("0.75", data).values == (0.75,)


@pytest.mark.parametrize("text", ["-1", "nan", "inf"])
def test_impossible_limits_are_refused(many, text):
    with pytest.raises(ValueError, match="finite number of at least 0"):
        parse_limit(text, relabel(many, [torque]))


@pytest.mark.parametrize("text", ["ten", "p101", "10%", ""])
def test_what_is_no_limit_is_refused(many, text):
    with pytest.raises(ValueError, match="is not a limit"):
        parse_limit(text, relabel(many, [torque]))


def test_a_limit_outside_the_data_warns_and_names_the_range(many):
    """Seen to fail when the upper end is not checked."""
    with pytest.warns(
        UserWarning, match=r"limit 5 lies outside the data, whose episodes cost 0 to 1"
    ):
        parse_limit("5", relabel(many, [torque]))


def test_limits_per_constraint(many):
    data = relabel(many, [joint_torque(0), joint_torque(1)])
    assert parse_limit("0.2,0", data).values == (0.2, 0.0)
    with pytest.raises(ValueError, match="holds 3 limits, the data has 2"):
        parse_limit("1,2,3", data)


def test_frontier_is_the_mean_of_the_five_best_within_the_limit(many):
    """Seen to fail when trajectories beyond the limit count."""
    data = relabel(many, [torque])
    best = Frontier(best=5.0, worst=-5.0, spread=float(np.ptp(data.episode_return)))
    assert frontier(data, Limit("d", (0.7001,))) == best  # 3, 4, 5, 6, 7
    assert frontier(data, Limit("d", (0.1001,))) == replace(best, best=0.5)  # 0, 1
    assert np.isnan(
        frontier(
            relabel(many, [CostCriterion("one", lambda s: np.ones(11))]), Limit("d", (0.5,))
        ).best
    )


def test_frontier_share_is_capped():
    """Seen to fail when the lowest stored return is not subtracted."""
    reference = Frontier(best=5.0, worst=-5.0)
    assert reference.share(0.0) == 0.5
    assert reference.share(100.0) == 1.25
    assert reference.share(-10.0) == -0.5
    assert reference.share(100.0, cap=np.inf) == 10.5


def test_a_limit_that_leaves_nothing_to_earn_has_no_share():
    """Below 5% of the range of returns. Seen to fail when any span above 0 counts."""
    assert Frontier(best=5.0, worst=0.0, spread=100.0).share(5.0) == 1.0
    assert np.isnan(Frontier(best=4.9, worst=0.0, spread=100.0).share(4.9))


@pytest.fixture
def falling() -> TrajectoryStore:
    """Two episodes of the horizon, of costs 3 and 4, and a cheap one that terminates before."""
    whole = [episode([[cost / 5, 0.0]] * 5, [cost] * 5) for cost in (3.0, 4.0)]
    ends = {"terminated": False, "truncated": True}
    return TrajectoryStore.of(
        [*(replace(each, **ends) for each in whole), episode([[0.5, 0.0]], [7.0])], BOX
    )


def test_where_none_may_end_early_those_that_did_show_nothing(falling):
    """Seen to fail when they are on the frontier, and when they are off it whatever is declared."""
    cheap, loose = Limit("d", (1.0,)), Limit("d", (4.5,))
    data = relabel(falling, [torque])
    assert data.ended_early.tolist() == [False, False, True]
    assert np.isnan(frontier(data, cheap).best)
    assert frontier(data, loose) == Frontier(best=17.5, worst=7.0, spread=13.0)
    assert FrontierCurve.of(data).at(4.5) == frontier(data, loose)
    may = data.with_environment(may_end=True)
    assert frontier(may, cheap).best == 7.0
    assert FrontierCurve.of(may).at(1.0) == frontier(may, cheap)
    assert not data.environment.may_end, "the original stays as it was"


def test_an_episode_that_terminates_at_the_horizon_did_not_end_early(falling):
    """Seen to fail when every terminated episode counts."""
    store = TrajectoryStore.of([episode([[1.0, 0.0]] * 5, [1.0] * 5)], BOX)
    assert store[0].terminated
    assert not store.ended_early.any()


def test_whether_episodes_may_end_travels_with_the_store(falling, tmp_path):
    """Stores that do not say are of episodes that may not. Seen to fail when it is not saved."""
    falling.with_environment(may_end=True).save(tmp_path / "new")
    assert TrajectoryStore.open(tmp_path / "new").environment.may_end
    manifest = tmp_path / "new" / "manifest.json"
    plain = unsigned(manifest)
    del plain["environment"]["may_end"]
    manifest.write_text(json.dumps(plain))
    assert not TrajectoryStore.open(tmp_path / "new").environment.may_end
