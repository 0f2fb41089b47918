"""Data that experiments make of other data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from saformer.api.run_data import relabelled
from saformer.data.limits import thresholds
from saformer.data.store import TrajectoryStore
from saformer.data.trajectory import Trajectory
from saformer.envs.tasks import is_store

CUT_STEPS = 2_000
"""Steps that they are cut from; every episode is run to its end, so it may be more."""


def make_scraps(dataset: str, path: Path, horizon: int) -> None:
    """A few of the bundled behaviours' trajectories, cut to short ones: enough to run everything
    on."""
    if is_store(path):
        return
    from saformer.envs.behaviours import build  # needs a simulator, which pages made again do not

    robot, mixture = dataset.split("-", 1)
    whole = build(robot, mixture, steps=CUT_STEPS, workers=1)
    pieces = [piece for trajectory in whole for piece in _cut(trajectory, horizon)]
    try:
        TrajectoryStore.of(
            pieces,
            replace(whole.environment, horizon=horizon),
            {**whole.provenance, "cut to": horizon},
        ).save(path)
    except FileExistsError:  # somebody else was faster
        return


def make_upper(whole: TrajectoryStore, path: Path) -> None:
    """All trajectories that cost at least p10; the thresholds of the whole are kept with them."""
    if is_store(path):
        return
    data = relabelled(whole, ())
    found = thresholds(data)[0]
    rest = data.store.filter(data.episode_cost[:, 0] >= found["p10"])
    try:
        replace(rest, provenance={**whole.provenance, "thresholds before": found}).save(path)
    except FileExistsError:  # somebody else was faster
        return


def _cut(trajectory: Trajectory, horizon: int) -> Iterator[Trajectory]:
    states = np.concatenate([trajectory.state, trajectory.final_state[None]])
    for begin in range(0, len(trajectory), horizon):
        end = min(begin + horizon, len(trajectory))
        is_last = end == len(trajectory)
        yield Trajectory.of(
            states[begin:end],
            trajectory.action[begin:end],
            trajectory.reward[begin:end],
            states[end],
            terminated=trajectory.terminated and is_last,
            truncated=not (trajectory.terminated and is_last),
        )
