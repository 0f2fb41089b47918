"""DSRL's eight Bullet tasks, by bullet-safety-gym and pybullet."""

import ctypes
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from saformer.envs.dsrl.registry import require

AGENTS = {"Ball": "Ball", "Car": "RaceCar", "Drone": "Drone", "Ant": "Ant"}
WORLDS: dict[str, dict[str, Any]] = {
    "Run": {"name": "Plane200", "factor": 1},
    "Circle": {"name": "Octagon"},
}
REMEMBERING = ("Car", "Drone")
"""They keep something of an episode that restoring Bullet's state does not undo."""
Observation = tuple[NDArray[np.float64], dict[str, Any]]


class BulletEnv(gymnasium.Env):
    """A task of Bullet-Safety-Gym whose episodes repeat from their seeds.

    The package's own `reset(seed)` seeds nothing: it draws from numpy's global generator. That is
    seeded here for as long as a reset takes, from the environment's own generator. Cars and drones
    are built anew for every episode.
    """

    def __init__(self, name: str) -> None:
        require("pybullet", "bullet_safety_gym")
        self._agent, self._task = next(
            (agent, task) for agent in AGENTS for task in WORLDS if name == agent + task
        )
        self._world = self._build()
        self._is_fresh = True
        self.observation_space = self._world.observation_space
        self.action_space = self._world.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Observation:
        super().reset(seed=seed)
        if self._agent in REMEMBERING and not self._is_fresh:
            self._world.close()
            self._world = self._build()
        self._is_fresh = False
        before = np.random.get_state()
        np.random.seed(int(self.np_random.integers(2**32)))
        try:
            observation: Observation = self._world.reset()
            return observation
        finally:
            np.random.set_state(before)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        state, reward, terminated, truncated, info = self._world.step(np.asarray(action))
        return state, float(reward), bool(terminated), bool(truncated), info

    def close(self) -> None:
        """And give its memory back, 30 to 90 MB: C's allocator would keep that of all lanes."""
        self._world.close()
        ctypes.CDLL(None).malloc_trim(0)  # there wherever pybullet is

    def _build(self) -> Any:
        with _silence():
            from bullet_safety_gym.envs.builder import EnvironmentBuilder

            about = AGENTS[self._agent], f"{self._task}Task"
            return EnvironmentBuilder(*about, obstacles={}, world=WORLDS[self._task])


@contextmanager
def _silence() -> Iterator[None]:
    """Meanwhile nothing is printed, nor warned of (the precision of bounds). Bullet prints by C;
    the package redirects Python's streams in a way that those of notebooks and tests are not fit
    for: it is given one that is."""
    standard = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
    with (
        os.fdopen(os.open(os.devnull, os.O_WRONLY), "w") as stream,
        redirect_stdout(stream),
        redirect_stderr(stream),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        for descriptor in standard:
            os.dup2(stream.fileno(), descriptor)
        try:
            yield
        finally:
            ctypes.CDLL(None).fflush(None)
            for descriptor, copy in standard.items():
                os.dup2(copy, descriptor)
                os.close(copy)
