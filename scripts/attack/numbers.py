"""Misuse of numbers: limits, states, costs and rewards that are none, or huge, told to any agent.

Whatever is told, an action that `act` returns is finite and within bounds, accounts are finite, and
nothing but ValueError is raised; once the numbers are right again, so is the policy.
"""

from __future__ import annotations

import contextlib
import functools
import math
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from saformer.agents.agent import Agent
from saformer.agents.registry import KINDS, create_agent
from saformer.core.transformer import TrunkConfig
from saformer.data.relabel import relabel
from saformer.envs import allowance
from scripts.attack.campaign import Campaign

SMALL: dict[str, Any] = {"trunk": TrunkConfig(layers=1, width=16, dropout=0.0), "window": 4}
SMALL |= {"hidden": (16, 16), "limit": (12.0,), "candidates": 4}
NUMBERS = (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-45, 1e-30, 1.0, 5.0, 1e6, 1e15, 1e19, 1e20)
NUMBERS += (1e25, 1e30, 1e31, 3e38, 1e39, 1e300, -1e30, -1e300)
STATES = torch.tensor([[1.0, 1.0], [0.5, 0.2]])


@functools.cache
def agents() -> list[Agent]:
    """One of every kind, untrained."""
    data = relabel(allowance.dataset(episodes=50), allowance.criteria())
    made = []
    for kind in KINDS.values():
        own = {each.name for each in fields(kind.config_type)}
        config = kind.config_type(**{name: SMALL[name] for name in own & set(SMALL)})
        made.append(create_agent(data, config, seed=0))
    return made


def attempt(seed: int) -> str | None:
    """A dozen calls of one policy, each with a number that may be none."""
    rng = np.random.default_rng(seed)
    policy = agents()[seed % len(agents())].policy()
    policy.reset(STATES, [5.0, 9.0])
    for _ in range(12):
        call = rng.choice(["limit", "assign", "act", "observe", "reset", "action"])
        number, lane = float(rng.choice(NUMBERS)), int(rng.integers(2))
        policy.budget.limit[:] = 5.0
        with contextlib.suppress(ValueError):
            problem = _misuse(policy, call, number, lane)
            if problem:
                return f"{call} {number:g}: {problem}"
        if not (policy.budget.spent.isfinite().all() and (policy.budget.spent >= 0).all()):
            return f"after {call} {number:g} {policy.budget.spent.tolist()} is spent"
    policy.reset(STATES, [5.0, 9.0])
    for _ in range(2):
        problem = _bad_action(policy.act(STATES).action)
        if problem:
            return f"begun anew: {problem}"
        policy.observe([0.0, 0.0], [0.1, 0.1])
    return None


def _misuse(policy: Any, call: str, number: float, lane: int) -> str | None:
    numbers = torch.tensor([[5.0], [9.0]], dtype=torch.float64)
    numbers[lane] = number
    if call == "limit":
        policy.budget.limit[lane] = number
    elif call == "assign":
        policy.budget.limit = numbers
    elif call == "reset":
        policy.reset(STATES, numbers)
    elif call == "observe":
        policy.observe(numbers[:, 0], numbers)
    elif call == "action":
        policy.act(STATES)
        policy.observe([0.0, 0.0], [0.1, 0.1], action=numbers)
    state = STATES.double()
    if call == "act":
        state[lane, 0] = number
    return _bad_action(policy.act(state).action)


def _bad_action(action: torch.Tensor) -> str | None:
    is_good = action.isfinite().all() and (action.abs() <= 1).all()
    return None if is_good else f"the action is {action.tolist()}"


CAMPAIGN = Campaign("numbers", 2000, attempt)
