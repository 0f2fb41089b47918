"""Hostile environments: observations, rewards, costs and ends that are not what they should be.

A rollout either says what is wrong, or gives episodes that hold just what the environment gave.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch

from saformer.core.budget import Budget
from saformer.core.policy import Decision
from saformer.criteria import criterion
from saformer.envs.costed import Costed
from saformer.envs.episodes import Episode
from saformer.envs.rollout import rollout
from scripts.attack.campaign import Campaign

Result = tuple[Any, Any, Any, Any, Any]
STATE = np.array([0.25, -0.5, 1.0], dtype=np.float32)


def changed(index: int, value: Any) -> Callable[[Result], Any]:
    """A step with another observation (0), reward (1), end (2 and 3) or info (4)."""
    return lambda result: (*result[:index], value, *result[index + 1 :])


def raising(error: BaseException) -> Callable[[Result], Any]:
    def step(result: Result) -> Any:
        raise error

    return step


OBSERVATIONS = (np.nan, np.inf, -np.inf, 1e300, -1e39)
KINDS: dict[str, Callable[[Result], Any]] = {
    "nothing wrong": lambda result: result,
    **{f"an observation of {v}": changed(0, np.array([v, 0.0, 0.0])) for v in OBSERVATIONS},
    **{f"a reward of {v}": changed(1, v) for v in (np.nan, np.inf, -np.inf, 1e300)},
    "too short an observation": changed(0, STATE[:2]),
    "too long an observation": changed(0, np.zeros(4, np.float32)),
    "an observation with an axis more": changed(0, np.zeros((2, 3), np.float32)),
    "no observation": changed(0, None),
    "an observation of text": changed(0, np.array(["a", "b", "c"])),
    "an observation that is a dictionary": changed(0, {"state": STATE}),
    "no reward": changed(1, None),
    "a reward of text": changed(1, "much"),
    "a reward that is a vector": changed(1, np.zeros(2)),
    "no end": changed(2, None),
    "ends twice": lambda result: (*result[:2], True, True, result[4]),
    "no info": changed(4, None),
    "a cost of NaN": changed(4, {"wear": np.nan}),
    "a cost below 0": changed(4, {"wear": -1.0}),
    "an infinite cost": changed(4, {"wear": np.inf}),
    "a cost of text": changed(4, {"wear": "little"}),
    "a cost that is a vector": changed(4, {"wear": np.zeros(2)}),
    "no cost": changed(4, {}),
    "four results": lambda result: result[:4],
    "no results": lambda result: None,
    "an error": raising(RuntimeError("hostile")),
    "no memory": raising(MemoryError("hostile")),
    "an observation that is one number": changed(0, np.float32(0.5)),
}


class Hostile(gymnasium.Env):
    """Well-behaved until a step of its own choice."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, kind: str, turns: int) -> None:
        self._kind, self._turns, self._time, self.given = kind, turns, 0, []

    def reset(self, **keywords: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**keywords)
        self._time, self.given = 0, []
        return STATE, {}

    def step(self, action: Any) -> Any:
        self._time += 1
        state = (STATE + self._time).astype(np.float32)
        result: Any = (state, 0.5, False, False, {"wear": 0.1})
        if self._time == self._turns:
            result = KINDS[self._kind](result)
        self.given.append(result)
        return result


class Still:
    """A policy that does little."""

    def __init__(self) -> None:
        self.budget = Budget(torch.zeros(0, 1))

    def reset(self, state: Any, limit: Any, lanes: Any = None) -> None:
        self.budget = Budget(limit)

    def act(self, state: Any, lanes: Any = None) -> Decision:
        return Decision(torch.full((len(state), 2), 0.1))

    def observe(self, reward: Any, cost: Any, lanes: Any = None, *, action: Any = None) -> None:
        self.budget.spend(cost, lanes)


def attempt(seed: int) -> str | None:
    """One kind, at one of its first steps, in a rollout of three lanes."""
    kind = list(KINDS)[seed % len(KINDS)]
    turns = 1 + int(np.random.default_rng(seed).integers(4))
    made: list[Hostile] = []

    def make() -> Costed:
        made.append(Hostile(kind, turns))
        return Costed(made[-1], [criterion("wear")])

    limits = [np.array([1.0])] * 3
    try:
        with np.errstate(over="ignore"):
            episodes = rollout(Still(), make, limits, range(3), horizon=6, workers=0)
    except Exception as error:
        if kind in ("nothing wrong", "ends twice"):
            return f"{kind}: {type(error).__name__}: {error}"
        return None if str(error) else f"{kind}: {type(error).__name__} without a word"
    problems = [_difference(*pair) for pair in zip(episodes, made[-3:], strict=True)]
    return next((f"{kind}: {problem}" for problem in problems if problem), None)


def _difference(episode: Episode, environment: Hostile) -> str | None:
    """Between what was given and what became of it."""
    played = episode.trajectory
    states, rewards = np.concatenate([played.state[1:], played.final_state[None]]), played.reward
    for state, reward, (observation, paid, *_) in zip(
        states, rewards, environment.given, strict=True
    ):
        given = np.asarray(observation, dtype=np.float32)
        if given.shape != state.shape or not np.array_equal(given, state):
            return f"the observation {observation} became {state}"
        if not np.isfinite(reward) or abs(float(paid) - reward) > 1e-6 * abs(reward):
            return f"the reward {paid} became {reward}"
    return None


CAMPAIGN = Campaign("environments", 10 * len(KINDS), attempt)
