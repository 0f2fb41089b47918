"""Stores whose episodes cost and earn what a test says."""

from collections.abc import Sequence

import numpy as np

from saformer.criteria import joint_torque, torque
from saformer.data.relabel import RelabelledStore, relabel
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory

BOUND = 1e6


def made(
    costs: Sequence[float] | Sequence[tuple[float, ...]],
    returns: Sequence[float],
    *,
    lengths: Sequence[int] | None = None,
    num_left_out: int = 0,
) -> RelabelledStore:
    """One episode for each cost and return, all of it in the first step; `costs` may hold one per
    constraint."""
    columns = np.asarray(costs, dtype=np.float64).reshape(len(returns), -1)
    lengths = lengths or [1] * len(returns)
    episodes = [_episode(*parts) for parts in zip(columns, returns, lengths, strict=True)]
    unfinished = [_episode(columns[0], 0.0, 1, finished=False)] * num_left_out
    width = columns.shape[1]
    space = EnvironmentSpec(
        action_low=(-BOUND,) * width, action_high=(BOUND,) * width, horizon=max(lengths)
    )
    criteria = [torque] if width == 1 else [joint_torque(i) for i in range(width)]
    return relabel(TrajectoryStore.of([*episodes, *unfinished], space), criteria)


def _episode(cost: np.ndarray, earned: float, length: int, *, finished: bool = True) -> Trajectory:
    action, reward = np.zeros((length, len(cost))), np.zeros(length)
    action[0], reward[0] = cost, earned
    return Trajectory.of(
        np.zeros((length, 1)), action, reward, [0.0], terminated=False, truncated=finished
    )
