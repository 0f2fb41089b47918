"""What a policy remembers of the episodes it is driving."""

from dataclasses import dataclass

import torch
from torch import Tensor

from saformer.core.batch import Dimensions, WindowBatch

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
        self.steps = torch.zeros(lanes, length, sum(self._sizes), device=device)
        columns = self.steps.split(self._sizes, dim=-1)
        self.spent, self.return_to_go, self.state, self.action = columns
        self.timestep = torch.full((lanes, length), NO_STEP, device=device)

    def prompt(self, state: Tensor, account: Tensor, lanes: Tensor) -> Prompt:
        """What is known on these lanes in `state` [l, S], with the `account` of `Budget.rows`."""
        limit, timestep = account[:, : self._sizes[0]], self.timestep[lanes]
        spent, returns, states, actions = self.steps[lanes].split(self._sizes, dim=-1)
        columns = (limit[:, None] - spent, returns, states, actions, timestep.clamp(min=0))
        past = WindowBatch(limit, *columns, timestep != NO_STEP)
        remaining = limit - account[:, self._sizes[0] : -1]
        return Prompt(past, remaining, state, account[:, -1].long())

    def append(self, account: Tensor, lanes: Tensor, *step: Tensor) -> None:
        """Remember one step (return-to-go, state, action) before its cost is booked."""
        present = torch.cat([account[:, self._sizes[0] : -1], *step], dim=1)
        for column, value in ((self.steps, present), (self.timestep, account[:, -1].long())):
            column[lanes] = torch.cat([column[lanes], value[:, None]], dim=1)[:, 1:]

    def correct(self, action: Tensor, lanes: Tensor) -> None:
        """The latest step of these lanes was taken with this action [l, A], not the chosen one."""
        self.action[lanes, -1:] = action[:, None]

    def forget(self, lanes: Tensor) -> None:
        self.steps[lanes], self.timestep[lanes] = 0, NO_STEP
