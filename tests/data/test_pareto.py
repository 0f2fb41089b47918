"""Filtering relabelled data, the Pareto front, and prompts beyond it."""

import numpy as np
import pytest
import torch

from saformer.criteria import torque
from saformer.data.limits import augment, pareto_front
from saformer.data.relabel import RelabelledStore, relabel
from saformer.data.sampling import WindowSampler
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory
from saformer.envs import allowance

SPEC = EnvironmentSpec((-1.0,), (1.0,), horizon=3)


def episode(action: list[float], reward: list[float]) -> Trajectory:
    states = np.zeros((len(action), 1))
    return Trajectory.of(
        states, np.array(action)[:, None], reward, [0.0], terminated=True, truncated=False
    )


@pytest.fixture
def four() -> RelabelledStore:
    """(cost, return): (1, 1), (1, 3), (1.5, 2), (2, 4); the second and the last are not beaten."""
    parts = [
        episode([1.0], [1.0]),
        episode([0.5, 0.5], [1.0, 2.0]),
        episode([1.0, 0.5], [1.0, 1.0]),
        episode([1.0, 0.5, 0.5], [2.0, 1.0, 1.0]),
    ]
    return relabel(TrajectoryStore.of(parts, SPEC), [torque])


@pytest.mark.parametrize("keep", [np.array([False, True, False, True]), np.array([3, 0, 3])])
def test_filtered_is_relabelled_again(four, keep):
    """Seen to fail when steps are taken from where they would lie in the view."""
    found, expected = four.filter(keep), relabel(four.store.filter(keep), [torque])
    for name in ("cost", "cost_to_go", "return_to_go", "episode_cost", "episode_return"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    starts = torch.arange(found.store.num_steps)
    one, other = (WindowSampler(part, window=2).windows(starts) for part in (found, expected))
    assert torch.equal(one.action, other.action)
    assert torch.equal(one.cost_to_go, other.cost_to_go)


def test_front_by_hand(four):
    """Seen to fail when dear trajectories of low return are kept."""
    assert pareto_front(four).tolist() == [3, 1]


def test_front_of_two_constraints():
    """What is cheap in one cost and dear in the other beats nobody and is not beaten."""
    data = relabel(allowance.dataset(episodes=300, dimensions=2), allowance.criteria(2))
    front = set(pareto_front(data).tolist())
    for number in range(len(data.store)):
        cheaper = (data.episode_cost <= data.episode_cost[number]).all(-1)
        beaten = cheaper & (data.episode_return >= data.episode_return[number])
        beaten[number] = False
        assert (number in front) == (not beaten.any())


def test_prompts_beyond_the_front_are_answered_by_the_best_within(four):
    """Seen to fail when the donor's own costs-to-go are kept."""
    whole = augment(four, 10.0)
    assert len(whole.store) > 20
    assert np.array_equal(whole.episode_cost[:4], four.episode_cost)
    stored = whole.store.starts
    for number in range(4, len(whole.store)):
        limit, asked = whole.episode_cost[number, 0], whole.episode_return[number]
        donor = 3 if limit >= 2 else 1
        first = slice(stored[number], stored[number] + len(four.store[donor]))
        assert len(whole.store[number]) == len(four.store[donor])
        assert four.episode_return[donor] <= asked <= 4
        own = slice(four.store.starts[donor], four.store.starts[donor] + len(four.store[donor]))
        more = limit - four.episode_cost[donor, 0]
        assert np.allclose(whole.cost_to_go[first], four.cost_to_go[own] + more, atol=1e-6)
        assert np.allclose(
            whole.return_to_go[first], four.return_to_go[own] + asked - four.episode_return[donor]
        )


def test_augmenting_is_repeatable(four):
    one, other = augment(four, 3.0), augment(four, 3.0)
    assert np.array_equal(one.cost_to_go, other.cost_to_go)
    assert not np.array_equal(one.episode_return, augment(four, 3.0, seed=1).episode_return)
