"""Allowance: a toy task whose optimum under any limit is known in closed form.

Each of 20 steps has a price, the same in every episode. Acting with strength |a| earns price times
strength and costs strength. Under a limit d the best policy spends all its strength where prices
are highest. With two action dimensions, each has its own cost and its own limit.
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from saformer.criteria import CostCriterion, joint_torque, torque
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory

HORIZON = 20
IDENTIFIER = "saformer/Allowance-v0"
PRICES = 1 + 0.8 * np.sin(2 * np.pi * np.arange(HORIZON) / 7)


class Allowance(gymnasium.Env):
    """State (time left / 20, price); reward price * |a|, summed over dimensions; it terminates."""

    def __init__(self, dimensions: int = 1) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (dimensions,), np.float32)
        self._time = 0

    def reset(self, **keywords: Any) -> tuple[NDArray[Any], dict[str, Any]]:
        super().reset(**keywords)
        self._time = 0
        return _state(0), {}

    def step(self, action: NDArray[Any]) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        reward = PRICES[self._time] * np.abs(np.clip(action, -1, 1)).sum()
        self._time += 1
        return _state(self._time), float(reward), self._time == HORIZON, False, {}


def criteria(dimensions: int = 1) -> tuple[CostCriterion, ...]:
    """|a| for one dimension; one cost per dimension for several."""
    return (torque,) if dimensions == 1 else tuple(joint_torque(i) for i in range(dimensions))


def optimal_return(limit: float) -> float:
    """The most that can be earned at a cost of `limit`, per action dimension."""
    strengths = np.clip(limit - np.arange(HORIZON), 0, 1)
    return float(np.sort(PRICES)[::-1] @ strengths)


def dataset(*, episodes: int = 2000, dimensions: int = 1, seed: int = 0) -> TrajectoryStore:
    """Episodes whose strength has a random level and a random taste for high prices."""
    rng = np.random.default_rng(seed)
    trajectories = [_episode(rng, dimensions) for _ in range(episodes)]
    low, high = (-1.0,) * dimensions, (1.0,) * dimensions
    about: Any = {"arguments": {"dimensions": dimensions}, "may_end": True}
    environment = EnvironmentSpec(low, high, HORIZON, IDENTIFIER, **about)
    return TrajectoryStore.of(trajectories, environment, {"source": "allowance", "seed": seed})


def _episode(rng: np.random.Generator, dimensions: int) -> Trajectory:
    level, taste = rng.uniform(0, 1, dimensions), rng.uniform(-0.5, 1, dimensions)
    noise = 0.2 * rng.standard_normal((HORIZON, dimensions))
    strength = np.clip(level + taste * (PRICES[:, None] - 1) + noise, 0, 1)
    action = (strength * rng.choice([-1.0, 1.0], strength.shape)).astype(np.float32)
    return Trajectory.of(
        state=np.stack([_state(time) for time in range(HORIZON)]),
        action=action,
        reward=(PRICES[:, None] * np.abs(action)).sum(-1),
        final_state=_state(HORIZON),
        terminated=True,
        truncated=False,
    )


def _state(time: int) -> NDArray[np.float32]:
    return np.array([(HORIZON - time) / HORIZON, PRICES[time % HORIZON]], dtype=np.float32)


gymnasium.register(IDENTIFIER, entry_point="saformer.envs.allowance:Allowance")
