"""The weight of an entropy constraint, as something that is learnt."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from saformer.core.objectives import PerSample, entropy_constrained


class Temperature(nn.Module):
    """One learnt number above 0: its logarithm, in a table of one row, so that packs stack it as
    any table."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Embedding(1, 1)
        nn.init.constant_(self.log.weight, math.log(initial))

    def forward(self, rows: Tensor) -> Tensor:
        """The logarithm, once for each row [B]."""
        logarithm: Tensor = self.log(torch.zeros_like(rows, dtype=torch.int64))
        return logarithm[:, 0]


def entropy_terms(
    temperature: nn.Module, entropy: PerSample, target: float
) -> tuple[PerSample, PerSample]:
    """What an entropy of at least `target` per step adds to the actor's loss, and the temperature's
    loss (Eq. 8)."""
    log_temperature = temperature(entropy.sums)
    # the likelihood is a term of its own
    bonus, dual = entropy_constrained(
        torch.zeros_like(entropy.sums),
        entropy.sums,
        log_temperature,
        target=target * entropy.counts,
    )
    return PerSample(bonus, entropy.counts), PerSample(dual, entropy.counts)
