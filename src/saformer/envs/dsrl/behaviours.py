"""Data of DSRL's tasks without a download: careful and reckless behaviours, rolled out here.

Bullet's tasks are driven by hand-written controllers whose settings are drawn anew for every
episode: how fast, how near to the bounds, and for how long recklessly. Velocity tasks are run by
the packaged snapshots of the effort tasks, which differ in speed. DSRL's own data comes from
agents in training: it is another dataset of the same task.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.data.sources.dsrl import DsrlTask
from saformer.data.store import TrajectoryStore
from saformer.envs.bundle import Bundle, open_bundle
from saformer.envs.collect import collect_episodes

Array = NDArray[np.floating]
LANE, SPEED = 2.0, {"Ball": 2.5, "Car": 1.5}
"""Bounds of Run: metres to either side, and metres a second."""
BOUND = 6.0
"""Of Circle: metres to either side."""
NOISE = 0.1
ROBOTS = {"HopperVelocity": "hopper", "Walker2dVelocity": "walker2d"}
ROBOTS |= {"HalfCheetahVelocity": "halfcheetah"}


@dataclass
class _Mood:
    """Careful or reckless: an episode has one stretch of recklessness, of any length."""

    rng: np.random.Generator
    horizon: int

    def __post_init__(self) -> None:
        length = int(self.rng.uniform(0, 1) ** 2 * self.horizon)
        begin = int(self.rng.integers(self.horizon - length + 1))
        self._reckless, self._time = range(begin, begin + length), -1

    def is_reckless(self) -> bool:
        self._time += 1
        return self._time in self._reckless

    def blurred(self, action: Any) -> Array:
        noise = NOISE * self.rng.standard_normal(2)
        return np.clip(np.asarray(action) + noise, -1, 1)


class BallRun(_Mood):
    """A ball that is pushed along a lane, at a speed below the bound or well above it."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng, 100)
        self._speeds = SPEED["Ball"] * rng.uniform(0.2, 0.98), rng.uniform(2, 9)
        self._side, self._gain = rng.uniform(-0.8, 0.8) * LANE, rng.uniform(1, 4)

    def __call__(self, state: Array) -> Array:
        _, y, speed, drift = state[:4] * [10, 10, 5, 5]
        ahead = self._gain * (self._speeds[self.is_reckless()] - speed)
        return self.blurred([ahead, self._side - y - drift])


class CarRun(_Mood):
    """A car that is steered along a lane."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng, 200)
        self._speeds = SPEED["Car"] * rng.uniform(0.3, 0.97), rng.uniform(1.3, 2.6)
        self._side = rng.uniform(-0.5, 0.5) * LANE

    def __call__(self, state: Array) -> Array:
        y, speed, heading = 10 * state[1], state[2], -state[4]
        wanted = self._speeds[self.is_reckless()]
        throttle = wanted / 3.6 + (wanted - speed)  # backwards: it stands with its face to the wall
        return self.blurred([-throttle, heading - 0.3 * (self._side - y)])


class BallCircle(_Mood):
    """A ball that is pushed around, within the bounds or along the whole circle."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng, 200)
        self._speed, self._radius = rng.uniform(1, 8), rng.uniform(4.5, 7.5)
        self._bound = BOUND * rng.uniform(0.6, 0.99)

    def __call__(self, state: Array) -> Array:
        place, motion = 10 * state[:2], 5 * state[2:4]
        distance = max(float(np.hypot(*place)), 1e-3)
        outwards, along = place / distance, np.array([place[1], -place[0]]) / distance
        wanted = self._speed * along + (self._radius - distance) * outwards
        if not self.is_reckless():
            room = self._bound - 0.4 * max(0.0, motion[0] * np.sign(place[0]))
            if abs(place[0]) > room:
                wanted[0] = 2 * (np.sign(place[0]) * room - place[0])
        return self.blurred(3 * (wanted - motion))


class _Snapshots(_Mood):
    """Two of a robot's packaged snapshots, which are ordered by speed: a slow one, and any other
    while it is reckless."""

    robot: str

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng, 1000)
        members = _bundle(self.robot).replay
        slow, other = rng.choice(members[: len(members) // 3]), rng.choice(members)
        self._behaviours = [_bundle(self.robot).behaviour(int(each)) for each in (slow, other)]

    def __call__(self, state: Array) -> Array:
        return self._behaviours[self.is_reckless()].act(state, self.rng)


CONTROLLERS: dict[str, type[Any]] = {each.__name__: each for each in (BallRun, CarRun, BallCircle)}
BEHAVIOURS = CONTROLLERS | {
    task: type(task, (_Snapshots,), {"robot": f"{robot}-effort"}) for task, robot in ROBOTS.items()
}
"""By a task's brief name: made with a generator for every episode, they act on observations."""
EPISODES = {"BallRun": 940, "CarRun": 400, "BallCircle": 886} | dict.fromkeys(ROBOTS, 400)
"""About as many as DSRL has; fewer where they take long."""


def make_dsrl(
    task: DsrlTask,
    path: Path,
    *,
    steps: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
    **_: Any,
) -> TrajectoryStore:
    """Roll the task's behaviours out into a new store."""
    assert task.environment is not None, "a task with behaviours has an environment"
    how: dict[str, Any] = {"episodes": max(1, steps // task.horizon), "progress": progress}
    policy = BEHAVIOURS[task.brief]
    return collect_episodes(task.environment, policy, path, seed=seed, **how).store


@cache
def _bundle(robot: str) -> Bundle:
    return open_bundle(robot)
