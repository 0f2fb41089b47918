"""What a policy remembers of the episodes it is driving."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saformer.core.batch import Dimensions, WindowBatch
from saformer.core.budget import Budget


@dataclass(frozen=True)
class Prompt:
    """All that is known when a decision is due: whole past steps, and the present one as far as it goes."""

    past: WindowBatch
    """[L, K - 1] whole steps, the latest last; padding stands before them."""
    cost_to_go: Tensor
    """[L, C] what remains of the budget."""
    state: Tensor
    """[L, S]"""
    timestep: Tensor
    """[L]"""


class History:
    """The last K - 1 whole steps of L episodes, the latest at the end.

    It keeps what was spent rather than the cost-to-go, so that a limit moved mid-episode moves the whole past with
    it, as if it had held from the start: limit minus cost-to-go is what was spent, in training as here.
    """

    def __init__(self, num_lanes: int, length: int, dimensions: Dimensions, device: torch.device) -> None:
        def columns(size: int) -> Tensor:
            return torch.zeros(num_lanes, length, size, device=device)

        self.spent = columns(dimensions.constraints)
        self.return_to_go = columns(1)
        self.state = columns(dimensions.state)
        self.action = columns(dimensions.action)
        self.timestep = torch.zeros(num_lanes, length, dtype=torch.int64, device=device)
        self.valid = torch.zeros(num_lanes, length, dtype=torch.bool, device=device)

    def prompt(self, state: Tensor, budget: Budget, lanes: Tensor) -> Prompt:
        """What is known on these lanes now that they are in `state` [l, S]."""
        limit, remaining = budget.limit[lanes], budget.remaining[lanes]
        past = WindowBatch(
            limit=limit,
            cost_to_go=limit[:, None] - self.spent[lanes],
            return_to_go=self.return_to_go[lanes],
            state=self.state[lanes],
            action=self.action[lanes],
            timestep=self.timestep[lanes],
            valid=self.valid[lanes],
        )
        return Prompt(past, cost_to_go=remaining, state=state, timestep=budget.num_steps[lanes])

    def append(self, state: Tensor, action: Tensor, return_to_go: Tensor, budget: Budget, lanes: Tensor) -> None:
        """Remember one whole step on these lanes, before its cost is booked."""
        present = (
            (self.spent, budget.spent[lanes]),
            (self.return_to_go, return_to_go),
            (self.state, state),
            (self.action, action),
            (self.timestep, budget.num_steps[lanes]),
            (self.valid, torch.ones_like(lanes, dtype=torch.bool)),
        )
        for column, value in present:
            column[lanes] = torch.cat([column[lanes], value[:, None]], dim=1)[:, 1:]

    def forget(self, lanes: Tensor) -> None:
        """Start these lanes anew."""
        self.valid[lanes] = False
