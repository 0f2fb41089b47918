"""A shield around any policy: where action and present state decide costs, no limit is passed."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saformer.core.budget import Budget, require_numbers
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
    is executed, and one that can be afforded is always there. If that is not free, what it costs
    until the horizon is set aside from the start, and a limit below that is refused. The policy
    observes what was executed. `floor` says what some action costs at most in every state, where
    criteria read the state and do not show it, `action_levels` which values each entry of an action
    can take, nothing where it may be any. See docs/shield.md for what this proves.
    """

    def __init__(
        self,
        policy: Policy,
        criteria: Sequence[CostCriterion | str],
        *,
        action_low: Sequence[float],
        action_high: Sequence[float],
        action_levels: Sequence[Sequence[float]] = (),
        cost_discount: float | None = None,
        horizon: int | None = None,
        floor: float | Sequence[float] = (),
    ) -> None:
        self.policy = policy
        parsed = [criterion(each) if isinstance(each, str) else each for each in criteria]
        floors = floor if isinstance(floor, Sequence) else [floor]
        bounds = (action_low, action_high)
        self._affordable = Affordable(parsed, *bounds, floors, levels=action_levels)
        self._names = ", ".join(each.name for each in parsed)
        self._floor = ", ".join(f"{cost:g}" for cost in self._affordable.floor)
        self._discount = policy.budget.cost_discount if cost_discount is None else cost_discount
        if self._affordable.floor.any() and horizon is None:
            raise ValueError(
                f"even the cheapest action costs {self._floor} a step ({self._names}), which must "
                "be set aside for the steps to come: say how many an episode can have, with horizon"
            )
        self._horizon = horizon if self._affordable.floor.any() else None
        weights = self._discount ** np.arange(self._horizon or 0)
        self._ahead = np.append(weights[::-1].cumsum()[::-1], 0.0)  # [T + 1] of steps from t on
        self._begin(0)

    @property
    def budget(self) -> Budget:
        """The policy's own: a limit that is moved there holds for the shield too."""
        return self.policy.budget

    @property
    def accounts(self) -> tuple[NDArray[Any], ...]:
        """All that it knows of its lanes, a row of each; to be kept, and written back."""
        weighed = (self._spent, self._cost, self._weight)
        return (*weighed, self._num_steps, self._is_due, self._action)

    def reset(self, state: Tensor, limit: Tensor, lanes: Tensor | None = None) -> None:
        """Begin episodes: states [L, S], limits [L, C]. One that is refused changes nothing."""
        limits = as_rows(limit, len(self._affordable.floor), "limit", lanes=lanes).numpy()
        needed = self._needed()
        for row, constraint in np.argwhere(limits < needed):
            raise ValueError(
                f"a limit of {limits[row, constraint]:.16g} cannot be kept: even the cheapest "
                f"action costs {self._floor} a step ({self._names}), {needed[constraint]:.16g} "
                f"over {self._horizon} steps; raise the limit"
            )
        self.policy.reset(state, limit, lanes)
        if lanes is None:
            self._begin(len(self.budget.limit))
        rows = self._rows(lanes)
        self._spent[rows], self._num_steps[rows], self._is_due[rows] = 0, 0, False

    def act(self, state: Tensor, lanes: Tensor | None = None) -> Decision:
        """What the policy chooses for states [L, S], at a cost that can be afforded."""
        rows = self._rows(lanes)
        for lane in rows[self._is_due[rows]]:
            problem = f"lane {lane} is to act again, but what its last action cost was not observed"
            raise ValueError(f"{problem}: call observe after every act, or reset")
        limit, (weight, later) = self._limit(rows), self._weights(rows)
        floor, left = self._affordable.floor, limit * (1 - ROUNDING) - self._spent[rows]
        if floor.any() and (left + 2 * ROUNDING * limit < floor * (weight + later)).any():
            problem = "a limit was cut below what even the cheapest actions still cost"
            result = f"({self._floor} a step): it may be passed, though by no more than they cost"
            warnings.warn(f"{problem} {result}", stacklevel=2)
        decision = self.policy.act(state, lanes)
        device = decision.action.device
        which = torch.from_numpy(rows)
        proposed = require_numbers(decision.action.cpu(), "action proposed", which).numpy()
        states = self._states(state, rows) if self._affordable.reads_state else None
        allowed = (left - floor * later) / weight
        executed, cost, over = self._affordable.project(proposed, allowed, states)
        self._action[rows], self._cost[rows], self._is_due[rows] = executed, cost, True
        self._weight[rows] = weight
        action = torch.from_numpy(executed).to(device)
        return replace(decision, action=action, shielded=torch.from_numpy(over).to(device))

    def observe(
        self, reward: Tensor, cost: Tensor, lanes: Tensor | None = None, *, action: Any = None
    ) -> None:
        """Spend what the last action cost: as computed, whatever is observed; more if that is."""
        rows = self._rows(lanes)
        is_due, known, weight = self._is_due[rows], self._cost[rows], self._weight[rows]
        self._spent[rows] += is_due[:, None] * weight * known
        self._num_steps[rows] += is_due
        self._is_due[rows] = False
        observed = as_rows(cost, known.shape[1], "cost", lanes=lanes).numpy()
        self._cost[rows] = np.maximum(known, observed)
        self._spent[rows] += weight * (self._cost[rows] - known)
        executed = torch.from_numpy(self._action[rows]) if action is None else action
        self.policy.observe(reward, cost, lanes, action=executed)

    def _begin(self, num_lanes: int) -> None:
        shape = (num_lanes, len(self._affordable.floor))
        self._spent, self._cost = np.zeros(shape), np.zeros(shape)
        self._weight = np.ones((num_lanes, 1))  # of the last step
        self._num_steps = np.zeros(num_lanes, dtype=np.int64)
        self._is_due = np.zeros(num_lanes, dtype=bool)  # acted, and not observed yet
        self._action = np.zeros((num_lanes, len(self._affordable.cheapest)), dtype=np.float32)

    def _rows(self, lanes: Tensor | None) -> NDArray[np.int64]:
        return np.arange(len(self._num_steps)) if lanes is None else lanes.cpu().numpy()

    def _limit(self, rows: NDArray[np.int64]) -> Doubles:
        limit = self.budget.limit[torch.from_numpy(rows)]
        return require_numbers(limit, "limit", torch.from_numpy(rows), least=0.0).numpy()

    def _states(self, state: object, rows: NDArray[np.int64]) -> Doubles:
        """[L, S], not rounded: what an action costs is reckoned with what is given."""
        states = torch.as_tensor(state).cpu().reshape(len(rows), -1)
        return require_numbers(states, "state", torch.from_numpy(rows)).numpy()

    def _weights(self, rows: NDArray[np.int64]) -> tuple[Doubles, Doubles]:
        """[L, 1] each: how much a cost counts now, and after that up to the horizon, if any."""
        step = self._num_steps[rows][:, None]
        weight = np.maximum(self._discount**step, np.finfo(np.float64).tiny)
        if self._horizon is None:
            return weight, np.zeros_like(weight)
        if (step >= self._horizon).any():
            problem = f"an episode goes on beyond its horizon of {self._horizon} steps"
            raise ValueError(f"{problem}: give the shield the longest that an episode can be")
        return weight, self._ahead[step + 1]

    def _needed(self) -> Doubles:
        """[C] what the floor adds up to over an episode, in whatever order float64 adds."""
        steps = self._horizon or 0
        total = self._affordable.floor * self._ahead[0]
        adds_exactly = [
            self._discount == 1 and each.as_integer_ratio()[0] * steps < 2**53
            for each in self._affordable.floor.tolist()
        ]
        return np.where(adds_exactly, total, total * (1 + (steps + 2) * 2.0**-52))


class LimitBlind:
    """No shield, but the reference beside it: the policy always acts under one fixed limit."""

    def __init__(self, policy: Policy, limit: Sequence[float]) -> None:
        self._policy, self._fixed = policy, torch.tensor([list(limit)])
        self.budget = Budget(self._fixed[:0], policy.budget.cost_discount)

    def reset(self, state: Tensor, limit: Tensor, lanes: Tensor | None = None) -> None:
        """Begin episodes: states [L, S], limits [L, C], of which the policy learns nothing."""
        limit = as_rows(limit, self._fixed.shape[1], "limit", lanes=lanes)
        self._policy.reset(state, self._fixed, lanes)
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
        which = torch.arange(len(self.budget.limit)) if lanes is None else lanes.cpu()
        self.budget.spend(as_rows(cost, self._fixed.shape[1], "cost", lanes=lanes), which)
        self._policy.observe(reward, cost, lanes, action=action)
