"""Doing nothing, whatever the state and the limit."""

from typing import Any

import torch
from torch import Tensor

from saformer.core.budget import Budget
from saformer.core.policy import Decision
from saformer.data.idling import nothing_of
from saformer.data.limits import Totals

NOTHING = "doing nothing"


class DoingNothing:
    """A policy that holds one action; its budget is counted but never read."""

    def __init__(self, data: Totals) -> None:
        self.action = torch.from_numpy(nothing_of(data))
        self.budget = Budget(torch.zeros(0, len(data.criteria)), data.cost_discount)

    def reset(self, state: Tensor, limit: Tensor, lanes: Tensor | None = None) -> None:
        self.budget = Budget(limit, self.budget.cost_discount)

    def act(self, state: Tensor, lanes: Tensor | None = None) -> Decision:
        return Decision(self.action.expand(len(state), -1))

    def observe(
        self, reward: Tensor, cost: Tensor, lanes: Tensor | None = None, *, action: Any = None
    ) -> None:
        """Spend what the step cost."""
        self.budget.spend(cost, torch.arange(len(self.budget.limit)) if lanes is None else lanes)
