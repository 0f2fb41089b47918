"""Allowance, costs in environments, tasks and rollouts."""

import gymnasium
import numpy as np
import pytest
import torch

from saformer.criteria import torque
from saformer.data.relabel import relabel
from saformer.data.store import EnvironmentSpec
from saformer.envs import allowance
from saformer.envs.costed import Costed, make, make_by_id
from saformer.envs.rollout import rollout
from saformer.envs.tasks import find_task, load_data, task_names


def test_allowance_is_as_defined():
    """Seen to fail when the reward forgets the price."""
    environment = make(allowance.dataset(episodes=1).environment, allowance.criteria())
    state, _ = environment.reset(seed=0)
    assert state.tolist() == [1.0, 1.0]
    earned, ended = [], []
    for _ in range(20):
        _, reward, terminated, truncated, info = environment.step(np.array([-0.5]))
        earned.append(reward)
        ended.append(terminated or truncated)
        assert info["cost"].tolist() == [0.5]
    assert earned[1] == pytest.approx(0.5 * (1 + 0.8 * np.sin(2 * np.pi / 7)))
    assert ended == [False] * 19 + [True]


def test_allowance_optimum_spends_where_prices_are_highest():
    """By hand from the price list. Seen to fail when the fraction of the last step is dropped."""
    best = np.sort(allowance.PRICES)[::-1]
    assert allowance.optimal_return(2.5) == pytest.approx(best[0] + best[1] + 0.5 * best[2])
    assert allowance.optimal_return(0.0) == 0.0
    assert allowance.optimal_return(99.0) == pytest.approx(allowance.PRICES.sum())


def test_allowance_data_agrees_with_its_environment():
    """Seen to fail when trajectories are cut one step early."""
    data = relabel(allowance.dataset(episodes=5), allowance.criteria())
    for index, trajectory in enumerate(data.store):
        environment = make(data.store.environment, allowance.criteria())
        state, _ = environment.reset()
        total = 0.0
        for step in range(20):
            assert np.allclose(state, trajectory.state[step])
            state, reward, _, _, info = environment.step(trajectory.action[step])
            assert reward == pytest.approx(trajectory.reward[step], rel=1e-5)
            total += info["cost"][0]
        assert total == pytest.approx(data.episode_cost[index, 0], rel=1e-5)


def test_costs_are_of_the_action_as_executed():
    """Seen to fail when the action is costed before it is brought within bounds."""
    environment = Costed(gymnasium.make(allowance.IDENTIFIER), [torque])
    environment.reset()
    assert environment.step(np.array([7.0]))[4]["cost"].tolist() == [1.0]


def test_data_without_an_environment_cannot_be_rolled_out():
    with pytest.raises(ValueError, match="no environment"):
        make(EnvironmentSpec(action_low=(-1.0,), action_high=(1.0,), horizon=5), [torque])


def test_a_robot_without_mujoco_names_our_extra(monkeypatch):
    """Which pins the versions that work. Seen to fail with Gymnasium's own advice alone."""

    def missing(*_, **__):
        raise gymnasium.error.DependencyNotInstalled('run `pip install "gymnasium[mujoco]"`')

    monkeypatch.setattr(gymnasium, "make", missing)
    with pytest.raises(ValueError, match=r"robots need pip install 'saformer\[mujoco\]'"):
        make_by_id("Hopper-v5")


def test_unknown_tasks_name_the_nearest():
    """And nothing far-fetched. Seen to fail when a folder's name is taken for halfcheetah's."""
    with pytest.raises(ValueError, match="did you mean hopper-medium"):
        find_task("hoper-medium")
    for name in ("zzz", "no_such_folder"):
        with pytest.raises(ValueError, match=r"known are allowance.*trajectory store works too"):
            find_task(name)
    with pytest.raises(ValueError, match="did you mean plant-battery"):
        find_task("plant-batery")
    assert len(task_names()) == 16


def test_data_is_built_once(monkeypatch):
    task = find_task("allowance")
    first = load_data(task, steps=400)
    monkeypatch.setattr(allowance, "dataset", lambda **_: pytest.fail("built again"))
    assert load_data(task, steps=400).fingerprint == first.fingerprint


def test_a_store_is_a_task(tmp_path):
    allowance.dataset(episodes=3).save(tmp_path / "mine")
    task = find_task(str(tmp_path / "mine"))
    assert len(load_data(task)) == 3


class Recorder:
    """A policy that notes what it is told."""

    def __init__(self, agent) -> None:
        self._policy = agent.policy()

    def reset(self, state, limit, lanes=None) -> None:
        self._policy.reset(state, limit, lanes)
        self.booked = torch.zeros(len(limit), 1)

    def act(self, state, lanes=None):
        self.seen = lanes
        return self._policy.act(state, lanes)

    def observe(self, reward, cost, lanes=None) -> None:
        self.booked[lanes] += cost
        self._policy.observe(reward, cost, lanes)


class Short(gymnasium.Wrapper):
    """Ends after `steps`."""

    def __init__(self, environment, steps: int) -> None:
        super().__init__(environment)
        self._left = steps

    def step(self, action):
        self._left -= 1
        state, reward, terminated, truncated, info = self.env.step(action)
        return state, reward, terminated or self._left == 0, truncated, info


def test_lanes_end_on_their_own(agent, data):
    """Seen to fail when finished lanes are still stepped."""
    lengths = iter((2, 5, 3))

    def make_short() -> Costed:
        return Costed(Short(gymnasium.make(allowance.IDENTIFIER), next(lengths)), data.criteria)

    policy = Recorder(agent)
    limits = [np.array([float(d)]) for d in (3, 4, 5)]
    episodes = rollout(policy, make_short, limits, [0, 1, 2], horizon=20)
    assert [len(episode.trajectory) for episode in episodes] == [2, 5, 3]
    assert [episode.seed for episode in episodes] == [0, 1, 2]
    assert policy.seen.tolist() == [1], "the last decision was for the longest lane alone"
    for lane, episode in enumerate(episodes):
        assert episode.trajectory.terminated
        assert episode.cost.sum() == pytest.approx(
            np.abs(episode.trajectory.action).sum(), rel=1e-5
        )
        assert policy.booked[lane].item() == pytest.approx(episode.cost.sum(), rel=1e-5)


def test_the_horizon_ends_what_the_environment_would_not(agent, data):
    """Seen to fail when the horizon is ignored: Allowance would run to 20."""
    episodes = rollout(
        agent.policy(),
        lambda: make(data.store.environment, data.criteria),
        [np.array([5.0])],
        [0],
        horizon=7,
    )
    assert len(episodes[0].trajectory) == 7
    assert episodes[0].trajectory.truncated
    assert not episodes[0].trajectory.terminated
