"""What a policy remembers of the episodes it is driving."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saformer.core.batch import Dimensions, WindowBatch
from saformer.core.budget import Budget

NO_STEP = -1  # the time step of padding


@dataclass(frozen=True)
class Prompt:
    """All that is known when a decision is due: whole past steps, and the present one in part."""

    past: WindowBatch  # [L, K - 1] whole steps, the latest last; padding stands before them
    cost_to_go: Tensor  # [L, C] what remains of the budget, as the networks read it
    state: Tensor  # [L, S]
    timestep: Tensor  # [L]
    remaining: Tensor | None = None  # [L, C] what forecasts are held against; None: cost_to_go


class History:
    """The last K - 1 whole steps of L episodes, the latest at the end.
    It stores what was spent, which is limit minus cost-to-go in training too, so that a limit moved
    mid-episode moves the whole past with it, as if it had held from the start."""

    def __init__(self, lanes: int, length: int, sizes: Dimensions, device: torch.device) -> None:
        self._sizes = [sizes.constraints, 1, sizes.state, sizes.action]
        self._steps = torch.zeros(lanes, length, sum(self._sizes), device=device)
        columns = self._steps.split(self._sizes, dim=-1)
        self.spent, self.return_to_go, self.state, self.action = columns
        self.timestep = torch.full((lanes, length), NO_STEP, device=device)

    def prompt(self, state: Tensor, budget: Budget, lanes: Tensor) -> Prompt:
        """What is known on these lanes now that they are in `state` [l, S]."""
        limit, timestep = budget.limit[lanes], self.timestep[lanes]
        spent, returns, states, actions = self._steps[lanes].split(self._sizes, dim=-1)
        columns = (limit[:, None] - spent, returns, states, actions, timestep.clamp(min=0))
        past = WindowBatch(limit, *columns, timestep != NO_STEP)
        return Prompt(past, limit - budget.spent[lanes], state, budget.num_steps[lanes])

    def append(
        self, state: Tensor, action: Tensor, return_to_go: Tensor, budget: Budget, lanes: Any
    ) -> None:
        """Remember one whole step before its cost is booked, on these lanes: [l] or slice(None)."""
        present = torch.cat([budget.spent[lanes], return_to_go, state, action], dim=1)
        for column, value in ((self._steps, present), (self.timestep, budget.num_steps[lanes])):
            column[lanes] = torch.cat([column[lanes], value[:, None]], dim=1)[:, 1:]

    def correct(self, action: Tensor, lanes: Tensor) -> None:
        """The latest step of these lanes was taken with this action [l, A], not the chosen one."""
        self.action[lanes, -1:] = action[:, None]

    def forget(self, lanes: Tensor) -> None:
        self.timestep[lanes] = NO_STEP
