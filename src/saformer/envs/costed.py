"""A Gymnasium environment that says what each step cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from saformer.criteria import CostCriterion, Step
from saformer.data.store import EnvironmentSpec


class Costed(gymnasium.Wrapper):
    """Adds `info["cost"]`, an array [C] with a cost per criterion, to every step. Actions are brought within bounds."""

    def __init__(self, environment: gymnasium.Env, criteria: Sequence[CostCriterion]) -> None:
        super().__init__(environment)
        self._criteria = tuple(criteria)
        self._state: np.ndarray | None = None

    def reset(self, **keywords: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; nothing has been spent."""
        state, info = self.env.reset(**keywords)
        self._state = state
        return state, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Execute the action and cost it as it was executed."""
        action = np.clip(action, self.action_space.low, self.action_space.high)  # type: ignore[attr-defined]
        next_state, reward, terminated, truncated, info = self.env.step(action)
        step = Step(action=action, state=self._state, next_state=next_state, reward=np.asarray(reward))
        info["cost"] = np.array([criterion(step) for criterion in self._criteria], dtype=np.float64)
        self._state = next_state
        return next_state, float(reward), terminated, truncated, info


def make(spec: EnvironmentSpec, criteria: Sequence[CostCriterion]) -> Costed:
    """The environment that a store's data came from, with its costs."""
    if spec.identifier is None:
        raise ValueError("this data has no environment: it can be learnt from, but not rolled out")
    try:
        environment = gymnasium.make(spec.identifier, disable_env_checker=True, **spec.arguments)
    except gymnasium.error.Error as error:
        raise ValueError(f"environment {spec.identifier!r} cannot be made: {error}") from error
    return Costed(environment, criteria)
