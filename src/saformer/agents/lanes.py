"""The part of acting that has nothing to do with networks: episodes, budgets, random numbers."""

import torch
from torch import Tensor

from saformer.core.batch import Dimensions
from saformer.core.budget import Budget
from saformer.core.policy import Decision, as_rows, to_device


class LanePolicy:
    """Drives L episodes at once."""

    def __init__(
        self, dimensions: Dimensions, cost_discount: float, seed: int, device: torch.device
    ) -> None:
        self._dimensions, self._seed, self._device = dimensions, seed, device
        self._generator = torch.Generator(device).manual_seed(seed)
        self.budget = Budget(torch.zeros(0, dimensions.constraints), cost_discount)

    def reset(self, state: object, limit: object, lanes: Tensor | None = None) -> None:
        """Begin episodes on all lanes, or on the named ones: states [L, S], limits [L, C]."""
        num_lanes = len(as_rows(state, self._dimensions.state, "state", self._device, lanes))
        limits = as_rows(limit, self._dimensions.constraints, "limit", lanes=lanes)
        limits = limits.expand(num_lanes, -1)
        if lanes is None:
            self._generator.manual_seed(self._seed)
            self.budget = Budget(limits, self.budget.cost_discount)
        else:
            self.budget.renew(limits, lanes.cpu())
            lanes = lanes.to(self._device)
        self._begin(limits.to(self._device, torch.float32), lanes)

    @torch.no_grad()
    def act(self, state: object, lanes: Tensor | None = None) -> Decision:
        """Choose one action per lane for states [L, S]."""
        which = self._lanes(lanes)
        index = to_device(which, self._device)
        rows = as_rows(state, self._dimensions.state, "state", self._device, lanes)
        if len(rows) != len(index):
            counts = f"got {len(rows)} states for {len(index)} lanes"
            raise ValueError(f"{counts}; call reset first, with one state a lane")
        account = to_device(self.budget.rows(which), self._device)
        decision = self._decide(rows, account, index)
        on_host = decision.on_host(which)
        self._remember_action(rows, decision, account, index)
        return on_host

    def observe(
        self, reward: object, cost: object, lanes: Tensor | None = None, *, action: object = None
    ) -> None:
        """Book rewards [L], costs [L, C] of the last step; `action` [L, A] if executed instead."""
        which = self._lanes(lanes)
        self.budget.spend(as_rows(cost, self._dimensions.constraints, "cost", lanes=lanes), which)
        rewards = as_rows(reward, 1, "reward", self._device, lanes)[:, 0]
        self._remember(rewards, action, to_device(which, self._device))

    def _begin(self, limit: Tensor, lanes: Tensor | None = None) -> None:
        """All lanes, or the named ones, begin an episode under limits [L, C]."""

    def _decide(self, state: Tensor, account: Tensor, lanes: Tensor) -> Decision:
        """One action for each state [l, S] of these lanes [l], with what `Budget.rows` has."""
        raise NotImplementedError

    def _remember_action(
        self, state: Tensor, decision: Decision, account: Tensor, lanes: Tensor
    ) -> None:
        """What was decided, now that it is known to be numbers."""

    def _remember(self, reward: Tensor, action: object, lanes: Tensor) -> None:
        """Rewards [l] of these lanes [l], and actions if others were executed."""

    def _lanes(self, lanes: Tensor | None) -> Tensor:
        return torch.arange(len(self.budget.limit)) if lanes is None else lanes.cpu()
