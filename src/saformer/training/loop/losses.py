"""Losses: means of samples' terms over valid steps, of one model, a pack, or several ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from saformer.agents.agent import Phase
from saformer.core.objectives import PerSample
from saformer.engine.distributed import Ranks

Tensors = dict[str, Tensor]
Losses = Callable[[type, Tensors], tuple[Tensors, Tensors, Tensors]]
"""Of a batch's type and columns, since compiled functions take tensors. Each [M]: losses, what is
only watched and, where ranks share a batch, the valid steps of each."""


def losses_of(phase: Phase, num_models: int, *, counted: bool = False) -> Losses:
    """A phase's means over valid steps, and, if `counted`, how many steps each is the mean of."""

    def losses(kind: type, columns: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        terms = phase.terms(kind(**columns))
        means = {name: means_of(term, num_models) for name, term in terms.items()}
        counts = {n: counts_of(term, num_models) for n, term in terms.items() if counted}
        watched = {name: means.pop(name) for name, term in terms.items() if term.watched}
        return means, watched, counts

    return losses


def means_of(term: PerSample, num_models: int) -> Tensor:
    """Each model's mean over its valid steps: [M]."""
    if num_models == 1:
        return term.mean()[None]
    sums = term.sums.reshape(num_models, -1)
    if isinstance(term.counts, int):
        return sums.sum(1) / (term.counts * sums.shape[1])
    return sums.sum(1) / term.counts.reshape(num_models, -1).sum(1).clamp(min=1)


def counts_of(term: PerSample, num_models: int) -> Tensor:
    """How many valid steps each model has: [M]."""
    if isinstance(term.counts, int):
        steps = term.counts * len(term.sums) // num_models
        return torch.full((num_models,), steps, device=term.sums.device)
    return term.counts.reshape(num_models, -1).sum(1)


def weighed(means: Tensors, counts: Tensors, ranks: Ranks) -> Tensors:
    """A rank's means by its share of all valid steps: they add up to those of the whole batch."""
    own = torch.stack(list(counts.values())).double()
    shares = dict(zip(counts, own / ranks.sum(own).clamp(min=1), strict=True))
    return {name: value * shares[name].to(value.dtype) for name, value in means.items()}


def summed(means: Tensors, gradients: Sequence[Tensor], ranks: Ranks) -> tuple[Tensors, Any]:
    """Sums over ranks, in one message: the means and gradients of the whole batch."""
    own = [value.detach() for value in means.values()]
    totals = ranks.sum_together([*own, *gradients])
    return dict(zip(means, totals, strict=False)), tuple(totals[len(own) :])
