"""Proposals: what the actor makes of a round's random numbers, and what the critic says of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from saformer.core.critic import Risk, expected_cost
from saformer.core.model import Prefix, SaFormer

ActionNoise = Literal["normal", "two_point"]
PastReturn = Literal["selected", "expected", "highest"]


@dataclass(frozen=True)
class ProposalOptions:
    """What every rule lets one choose."""

    candidates: int = 128
    """N: returns and actions proposed per round. The first is the mean of both heads."""
    temperature: float = 1.0
    """Spread of the other proposals, in deviations of both heads: 1 samples as the paper does, 0
    means only."""
    action_noise: ActionNoise = "normal"
    """normal: as the paper samples. two_point: each dimension one deviation above or below its
    mean, which hits both modes where the data acts with either sign."""
    past_return: PastReturn = "selected"
    """Which return-to-go enters the past: the selected candidate's, the expected one, or the
    highest proposed."""
    seed: int = 0
    """Seed of the proposals."""

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise ValueError(f"candidates must be at least 1, got {self.candidates}")
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")


@dataclass(frozen=True)
class Candidates:
    """N proposals per lane, in raw units. Number 0 is the mean of both heads."""

    return_to_go: Tensor
    """[L, N]"""
    action: Tensor
    """[L, N, A] within bounds"""
    log_density: Tensor
    """[L, N] how probable the actor finds them"""


@dataclass(frozen=True)
class Verification:
    """What the critic says of the candidates, in raw units."""

    cost: Tensor
    """[L, N, C] the forecast, read at the rule's risk"""
    remaining: Tensor
    """[L, C] what it is held against"""
    overrun: Tensor
    """[L, N] the worst constraint's forecast beyond its budget, in the scale of that cost"""

    @property
    def safe(self) -> Tensor:
        """[L, N] bool: every constraint is forecast to hold."""
        return (self.cost <= self.remaining[:, None]).all(-1)


def draw(
    lanes: int, actions: int, options: ProposalOptions, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """A round's random numbers, standard normal: for returns-to-go [L, N], for actions [L, N, A]."""
    shape = (lanes, options.candidates)
    for_returns = torch.randn(shape, generator=generator, device=generator.device)
    for_actions = torch.randn((*shape, actions), generator=generator, device=generator.device)
    return for_returns, for_actions


def deviations(
    options: ProposalOptions, for_returns: Tensor, for_actions: Tensor
) -> tuple[Tensor, Tensor]:
    """How far from their means returns-to-go [L, N] and actions [L, N, A] lie, in deviations."""
    if options.action_noise == "two_point":
        for_actions = for_actions.sign()
    return_noise = options.temperature * for_returns
    action_noise = options.temperature * for_actions
    return_noise[:, 0].zero_()
    action_noise[:, 0].zero_()
    return return_noise, action_noise


def propose(
    model: SaFormer, prefix: Prefix, return_noise: Tensor, action_noise: Tensor
) -> Candidates:
    """N returns-to-go, and an action for each, so many deviations from their means (Algorithm 1,
    lines 5 to 8)."""
    return_to_go, return_density = model.sample_returns(prefix, return_noise)
    action, action_density = model.sample_actions(prefix, return_to_go, action_noise)
    return Candidates(return_to_go[..., 0], action, return_density + action_density)


def verify(
    model: SaFormer, prefix: Prefix, candidates: Candidates, risk: Risk = expected_cost
) -> Verification:
    """Forecast what each candidate leads to, and hold it against the budget (lines 10 and 11)."""
    cost, remaining = risk(model.forecast(prefix, candidates.action)), prefix.remaining
    overrun = ((cost - remaining[:, None]) / model.normalizer.scale("cost_to_go")).amax(-1)
    return Verification(cost, remaining, overrun)
