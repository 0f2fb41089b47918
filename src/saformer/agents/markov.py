"""A policy that looks at the present state and step alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from saformer.core.batch import Dimensions
from saformer.core.budget import Budget
from saformer.core.policy import Decision, as_rows

Choose = Callable[[Tensor, Tensor, torch.Generator], Tensor]
"""States [l, S], timesteps [l] and a source of randomness -> actions [l, A], in raw units."""


@dataclass(frozen=True)
class MarkovOptions:
    """How such a policy acts."""

    seed: int = 0
    """Seed of whatever it draws."""


class MarkovPolicy:
    """Drives L episodes at once by `choose`. What an episode is told to keep to changes nothing:
    the limit that it was trained for is `limit`.
    """

    def __init__(
        self,
        choose: Choose,
        dimensions: Dimensions,
        *,
        limit: tuple[float, ...],
        cost_discount: float,
        seed: int,
        device: torch.device,
    ) -> None:
        self.limit = limit
        self._choose, self._dimensions, self._seed, self._device = choose, dimensions, seed, device
        self._generator = torch.Generator(device).manual_seed(seed)
        self.budget = Budget(torch.zeros(0, dimensions.constraints, device=device), cost_discount)

    def reset(self, state: object, limit: object, lanes: Tensor | None = None) -> None:
        """Begin episodes on all lanes, or on the named ones: states [L, S], limits [L, C]."""
        num_lanes = len(as_rows(state, self._dimensions.state, self._device))
        limit = as_rows(limit, self._dimensions.constraints, self._device).expand(num_lanes, -1)
        if lanes is None:
            self._generator.manual_seed(self._seed)
            self.budget = Budget(limit, self.budget.cost_discount)
        else:
            self.budget.renew(limit, self._lanes(lanes))

    @torch.no_grad()
    def act(self, state: object, lanes: Tensor | None = None) -> Decision:
        """Choose one action per lane for states [L, S]."""
        lanes = self._lanes(lanes)
        state = as_rows(state, self._dimensions.state, self._device)
        if len(state) != len(lanes):
            raise ValueError(
                f"got {len(state)} states for {len(lanes)} lanes; call reset first, with one "
                "state a lane"
            )
        return Decision(self._choose(state, self.budget.num_steps[lanes], self._generator))

    def observe(
        self, reward: object, cost: object, lanes: Tensor | None = None, *, action: object = None
    ) -> None:
        """Book what the step cost: costs [L, C]. Reward and action are not needed."""
        self.budget.spend(
            as_rows(cost, self._dimensions.constraints, self._device), self._lanes(lanes)
        )

    def _lanes(self, lanes: Tensor | None) -> Tensor:
        return (
            torch.arange(len(self.budget.limit), device=self._device)
            if lanes is None
            else lanes.to(self._device)
        )
