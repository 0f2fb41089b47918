"""The account of an episode: what was promised, what is spent, what remains."""

from typing import Any

import torch
from torch import Tensor

LARGEST = 2.0**100  # 1e30: networks square what they read, and float32 ends at 3e38


class Budget:
    """L accounts side by side, with a column per constraint. `limit` may be moved at any time.

    What remains is derived, never decremented: limit - spent. Step t spends cost_discount**t times
    its cost, so that both count from the start of the episode. All is float64, on the host."""

    def __init__(self, limit: Tensor, cost_discount: float = 1.0) -> None:
        (lanes, constraints), self.cost_discount = limit.shape, cost_discount
        self._rows = torch.zeros(lanes, 2 * constraints + 1, dtype=torch.float64)
        self._limit, self.num_steps = self._rows[:, :constraints], self._rows[:, -1]
        self.spent = self._rows[:, constraints:-1]
        self._limit.copy_(limit)

    @property
    def limit(self) -> Tensor:
        """[L, C] what was promised. What is written into it is checked before the next action."""
        return self._limit

    @limit.setter
    def limit(self, limit: Any) -> None:
        moved = torch.as_tensor(limit).expand_as(self._limit)
        self._limit.copy_(require_numbers(moved, "limit", least=0.0))

    @property
    def remaining(self) -> Tensor:
        """[L, C]; negative once a limit is passed."""
        return self.limit - self.spent

    def rows(self, lanes: Tensor) -> Tensor:
        """[l, 2C + 1] float32: limit, spent, number of steps, before an action; all checked."""
        return require_numbers(self._rows[lanes], "limit", lanes, least=0.0).float()

    def spend(self, cost: Tensor, lanes: Tensor) -> None:
        """Book one step's cost [l, C] on these lanes, each of which is named once."""
        if self.cost_discount != 1:
            cost = cost * self.cost_discount ** self.num_steps[lanes, None]
        self.spent.index_add_(0, lanes, cost.double().expand(len(lanes), -1))
        self.num_steps.index_add_(0, lanes, torch.ones(len(lanes), dtype=torch.float64))

    def renew(self, limit: Tensor, lanes: Tensor) -> None:
        self._rows[lanes] = 0
        self.limit[lanes] = limit.double()


def require_numbers(rows: Tensor, what: str, lanes: Any = None, least: float = -LARGEST) -> Tensor:
    """The rows [l, k] themselves, if all are numbers from `least` to 1e30; else names the lane."""
    low, high = (edge.item() for edge in rows.aminmax()) if rows.numel() else (0.0, 0.0)
    if not (least <= low and high <= LARGEST):  # NaN if anything is
        row, column = (~((rows >= least) & (rows <= LARGEST))).nonzero()[0].tolist()
        lane = int(lanes[row]) if isinstance(lanes, Tensor) else row
        given = f"the {what} of lane {lane} is {rows[row, column].item():g}"
        raise ValueError(f"{given}: a number from {least:g} to {LARGEST:g} is needed")
    return rows
