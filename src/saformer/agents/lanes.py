"""The part of acting that has nothing to do with networks: episodes, budgets, random numbers."""

import torch
from torch import Tensor

from saformer.core.batch import Dimensions
from saformer.core.budget import Budget
from saformer.core.policy import Decision, as_rows


class LanePolicy:
    """Drives L episodes at once."""

    def __init__(
        self, dimensions: Dimensions, cost_discount: float, seed: int, device: torch.device
    ) -> None:
        self._dimensions, self._seed, self._device = dimensions, seed, device
        self._generator = torch.Generator(device).manual_seed(seed)
        self.budget = Budget(torch.zeros(0, dimensions.constraints, device=device), cost_discount)

    def reset(self, state: object, limit: object, lanes: Tensor | None = None) -> None:
        """Begin episodes on all lanes, or on the named ones: states [L, S], limits [L, C]."""
        num_lanes = len(as_rows(state, self._dimensions.state, self._device))
        limit = as_rows(limit, self._dimensions.constraints, self._device, least=0.0)
        limit = limit.expand(num_lanes, -1)
        if lanes is None:
            self._generator.manual_seed(self._seed)
            self.budget = Budget(limit, self.budget.cost_discount)
            self._begin(limit)
        else:
            lanes = lanes.to(self._device)
            self.budget.renew(limit, lanes)
            self._begin(limit, lanes)

    @torch.no_grad()
    def act(self, state: object, lanes: Tensor | None = None) -> Decision:
        """Choose one action per lane for states [L, S]."""
        lanes = self._lanes(lanes)
        state = as_rows(state, self._dimensions.state, self._device)
        if len(state) != len(lanes):
            counts = f"got {len(state)} states for {len(lanes)} lanes"
            raise ValueError(f"{counts}; call reset first, with one state a lane")
        return self._decide(state, lanes)

    def observe(
        self, reward: object, cost: object, lanes: Tensor | None = None, *, action: object = None
    ) -> None:
        """Book rewards [L], costs [L, C] of the last step; `action` [L, A] if executed instead."""
        lanes = self._lanes(lanes)
        cost = as_rows(cost, self._dimensions.constraints, self._device, least=0.0)
        self.budget.spend(cost, lanes)
        self._remember(as_rows(reward, 1, self._device)[:, 0], action, lanes)

    def _begin(self, limit: Tensor, lanes: Tensor | None = None) -> None:
        """All lanes, or the named ones, begin an episode under limits [L, C]."""

    def _decide(self, state: Tensor, lanes: Tensor) -> Decision:
        """One action for each state [l, S] of these lanes [l]."""
        raise NotImplementedError

    def _remember(self, reward: Tensor, action: object, lanes: Tensor) -> None:
        """Rewards [l] of these lanes [l], and actions if others were executed."""

    def _lanes(self, lanes: Tensor | None) -> Tensor:
        if lanes is None:
            return torch.arange(len(self.budget.limit), device=self._device)
        return lanes.to(self._device)
