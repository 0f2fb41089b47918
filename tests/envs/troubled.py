"""An environment that goes wrong as it is told, made by name in other processes too."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
import numpy as np

IDENTIFIER = "saformer-tests/Troubled-v0"


class Troubled(gymnasium.Env):
    """Counts its steps; an episode with seed n ends after n of them (never if that is 0). At the
    third, it may fail."""

    def __init__(self, trouble: str = "none") -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self._trouble, self._time, self._length = trouble, 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._time, self._length = 0, seed or 0
        return np.array([0.0, self._length]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time += 1
        assert self._time <= self._length or self._length == 0, "stepped after its end"
        if self._trouble == "slow":
            time.sleep(0.05)
        trouble = self._trouble if self._time == 3 else "none"
        if trouble == "raise":
            raise KeyError("no such joint")
        if trouble == "refuse":
            raise ValueError("the action is not to my liking")
        if trouble == "exit":
            os._exit(7)
        state = np.array([float(self._time), np.nan if trouble == "nan" else self._length])
        return state, float(action[0]), self._time == self._length, False, {}


gymnasium.register(IDENTIFIER, entry_point="tests.envs.troubled:Troubled")
