"""A machine that stops after two steps of not being driven: ending early is cheap."""

from typing import Any

import gymnasium
import numpy as np

from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory

HORIZON = 4
IDENTIFIER = "tests.envs.ending:tests/Ending-v0"


class Ending(gymnasium.Env):
    """Earns and costs |a|; terminates after two steps if |a| < 0.1 in both."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, **keywords: Any):
        super().reset(**keywords)
        self.time, self.still = 0, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        strength = float(np.abs(action).sum())
        self.time += 1
        self.still = self.still + 1 if strength < 0.1 else 0
        state = np.array([self.time], np.float32)
        return state, strength, self.still == 2, self.time == HORIZON, {}


gymnasium.register("tests/Ending-v0", entry_point=Ending)


def store(*, may_end: bool) -> TrajectoryStore:
    """Each half: driven to the horizon by 0.2 to 0.8, and stopped after two steps."""
    parts = []
    for strength in np.linspace(0.2, 0.8, 10):
        for length, force in ((HORIZON, strength), (2, 0.01)):
            action = np.full((length, 1), force)
            states, early = np.arange(length + 1.0)[:, None], length < HORIZON
            ends = {"terminated": early, "truncated": not early}
            steps = (states[:-1], action, action[:, 0], states[-1])
            parts.append(Trajectory.of(*steps, **ends))
    spec = EnvironmentSpec((-1.0,), (1.0,), HORIZON, IDENTIFIER, may_end=may_end)
    return TrajectoryStore.of(parts, spec)
