"""What updates measure, added up where it is computed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from saformer.kernels.sizes import have_triton


@dataclass(frozen=True)
class Measured:
    """The metrics of some updates."""

    num_updates: int  # good ones
    means: dict[str, list[float]]  # over the good updates, for each model
    non_finite: dict[int, tuple[str, ...]]  # by model: names of what was not, in the update after


class RunningMetrics:
    """Sums of metrics since they were last read. From the first that is not finite on, nothing is
    added, and the flag `non_finite` is 1."""

    def __init__(self, device: torch.device) -> None:
        self._has_kernels = have_triton(device)
        self._names: list[str] = []
        self._sums = self._latest = torch.zeros(0, device=device)  # [metrics, M]
        self._num_good, self.non_finite = (torch.zeros((), device=device) for _ in range(2))

    @torch.no_grad()
    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """The metrics of one update, each [M]."""
        values = torch.stack(list(metrics.values()))
        if not self._names:
            self._names = list(metrics)
            self._sums, self._latest = torch.zeros_like(values), torch.zeros_like(values)
        if self._has_kernels:  # one launch where there are seventeen below
            from saformer.kernels.updates import add_metrics

            add_metrics(values, self._sums, self._latest, self._num_good, self.non_finite)
            return
        before = self.non_finite.clone()
        self.non_finite.copy_(torch.maximum(before, (~torch.isfinite(values)).any().float()))
        self._sums.add_(torch.where(self.non_finite > 0, 0.0, values))
        self._latest.copy_(torch.where(before > 0, self._latest, values))
        self._num_good.add_(1 - self.non_finite)

    def read(self) -> Measured:
        """What was added since it was last read; a GPU is waited for here alone."""
        sums, latest = torch.stack([self._sums, self._latest]).tolist()
        count, is_bad = round(self._num_good.item()), self.non_finite.item() > 0
        self.reset()
        non_finite: dict[int, tuple[str, ...]] = {}
        for name, row in zip(self._names, latest, strict=True):
            for model, value in enumerate(row):
                if is_bad and not math.isfinite(value):
                    non_finite[model] = (*non_finite.get(model, ()), name)
        rows = zip(self._names, sums, strict=True)
        means = {name: [total / max(1, count) for total in row] for name, row in rows}
        return Measured(count, means, non_finite)

    def reset(self) -> None:
        for tensor in (self._sums, self._latest, self._num_good, self.non_finite):
            tensor.zero_()
