"""The account of an episode: what was promised, what is spent, what remains."""

import torch
from torch import Tensor


class Budget:
    """L accounts side by side, with a column per constraint. `limit` may be moved at any time.

    What remains is derived, never decremented: limit - spent. Step t spends cost_discount**t times
    its cost, so that limit and remaining count from the start of the episode."""

    def __init__(self, limit: Tensor, cost_discount: float = 1.0) -> None:
        assert limit.ndim == 2, f"limits must be [L, C], got {tuple(limit.shape)}"
        self._limit = limit.clone()
        self.spent = torch.zeros_like(limit)
        self.num_steps = torch.zeros(len(limit), dtype=torch.int64, device=limit.device)
        self.cost_discount = cost_discount

    @property
    def limit(self) -> Tensor:
        """[L, C] what was promised. It is moved in place: a recording reads it where it lies."""
        return self._limit

    @limit.setter
    def limit(self, limit: Tensor) -> None:
        self._limit.copy_(limit)

    @property
    def remaining(self) -> Tensor:
        """[L, C]; negative once a limit is passed."""
        return self.limit - self.spent

    def spend(self, cost: Tensor, lanes: Tensor) -> None:
        """Book one step's cost [l, C] on these lanes, each of which is named once."""
        if self.cost_discount != 1:
            cost = cost * self.cost_discount ** self.num_steps[lanes, None].to(cost.dtype)
        self.spent.index_add_(0, lanes, cost.expand(len(lanes), -1))
        self.num_steps.index_add_(0, lanes, torch.ones_like(lanes))

    def renew(self, limit: Tensor, lanes: Tensor) -> None:
        self.limit[lanes] = limit
        self.spent[lanes] = 0
        self.num_steps[lanes] = 0
