"""Scenarios for the shield: rogue policies, any criteria, states, bounds, discounts and limits.

The machine executes just what it is given, and its costs are added up apart from the shield, in
three orders. No sum may be above the limit, by however little.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch

from saformer.core.budget import Budget
from saformer.core.policy import Decision
from saformer.criteria import CostCriterion, Step, criterion
from saformer.shield import Shield
from scripts.attack.campaign import Campaign

PRICES = ("1", "3.7", "abs(state[0])", "state[1] ** 2", "exp(-abs(state[1]))", "(state[0] > 0)")
PRICES += ("clip(state[1], 0, 2)", "above(state[0], 0.5)", "where(state[1] > 1, 0.3, 2)")
POWERS = ("abs(action[0])", "torque", "energy", "above(action[1], 0.25)", "(action[0] > 0.2)")
POWERS += ("norm(action)", "where(action[0] > 0, action[0] ** 3, 0)", "abs(action[0] * action[1])")
ALWAYS = ("", "", "", "0.05 + ", "0.25 + ", "0.1 + ")
HIDDEN = "minimum(abs(action[0]), above(state[0], 0)) * abs(state[1])"
"""Free at rest, which the expression does not show: it needs a floor"""
NO_NUMBERS = (math.nan, math.inf, -math.inf, -1.0, 1e31)


class Rogue:
    """Proposes anything, and never reads its budget."""

    def __init__(self, rng: np.random.Generator, constraints: int, discount: float) -> None:
        self._rng, self.budget = rng, Budget(torch.zeros(0, constraints), discount)
        self._size = rng.choice([0.01, 1.0, 50.0])

    def reset(self, state: Any, limit: Any, lanes: Any = None) -> None:
        if lanes is None:
            self.budget = Budget(torch.as_tensor(limit), self.budget.cost_discount)
        else:
            self.budget.renew(torch.as_tensor(limit), lanes)

    def act(self, state: Any, lanes: Any = None) -> Decision:
        return Decision(torch.from_numpy(self._size * self._rng.normal(size=(len(state), 2))))

    def observe(self, reward: Any, cost: Any, lanes: Any = None, *, action: Any = None) -> None:
        which = torch.arange(len(self.budget.limit)) if lanes is None else lanes
        self.budget.spend(cost, which)


class Scenario:
    """One shield, its lanes, and what they have spent."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.discount = float(self.rng.choice([1.0, 1.0, 0.97, 0.5]))
        self.steps, self.lanes = int(self.rng.integers(1, 30)), int(self.rng.integers(1, 4))
        names = [self._cost() for _ in range(self.rng.integers(1, 4))]
        names += [HIDDEN] * (self.rng.random() < 0.2)
        self.criteria: list[CostCriterion] = [criterion(name) for name in names]
        self.low, self.high = -self.rng.uniform(0.1, 2, 2), self.rng.uniform(0.1, 2, 2)
        self.shield = Shield(
            Rogue(self.rng, len(names), self.discount),
            self.criteria,
            action_low=self.low.tolist(),
            action_high=self.high.tolist(),
            horizon=self.steps,
            floor=0.0,
        )
        self.floor = self.shield._affordable.floor
        self.spent = np.zeros((0, self.lanes, len(names)))
        generous = self.rng.choice([0.0, 0.0, 1.0, 10.0])
        limits = generous * self.rng.uniform(0, 1, self.spent.shape[1:])
        self.limits = limits + self.shield._needed()

    def _cost(self) -> str:
        pairs = [(self.rng.choice(PRICES), self.rng.choice(POWERS)) for _ in range(2)]
        return self.rng.choice(ALWAYS) + " + ".join(f"{price} * {power}" for price, power in pairs)

    def aside(self, time: int) -> Any:
        """[C] what the floor still costs, a little more than exactly."""
        return self.floor * sum(self.discount**t for t in range(time, self.steps)) * (1 + 1e-12)

    def maybe_move(self, time: int) -> None:
        """Sometimes move limits, to no less than what is spent and set aside; or to no number."""
        if self.rng.random() < 0.15:
            self.shield.budget.limit[:] = float(self.rng.choice(NO_NUMBERS))
            expect_refusal(lambda: self.shield.act(np.zeros((self.lanes, 2))))
            self.shield.budget.limit[:] = torch.from_numpy(self.limits)
        if self.rng.random() < 0.2:
            least = self.spent.sum(0) * (1 + 1e-12) + self.aside(time)
            share = self.rng.choice([0.0, 0.5, 1.0])
            self.limits = least + share * np.maximum(self.limits - least, 0)
            self.shield.budget.limit = torch.from_numpy(self.limits)

    def maybe_reset_badly(self) -> None:
        if self.rng.random() < 0.1:
            bad = np.full_like(self.limits, self.rng.choice(NO_NUMBERS))
            expect_refusal(lambda: self.shield.reset(np.zeros((self.lanes, 2)), bad))

    def step(self, time: int) -> None:
        state = self.rng.normal(size=(self.lanes, 2)) * self.rng.choice([0.1, 1.0, 100.0])
        action = self.shield.act(torch.from_numpy(state)).action.numpy()
        if not ((np.float32(self.low) <= action) & (action <= np.float32(self.high))).all():
            raise AssertionError(f"an action outside its bounds: {action}")
        if self.rng.random() < 0.1:
            expect_refusal(lambda: self.shield.act(torch.from_numpy(state)))
        step = Step(action=action, state=state)
        cost = np.stack([each(step) for each in self.criteria], axis=-1)
        self.spent = np.concatenate([self.spent, self.discount**time * cost[None]])
        told, reward = torch.from_numpy(cost), torch.zeros(self.lanes)
        if self.rng.random() < 0.1:
            expect_refusal(lambda: self.shield.observe(reward, told * math.nan))
        else:
            self.shield.observe(reward, told)

    def overrun(self) -> str | None:
        for total in (
            self.spent.sum(0),
            *(np.cumsum(s, 0)[-1] for s in (self.spent, self.spent[::-1])),
        ):
            if (total > self.limits).any():
                names = [each.name for each in self.criteria]
                return f"{total.tolist()} of {self.limits.tolist()} spent on {names}"
        return None


def expect_refusal(call: Any) -> None:
    try:
        call()
    except ValueError:
        return
    raise AssertionError("what is no number, or out of turn, was taken")


def attempt(seed: int) -> str | None:
    """One episode on every lane."""
    scenario = Scenario(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scenario.shield.reset(np.zeros((scenario.lanes, 2)), scenario.limits)
        for time in range(scenario.steps):
            scenario.maybe_reset_badly()
            scenario.maybe_move(time)
            scenario.step(time)
            problem = scenario.overrun()
            if problem:
                return f"step {time}: {problem}"
    return None


CAMPAIGN = Campaign("shield", 2000, attempt)
