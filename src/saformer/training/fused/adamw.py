"""AdamW of M models, with each model's gradient clipped by itself: two passes over what is already in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from saformer.training.fused import adamw_kernels as kernels

TILE = {"B": 1024, "num_warps": 4}
"""Elements that a program keeps at a time."""
BETAS, EPS = (0.9, 0.999), 1e-8


class FusedAdamW:
    """As `clip_gradients` and `torch.optim.AdamW` after it, with the same `state` and `param_groups`.

    A recorded update has its gradients at addresses that are known only then, and must be told to the GPU when the
    recording is over: `settle`. Where `found_inf` is set, a step changes nothing.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        num_models: int,
        learning_rate: float,
        weight_decay: float,
        gradient_clip: float,
    ) -> None:
        device = parameters[0].device
        self._parameters, self._models, self._clip = (
            tuple(parameters),
            num_models,
            float(gradient_clip),
        )
        self.param_groups = [
            {"lr": torch.tensor(learning_rate, device=device), "weight_decay": weight_decay}
        ]
        self._counts = torch.zeros(2, device=device)  # of steps: before the next, and made
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {
            parameter: {
                "step": self._counts[1],
                "exp_avg": torch.zeros_like(parameter, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
            }
            for parameter in parameters
        }
        self.found_inf = torch.zeros((), device=device)
        self._tiles = torch.tensor(list(self._cut()), device=device)
        self._addresses = torch.zeros(len(self._parameters), 4, dtype=torch.int64, device=device)
        self._gradients: tuple[Tensor, ...] = ()
        self._norms = torch.zeros(num_models, device=device)

    def take(self, gradients: Sequence[Tensor]) -> Tensor:
        """Keep gradients, one for each parameter, for the next step; what their norms are before clipping: [M]."""
        self._gradients = tuple(gradient.contiguous() for gradient in gradients)
        if not (self._addresses.is_cuda and torch.cuda.is_current_stream_capturing()):
            self.settle()
        parts = self._norms.new_empty(self._models, len(self._tiles))
        kernels.norms_of_tiles[self._grid](
            self._tiles, self._addresses, parts, self._counts, **TILE
        )
        self._norms = torch.linalg.vector_norm(parts, dim=1)
        return self._norms

    def settle(self) -> None:
        """Tell the kernels where everything lies."""
        rows = [
            [
                tensor.data_ptr()
                for tensor in (gradient, parameter, state["exp_avg"], state["exp_avg_sq"])
            ]
            for gradient, (parameter, state) in zip(
                self._gradients, self.state.items(), strict=True
            )
        ]
        self._addresses.copy_(torch.tensor(rows))

    @torch.no_grad()
    def step(self) -> None:
        """Move the weights by the gradients that were taken."""
        group: dict[str, Any] = self.param_groups[0]
        (first, second), logarithms = BETAS, tuple(map(math.log, BETAS))
        kernels.step[self._grid](
            self._tiles, self._addresses, self._norms, group["lr"], self._counts, self.found_inf, self._clip,
            group["weight_decay"], *logarithms, first, second, EPS, **TILE,
        )  # fmt: skip

    @property
    def _grid(self) -> tuple[int, int]:
        return len(self._tiles), self._models

    def _cut(self) -> Iterator[tuple[int, int, int]]:
        """The tiles of a model: which parameter, where in the model's row of it, and how long that row is."""
        for number, parameter in enumerate(self._parameters):
            length = parameter.numel() // self._models
            for first in range(0, length, TILE["B"]):
                yield number, first, length
