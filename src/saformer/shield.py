"""A shield around any policy: where the action alone decides costs, no episode passes its limit."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saformer.core.budget import Budget
from saformer.core.policy import Decision, Policy, as_rows
from saformer.criteria import CostCriterion, criterion
from saformer.criteria.afford import Affordable

Doubles = NDArray[np.float64]
ROUNDING = 2.0**-23
"""Share of a limit that is never spent: half for limits that float32 rounds up, half for costs that
float64 adds up in another order."""


class Shield:
    """Executes what the policy chooses, made cheaper where it costs more than what remains.

    spent + cost <= limit after every step, for each constraint, discounted or not, also if
    `budget.limit` is cut mid-episode to no less than what is spent: an action is costed before it
    is executed, and the cheapest can always be afforded. If that is not free, what it costs until
    the horizon is set aside from the start, and a limit below that is refused. The policy observes
    what was executed. See docs/shield.md for what this proves and what not.
    """

    def __init__(
        self,
        policy: Policy,
        criteria: Sequence[CostCriterion | str],
        *,
        action_low: Sequence[float],
        action_high: Sequence[float],
        cost_discount: float | None = None,
        horizon: int | None = None,
    ) -> None:
        self._policy = policy
        parsed = [criterion(each) if isinstance(each, str) else each for each in criteria]
        self._affordable = Affordable(parsed, action_low, action_high)
        self._names = ", ".join(each.name for each in parsed)
        self._least = ", ".join(f"{cost:g}" for cost in self._affordable.least)
        self._discount = policy.budget.cost_discount if cost_discount is None else cost_discount
        self._horizon = horizon
        if self._affordable.least.any() and horizon is None:
            raise ValueError(
                f"even the cheapest action costs {self._least} a step ({self._names}), which must "
                "be set aside for the steps to come: say how many an episode can have, with horizon"
            )
        self._begin(0)

    @property
    def budget(self) -> Budget:
        """The policy's own: a limit that is moved there holds for the shield too."""
        return self._policy.budget

    def reset(self, state: Tensor, limit: Tensor, lanes: Tensor | None = None) -> None:
        """Begin episodes: states [L, S], limits [L, C]."""
        self._policy.reset(state, limit, lanes)
        if lanes is None:
            self._begin(len(self.budget.limit))
        rows = self._rows(lanes)
        self._spent[rows], self._num_steps[rows] = 0, 0
        limits, needed = self._limit(rows), self._affordable.least * self._weights(rows)[1]
        for lane, constraint in np.argwhere(limits * (1 + ROUNDING) < needed):
            raise ValueError(
                f"a limit of {limits[lane, constraint]:g} cannot be kept: even the cheapest action "
                f"costs {self._least} a step ({self._names}), {needed[lane, constraint]:g} over "
                f"{self._horizon} steps; raise the limit"
            )

    def act(self, state: Tensor, lanes: Tensor | None = None) -> Decision:
        """What the policy chooses for states [L, S], at a cost that can be afforded."""
        decision, rows = self._policy.act(state, lanes), self._rows(lanes)
        (weight, still), limit = self._weights(rows), self._limit(rows)
        left = limit * (1 - ROUNDING) - self._spent[rows]
        aside = self._affordable.least * (still - weight)  # for the steps after this one
        proposed = decision.action.cpu().numpy()
        action, self._cost[rows], over = self._affordable.project(proposed, (left - aside) / weight)
        needed = self._affordable.least * still
        if needed.any() and (left + 2 * ROUNDING * limit < needed).any():  # `reset` refused others
            problem = "a limit was cut below what even the cheapest actions still cost"
            result = f"({self._least} a step): it may be passed, though by no more than they cost"
            warnings.warn(f"{problem} {result}", stacklevel=2)
        self._action[rows] = np.where(over[:, None], action, proposed)
        device = decision.action.device
        executed = torch.from_numpy(self._action[rows]).to(device)
        return replace(decision, action=executed, shielded=torch.from_numpy(over).to(device))

    def observe(
        self, reward: Tensor, cost: Tensor, lanes: Tensor | None = None, *, action: Any = None
    ) -> None:
        """Spend what the last action cost: as computed, or as observed if that is more."""
        rows = self._rows(lanes)
        observed = as_rows(cost, self._cost.shape[1], torch.device("cpu"), least=0.0).numpy()
        self._spent[rows] += self._weights(rows)[0] * np.maximum(self._cost[rows], observed)
        self._num_steps[rows] += 1
        executed = torch.from_numpy(self._action[rows]) if action is None else action
        self._policy.observe(reward, cost, lanes, action=executed)

    def _begin(self, num_lanes: int) -> None:
        shape = (num_lanes, len(self._affordable.criteria))
        self._spent, self._cost = np.zeros(shape), np.zeros(shape)
        self._num_steps = np.zeros(num_lanes, dtype=np.int64)
        self._action = np.zeros((num_lanes, len(self._affordable.cheapest)), dtype=np.float32)

    def _rows(self, lanes: Tensor | None) -> NDArray[np.int64]:
        return np.arange(len(self._num_steps)) if lanes is None else lanes.cpu().numpy()

    def _limit(self, rows: NDArray[np.int64]) -> Doubles:
        return self.budget.limit.cpu().numpy().astype(np.float64)[rows]

    def _weights(self, rows: NDArray[np.int64]) -> tuple[Doubles, Doubles]:
        """[L, 1] each: how much a cost counts now, and from now to the horizon if one is needed."""
        step = self._num_steps[rows][:, None]
        weight = np.maximum(self._discount**step, np.finfo(np.float64).tiny)
        if not self._affordable.least.any():
            return weight, weight
        assert self._horizon is not None
        if (step >= self._horizon).any():
            problem = f"an episode goes on beyond its horizon of {self._horizon} steps"
            raise ValueError(f"{problem}: give the shield the longest that an episode can be")
        steps = np.arange(self._horizon)
        return weight, (self._discount**steps * (steps >= step)).sum(1, keepdims=True)


class LimitBlind:
    """No shield, but the reference beside it: the policy always acts under one fixed limit."""

    def __init__(self, policy: Policy, limit: Sequence[float]) -> None:
        self._policy, self._fixed = policy, torch.tensor([list(limit)])
        self.budget = Budget(self._fixed[:0], policy.budget.cost_discount)

    def reset(self, state: Tensor, limit: Tensor, lanes: Tensor | None = None) -> None:
        """Begin episodes: states [L, S], limits [L, C], of which the policy learns nothing."""
        self._policy.reset(state, self._fixed, lanes)
        limit = as_rows(limit, self._fixed.shape[1], self._fixed.device, least=0.0)
        if lanes is None:
            limit = limit.expand(len(self._policy.budget.limit), -1)
            self.budget = Budget(limit, self.budget.cost_discount)
        else:
            self.budget.renew(limit, lanes.cpu())

    def act(self, state: Tensor, lanes: Tensor | None = None) -> Decision:
        return self._policy.act(state, lanes)

    def observe(
        self, reward: Tensor, cost: Tensor, lanes: Tensor | None = None, *, action: Any = None
    ) -> None:
        every = torch.arange(len(self.budget.limit)) if lanes is None else lanes.cpu()
        self.budget.spend(as_rows(cost, self._fixed.shape[1], self._fixed.device, least=0.0), every)
        self._policy.observe(reward, cost, lanes, action=action)
