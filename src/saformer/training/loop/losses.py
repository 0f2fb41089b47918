"""From what each sample says to what is minimised: means over valid steps, of one model, a pack, or
several ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from saformer.agents.agent import Phase
from saformer.core.objectives import PerSample
from saformer.engine.distributed import Ranks

Losses = Callable[
    [type, dict[str, Tensor]], tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]
]
"""What is minimised, what is only watched, and, where ranks share a batch, the valid steps of
each."""


def losses_of(phase: Phase, num_models: int, *, counted: bool = False) -> Losses:
    """A phase's means: of what it minimises, of what is only watched, and, if asked for, of how
    many steps each is."""

    def losses(
        kind: type, batch: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        terms = phase.terms(kind(**batch))
        means = {name: means_of(term, num_models) for name, term in terms.items()}
        counts = (
            {name: counts_of(term, num_models) for name, term in terms.items()} if counted else {}
        )
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
        return torch.full(
            (num_models,), term.counts * len(term.sums) // num_models, device=term.sums.device
        )
    return term.counts.reshape(num_models, -1).sum(1)


def shares_of(counts: dict[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """What part of all ranks' valid steps are this rank's, for each term [M]."""
    own = torch.stack(list(counts.values())).double()
    return dict(zip(counts, own / ranks.sum(own).clamp(min=1), strict=True))


def over_ranks(
    losses: dict[str, Tensor], watched: dict[str, Tensor], gradients: Sequence[Tensor], ranks: Ranks
) -> tuple[dict[str, Tensor], dict[str, Tensor], tuple[Tensor, ...]]:
    """Sums over ranks, each of which brings its share: the losses and gradients of the whole
    batch."""
    values = {name: value.detach() for name, value in (losses | watched).items()}
    found = ranks.sum_together([*values.values(), *gradients])
    means = dict(zip(values, found, strict=False))
    return (
        {name: means[name] for name in losses},
        {name: means[name] for name in watched},
        tuple(found[len(values) :]),
    )
