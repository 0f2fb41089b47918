"""Data of DSRL's tasks without a download: careful and reckless behaviours, rolled out here.

Balls, cars, drones and points are driven by hand-written controllers whose settings are drawn anew
for every episode: how fast, how near to the bounds, and for how long recklessly. Velocity tasks are
run by the packaged snapshots of the effort tasks, which differ in speed. DSRL's own data comes from
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
LANE, SPEED = 2.0, {"Ball": 2.5, "Car": 1.5, "Drone": 1.5}
"""Bounds of Run: metres to either side, and metres a second."""
NOISE = 0.1
ROTORS = np.array([[1, -1, 0, -1], [1, 0, -1, 1], [1, 1, 0, -1], [1, 0, 1, 1]])
"""What each rotor of a drone adds to lift, pitch, roll and yaw."""
BEARINGS = np.exp(1j * np.pi / 8 * (np.arange(16) + 0.5))
"""Of a point's lidar: the middles of its bins, in a plane whose real axis is ahead."""
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
        noise = NOISE * self.rng.standard_normal(len(action))
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


class DroneRun(_Mood):
    """A drone that leans into its flight along a lane."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng, 200)
        self._speeds = SPEED["Drone"] * rng.uniform(0.2, 0.8), rng.uniform(1.5, 4)
        self._side, self._height = rng.uniform(-0.7, 0.7) * LANE, rng.uniform(0.5, 1.5)

    def __call__(self, state: Array) -> Array:
        (_, y, z), motion = 10 * state[:3], 5 * state[3:6]
        lean, spin = 2 * state[6:9] * np.sign(state[9]), 10 * state[10:13]
        wanted = self._speeds[self.is_reckless()]
        pitch = np.clip(0.3 * (wanted - motion[0]), -0.3, 0.3) - lean[1]
        roll = np.clip(-0.15 * (self._side - y - 1.5 * motion[1]), -0.2, 0.2) - lean[0]
        lift = 2 * (self._height - z) - 1.5 * motion[2]
        turns = 3 * pitch - 0.8 * spin[1], 3 * roll - 0.8 * spin[0], -lean[2] - 0.5 * spin[2]
        return self.blurred(ROTORS @ [lift, *turns])


class _Circle(_Mood):
    """Around a circle that crosses the bounds, or along them where it does."""

    bound: float  # metres to either side
    clockwise = True
    brakes: float  # seconds before the bound

    def motion_wanted(self, place: Array, motion: Array, speed: float, radius: float) -> Array:
        distance = max(float(np.hypot(*place)), 1e-3)
        outwards, along = place / distance, np.array([place[1], -place[0]]) / distance
        wanted = speed * (along if self.clockwise else -along) + (radius - distance) * outwards
        if not self.is_reckless():
            room = self.bound - self.brakes * max(0.0, motion[0] * np.sign(place[0]))
            if abs(place[0]) > room:
                wanted[0] = 2 * (np.sign(place[0]) * room - place[0])
        return wanted


class BallCircle(_Circle):
    """A ball that is pushed around, within the bounds or along the whole circle."""

    brakes = 0.4

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng, 200)
        self._speed, self._radius = rng.uniform(1, 8), rng.uniform(4.5, 7.5)
        self.bound = 6 * rng.uniform(0.6, 0.99)

    def __call__(self, state: Array) -> Array:
        place, motion = 10 * state[:2], 5 * state[2:4]
        wanted = self.motion_wanted(place, motion, self._speed, self._radius)
        return self.blurred(3 * (wanted - motion))


class CarCircle(_Circle):
    """A car that is steered around."""

    brakes = 0.6

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng, 300)
        self._speed, self._radius = rng.uniform(0.8, 3), rng.uniform(5, 7.5)
        self.bound = 6 * rng.uniform(0.5, 0.95)

    def __call__(self, state: Array) -> Array:
        motion, heading = state[2:4], np.arctan2(state[4], state[5])
        wanted = self.motion_wanted(10 * state[:2], motion, 1.0, self._radius)
        throttle = self._speed / 3.6 + (self._speed - np.hypot(*motion))
        return self.blurred([throttle, 3 * _turn(wanted, heading)])


class PointCircle1(_Circle):
    """A point that turns and pushes; where it is follows from lidar and magnetometer."""

    brakes, clockwise = 0.5, False

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng, 500)
        self._radius, self._speed = rng.uniform(0.9, 1.6), rng.uniform(0.4, 1.0)
        self.bound = 1.125 * rng.uniform(0.6, 0.97)

    def __call__(self, state: Array) -> Array:
        sine, cosine = -2 * state[9:11]
        turned = np.array([[cosine, -sine], [sine, cosine]])
        far, bearing = _seen(state[12:28], 6.0)
        place = -turned @ (far * np.array([np.cos(bearing), np.sin(bearing)]))
        wanted = self.motion_wanted(place, turned @ state[3:5], self._speed, self._radius)
        turn = _turn(wanted, np.arctan2(sine, cosine))
        return self.blurred([np.hypot(*wanted) * np.cos(turn), 2 * turn])


class PointGoal1(_Mood):
    """A point that heads for its goal, around hazards or across them."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng, 1000)
        self._speed, self._room = rng.uniform(0.36, 1.2), rng.uniform(0.3, 0.8)
        self._fear = rng.uniform(1.5, 4)

    def __call__(self, state: Array) -> Array:
        _, bearing = _seen(state[12:28], 3.0)
        wanted, hazards = np.exp(1j * bearing), state[28:44]
        if not self.is_reckless():
            near = (self._room + 0.2 - 3.0 * (1 - hazards)) / self._room
            wanted -= self._fear * (near.clip(0, 1) * (hazards > 0) * BEARINGS).sum()
        turn = np.angle(wanted)
        return self.blurred([2 * (self._speed * max(0.0, np.cos(turn)) - state[3]), 2 * turn])


def _turn(wanted: Array, heading: float) -> float:
    """From a heading to the direction of a motion, by the shorter way."""
    return float(np.angle(np.exp(1j * (np.arctan2(wanted[1], wanted[0]) - heading))))


def _seen(lidar: Array, most: float) -> tuple[float, float]:
    """Distance and bearing of the one thing that 16 bins see; neighbours share its place."""
    nearest = int(lidar.argmax())
    share = lidar[(nearest + 1) % 16] / max(lidar[nearest], 1e-6)
    return most * (1 - lidar[nearest]), np.pi / 8 * (nearest + share)


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


DRIVEN = (BallRun, CarRun, DroneRun, BallCircle, CarCircle, PointCircle1, PointGoal1)
CONTROLLERS: dict[str, type[Any]] = {each.__name__: each for each in DRIVEN}
BEHAVIOURS = CONTROLLERS | {
    task: type(task, (_Snapshots,), {"robot": f"{robot}-effort"}) for task, robot in ROBOTS.items()
}
"""By a task's brief name: made with a generator for every episode, they act on observations."""
EPISODES = dict.fromkeys(BEHAVIOURS, 400) | {"BallRun": 940, "BallCircle": 886}
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
