"""A policy that looks at the present state and step alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from saformer.core.batch import Dimensions
from saformer.core.policy import Decision, as_rows

Choose = Callable[[Tensor, Tensor, torch.Generator], Tensor]
"""States [l, S], timesteps [l] and a source of randomness -> actions [l, A], in raw units."""


@dataclass(frozen=True)
class MarkovOptions:
    """How such a policy acts."""

    seed: int = 0
    """Seed of whatever it draws."""


class MarkovPolicy:
    """Drives L episodes at once by `choose`. What an episode is told to keep to changes nothing: the limit that it was
    trained for is `limit`.
    """

    def __init__(
        self, choose: Choose, dimensions: Dimensions, *, limit: tuple[float, ...], seed: int, device: torch.device
    ) -> None:
        self.limit = limit
        self._choose, self._dimensions, self._seed, self._device = choose, dimensions, seed, device
        self._generator = torch.Generator(device).manual_seed(seed)
        self._timestep = torch.zeros(0, dtype=torch.int64, device=device)

    def reset(self, state: object, limit: object, lanes: Tensor | None = None) -> None:
        """Begin episodes on all lanes, or on the named ones: states [L, S], limits [L, C]."""
        num_lanes = len(as_rows(state, self._dimensions.state, self._device))
        as_rows(limit, self._dimensions.constraints, self._device)
        if lanes is None:
            self._generator.manual_seed(self._seed)
            self._timestep = torch.zeros(num_lanes, dtype=torch.int64, device=self._device)
        else:
            self._timestep[self._lanes(lanes)] = 0

    @torch.no_grad()
    def act(self, state: object, lanes: Tensor | None = None) -> Decision:
        """Choose one action per lane for states [L, S]."""
        lanes = self._lanes(lanes)
        state = as_rows(state, self._dimensions.state, self._device)
        if len(state) != len(lanes):
            raise ValueError(f"got {len(state)} states for {len(lanes)} lanes; call reset first, with one state a lane")
        return Decision(self._choose(state, self._timestep[lanes], self._generator))

    def observe(self, reward: object, cost: object, lanes: Tensor | None = None) -> None:
        """Count the step; what it brought is not needed."""
        self._timestep[self._lanes(lanes)] += 1

    def _lanes(self, lanes: Tensor | None) -> Tensor:
        return torch.arange(len(self._timestep), device=self._device) if lanes is None else lanes.to(self._device)
