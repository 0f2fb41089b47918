"""What warming up changes before updates are recorded on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from saformer.training.loop.optimizers import Optimizer


class Snapshot:
    """Weights, averages and random states, to be brought back."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Mapping[str, Optimizer],
        generators: Sequence[torch.Generator],
    ) -> None:
        self._model, self._optimizers, self._generators = model, optimizers, generators
        self._weights = {name: value.clone() for name, value in model.state_dict().items()}
        self._states = {name: _copied(optimizer) for name, optimizer in optimizers.items()}
        self._random = [generator.get_state() for generator in generators]
        self._dropout = torch.cuda.get_rng_state(generators[0].device)

    @torch.no_grad()
    def restore(self) -> None:
        """In place: a graph remembers where everything lies."""
        for name, value in self._model.state_dict().items():
            value.copy_(self._weights[name])
        for name, optimizer in self._optimizers.items():
            for owner, state in optimizer.state.items():
                for key, value in state.items():
                    known = self._states[name].get(owner, {}).get(key)
                    value.zero_() if known is None else value.copy_(known)
        for generator, random in zip(self._generators, self._random, strict=True):
            generator.set_state(random)
        torch.cuda.set_rng_state(self._dropout, self._generators[0].device)


def _copied(optimizer: Optimizer) -> dict[Any, dict[str, Tensor]]:
    states = optimizer.state.items()
    return {
        parameter: {key: value.clone() for key, value in state.items()}
        for parameter, state in states
    }
