"""Small data whose values are known in closed form."""

from __future__ import annotations

import numpy as np

from saformer.criteria import criterion
from saformer.data.relabel import RelabelledStore, relabel
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory

LENGTH, HORIZON = 5, 100


def short_episodes(*, spread: float = 1.0, episodes: int = 60, seed: int = 0) -> RelabelledStore:
    """Episodes that end after 5 steps of a possible 100: each step earns 1, and the last one costs
    2.

    The state is the step's number; what is done, within `spread` of 0, changes nothing.
    """
    rng = np.random.default_rng(seed)
    steps = np.arange(LENGTH, dtype=np.float32)
    parts = [
        Trajectory.of(
            steps[:, None],
            rng.uniform(-spread, spread, (LENGTH, 1)),
            np.ones(LENGTH),
            np.array([LENGTH]),
            terminated=True,
            truncated=False,
            columns={"price": np.where(steps == LENGTH - 1, 2.0, 0.0)},
        )
        for _ in range(episodes)
    ]
    store = TrajectoryStore.of(parts, EnvironmentSpec((-1.0,), (1.0,), HORIZON))
    return relabel(store, [criterion("price")])
