"""What a policy knows of each lane, as numbers that can be kept and given back."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from saformer.shield import Shield


class LaneMemory:
    """Accounts, past steps and target of every lane: a row of doubles each, which hold them all
    exactly."""

    def __init__(self, policy: Any, *others: Tensor) -> None:
        """Of a policy whose lanes are there (`reset` for all lanes makes new ones), and of other
        columns [L, ...]."""
        budget = policy.budget
        self._parts: list[Tensor] = [budget.limit, budget.spent, budget.num_steps, *others]
        if isinstance(policy, Shield):
            self._parts += [torch.from_numpy(column) for column in policy.accounts]
            policy = policy.policy
        history = getattr(policy, "history", None)
        if history is not None:
            self._parts += [history.spent, history.return_to_go, history.state, history.action]
            self._parts.append(history.timestep)
        target = getattr(policy, "return_to_go", None)  # of agents that take rewards off it
        self._parts += [] if target is None else [target]
        self._widths = [part[0].numel() for part in self._parts]

    def rows(self, lanes: Tensor) -> list[bytes]:
        """What is known of these lanes [l]."""
        count = len(lanes)
        columns = [part[lanes.to(part.device)].reshape(count, -1) for part in self._parts]
        together = torch.cat([column.cpu().double() for column in columns], dim=1).numpy()
        return [row.tobytes() for row in together]

    def give_back(self, lane: int, row: bytes) -> None:
        """Make a lane know what `rows` said of one."""
        numbers = torch.from_numpy(np.frombuffer(row, dtype=np.float64).copy())
        if len(numbers) != sum(self._widths):
            raise ValueError(f"{len(numbers)} numbers for {sum(self._widths)}: another policy's")
        for part, values in zip(self._parts, numbers.split(self._widths), strict=True):
            part[lane] = values.reshape(part[lane].shape).to(part.device, part.dtype)
