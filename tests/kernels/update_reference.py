"""How far the kernels that clip, step and add up are from torch's own: a program, since Triton is
interpreted or not.

Prints a JSON object. On a GPU the kernels are compiled, elsewhere interpreted (TRITON_INTERPRET=1)
and slow.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import nn

from saformer.agents.agent import Phase
from saformer.kernels.updates import FusedAdamW
from saformer.training.loop.config import FitConfig
from saformer.training.loop.metrics import RunningMetrics
from saformer.training.loop.optimizers import Optimizer, PlainAdamW, optimizer_of
from saformer.training.loop.trainer import Member, PackTrainer
from tests.training.test_update import CHEETAH, CONFIG, HOPPER, agents, sampler

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPES = ((3, 700), (5,), (1,), (2, 2, 4))
"""Several tiles, and rows that begin anywhere."""
BAD_STEP = 3


def fused(
    phase: Phase, config: FitConfig, device: torch.device, *, num_models: int = 1
) -> Optimizer:
    """As `optimizer_of`, wherever it runs."""
    return FusedAdamW(
        phase.parameters,
        num_models=num_models,
        learning_rate=phase.learning_rate or config.learning_rate,
        weight_decay=config.weight_decay,
        gradient_clip=config.gradient_clip,
    )


def steps(num_models: int) -> float:
    """Norms, weights and averages over steps of large and small gradients, one of which is bad."""
    generator, config = (
        torch.Generator().manual_seed(0),
        FitConfig(learning_rate=1e-2, weight_decay=0.1),
    )
    tensors = [torch.randn(num_models, *shape, generator=generator).to(DEVICE) for shape in SHAPES]
    phases = [
        Phase("", tuple(nn.Parameter(tensor.clone()) for tensor in tensors), lambda _: {})
        for _ in range(2)
    ]
    theirs = PlainAdamW(phases[0], config, num_models=num_models, on_gpu=False)
    ours, furthest = fused(phases[1], config, DEVICE, num_models=num_models), 0.0
    for number in range(6):
        size = 1e-3 if number % 2 else 1.0
        gradients = [size * torch.randn(t.shape, generator=generator).to(DEVICE) for t in tensors]
        norms = theirs.take([gradient.clone() for gradient in gradients])
        furthest = max(furthest, ((ours.take(gradients) - norms).abs() / norms).max().item())
        ours.found_inf = torch.tensor(float(number == BAD_STEP), device=DEVICE)
        ours.step()
        if number != BAD_STEP:
            theirs.step()
        for one, other in zip(*(phase.parameters for phase in phases), strict=True):
            pairs = [
                (theirs.state[one][name], ours.state[other][name]) for name in ours.state[other]
            ]
            furthest = max(
                furthest,
                *((a.cpu() - b.cpu()).abs().max().item() for a, b in [(one, other), *pairs]),
            )
    return furthest


def measured() -> float:
    """Sums, the last values, good updates and whether one was bad: three good ones, an infinite
    one, another."""
    generator, totals = torch.Generator().manual_seed(0), []
    values = torch.randn(5, 3, 4, generator=generator).to(DEVICE)
    values[3, 1, 2] = torch.inf
    for kernels in (False, True):
        metrics = RunningMetrics(DEVICE)
        metrics._has_kernels = kernels
        for rows in values:
            metrics.add({str(number): row for number, row in enumerate(rows)})
        parts = (metrics._sums, metrics._latest, metrics._num_good, metrics.non_finite)
        totals.append(torch.cat([part.flatten() for part in parts]))
    assert torch.equal(totals[0].isfinite(), totals[1].isfinite())
    return (totals[0] - totals[1])[totals[0].isfinite()].abs().max().item()


def handed_on(first: Callable[..., Optimizer], rest: Callable[..., Optimizer]) -> float:
    """Losses of two packed runs, saved half-way by one kind of optimiser and gone on with by
    another."""
    whole, begun = _pack(optimizer_of), _pack(first)
    expected = [_losses(whole) for _ in range(6)]
    found = [_losses(begun) for _ in range(3)]
    saved = [begun.checkpoint({}, number) for number in range(2)]
    after = _pack(rest)
    with _with(rest):
        after.restore(saved)
    found += [_losses(after) for _ in range(3)]
    return (torch.tensor(expected) - torch.tensor(found)).abs().max().item()


def _pack(make: Callable[..., Optimizer]) -> PackTrainer:
    with _with(make):
        members = []
        for seed, (agent, data) in enumerate(zip(agents(), (HOPPER, CHEETAH), strict=True)):
            agent.model.to(DEVICE)
            members.append(Member(agent, sampler(data, DEVICE), seed))
        return PackTrainer(members, CONFIG)


def _losses(pack: PackTrainer) -> list[list[float]]:
    return [list(row.values()) for row in pack.advance(1)[1]]


def _with(make: Callable[..., Optimizer]) -> Any:
    return mock.patch("saformer.training.loop.trainer.optimizer_of", make)


if __name__ == "__main__":
    found = {f"models: {number}": steps(number) for number in (1, 3)}
    found |= {
        "measured": measured(),
        "saved": handed_on(fused, optimizer_of),
        "restored": handed_on(optimizer_of, fused),
    }
    print(json.dumps(found))
