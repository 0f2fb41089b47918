"""Proposals: what a round leaves to chance, what the actor makes of it, what the critic says, which
one is taken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from saformer.core.critic import Risk, expected_cost
from saformer.core.history import Prompt
from saformer.core.model import Reading, SaFormer
from saformer.core.policy import Decision

Fallback = Literal["mean", "least_cost", "likely"]
ActionNoise = Literal["normal", "two_point"]
PastReturn = Literal["selected", "expected", "highest"]
LIKELY_SHARE = 0.25
"""`likely` falls back on the cheapest among this share of the candidates, the most probable
ones."""


@dataclass(frozen=True)
class ExecutionOptions:
    """How a trained model acts."""

    candidates: int = 128
    """N: returns and actions proposed per round. The first is the mean of both heads; of two points
    it is one, if executed as a rule (reserve)."""
    temperature: float = 1.0
    """Spread of the other proposals, in deviations of both heads: 1 samples as the paper does, 0
    means only."""
    rounds: int = 4
    """Rounds of proposals before the fallback decides; the paper re-samples without end."""
    action_noise: ActionNoise = "normal"
    """normal: as the paper samples. two_point: each dimension one deviation above or below its
    mean, which hits both modes where the data acts with either sign."""
    verification: Literal["auto", "paper", "reserve", "told", "off"] = "auto"
    """auto: reserve, where there is one, else paper; in a shield told. paper: reject candidates
    forecast to overrun the budget. reserve: act by the means until no more is left than it takes to
    end the episode, then end it (docs/method.md). told: the same without that end, for a shield,
    which keeps the limit. off: take the highest return proposed."""
    spread: float = 16.0
    """reserve: deviations by which actions of the second half of the candidates are spread, to end
    an episode with."""
    margin: float = 0.01
    """reserve: share of a limit that is kept back."""
    fallback: Fallback = "mean"
    """When no round is safe. mean: both heads' means; least_cost: the smallest forecast overrun;
    likely: the same among the quarter of the candidates that the actor finds most probable."""
    past_return: PastReturn = "selected"
    """Which return-to-go enters the past: the selected candidate's, the expected one, or the
    highest proposed."""
    seed: int = 0
    """Seed of the proposals."""

    def __post_init__(self) -> None:
        if self.candidates < 1 or self.rounds < 1:
            raise ValueError(
                f"candidates and rounds must be at least 1, got {self.candidates} and {self.rounds}"
            )
        if not (self.temperature >= 0 and self.spread >= 0):
            raise ValueError(
                f"temperature and spread must be at least 0, got {self.temperature} and "
                f"{self.spread}"
            )
        if not 0 <= self.margin < 1:
            raise ValueError(
                f"margin is a share of the limit, at least 0 and below 1, got {self.margin}"
            )


def resolved(options: ExecutionOptions, *, has_reserve: bool) -> ExecutionOptions:
    """The same options with a verification that is named."""
    named: Literal["paper", "reserve"] = "reserve" if has_reserve else "paper"
    return replace(options, verification=named) if options.verification == "auto" else options


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
    """[L, N, C] the forecast, read at the policy's risk"""
    remaining: Tensor
    """[L, C] what it is held against"""
    overrun: Tensor
    """[L, N] the worst constraint's forecast beyond its budget, in the scale of that cost"""

    @property
    def safe(self) -> Tensor:
        """[L, N] bool: every constraint is forecast to hold."""
        return (self.cost <= self.remaining[:, None]).all(-1)


class Selector(Protocol):
    """Another way to take one of the candidates than `select`: what a reserve is to the policy."""

    def tell(self, prompt: Prompt, remaining: Tensor | None) -> Prompt:
        """What the networks are to read; what remains, if the limit is to be kept: [L, C]."""

    def select(
        self, model: SaFormer, reading: Reading, proposed: Candidates, found: Verification | None
    ) -> Decision:
        """One of the candidates for each lane."""


def draw(
    lanes: int, actions: int, options: ExecutionOptions, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """What a round leaves to chance, standard normal: for returns-to-go [L, N] and actions [L, N,
    A]."""
    shapes = (lanes, options.candidates), (lanes, options.candidates, actions)
    for_returns, for_actions = (
        torch.randn(shape, generator=generator, device=generator.device) for shape in shapes
    )
    return for_returns, for_actions


def deviations(
    options: ExecutionOptions, for_returns: Tensor, for_actions: Tensor
) -> tuple[Tensor, Tensor]:
    """How far from their means what was drawn puts returns-to-go [L, N] and actions [L, N, A], in
    deviations."""
    if options.action_noise == "two_point":
        for_actions = for_actions.sign()
    return_noise, action_noise = (
        options.temperature * for_returns,
        options.temperature * for_actions,
    )
    return_noise[:, 0].zero_()
    if options.verification not in ("reserve", "told") or options.action_noise != "two_point":
        action_noise[
            :, 0
        ].zero_()  # else the first is executed as a rule, and nobody acts by the mean of two modes
    if options.verification == "reserve":
        wide = slice(num_narrow(options.candidates), None)
        return_noise[:, wide].zero_()
        action_noise[:, wide].mul_(options.spread)
    return return_noise, action_noise


def num_narrow(candidates: int) -> int:
    """How many of them are spread as usual when a reserve is kept."""
    return -(-candidates // 2)


def propose(
    model: SaFormer, reading: Reading, options: ExecutionOptions, *drawn: Tensor
) -> Candidates:
    """N returns-to-go, and an action for each, by what was drawn for both (Algorithm 1, lines 5 to
    8)."""
    return_noise, action_noise = deviations(options, *drawn)
    return_to_go, return_density = model.returns_to_go(reading, return_noise)
    action, action_density = model.actions(reading, return_to_go, action_noise)
    return Candidates(return_to_go[..., 0], action, return_density + action_density)


def verify(
    model: SaFormer,
    reading: Reading,
    candidates: Candidates,
    remaining: Tensor,
    risk: Risk = expected_cost,
) -> Verification:
    """Forecast what each candidate leads to, and hold it against the budget (lines 10 and 11)."""
    cost = risk(model.forecast(reading, candidates.action))
    overrun = ((cost - remaining[:, None]) / model.normalizer.scale("cost_to_go")).amax(-1)
    return Verification(cost, remaining, overrun)


def select(
    candidates: Candidates, verification: Verification | None, fallback: Fallback
) -> Decision:
    """The safe candidate of the highest return (line 12); where none is safe, the fallback's."""
    wanted = candidates.return_to_go
    safe = torch.ones_like(wanted, dtype=torch.bool) if verification is None else verification.safe
    fell_back = ~safe.any(1)
    chosen = wanted.masked_fill(~safe, -torch.inf).argmax(1)
    if verification is not None:
        chosen = torch.where(fell_back, _fallback(candidates, verification, fallback), chosen)
    return decision_of(candidates, verification, chosen, safe=safe, fell_back=fell_back)


def decision_of(
    candidates: Candidates,
    verification: Verification | None,
    chosen: Tensor,
    *,
    safe: Tensor,
    fell_back: Tensor,
) -> Decision:
    """The chosen candidate [L] of each lane, and how it came about."""
    lanes = torch.arange(len(chosen), device=chosen.device)
    return Decision(
        action=candidates.action[lanes, chosen],
        return_to_go=candidates.return_to_go[lanes, chosen],
        chosen=chosen,
        num_safe=safe.sum(1),
        num_rounds=torch.ones_like(chosen),
        fell_back=fell_back,
        candidates=candidates,
        verification=verification,
    )


def _fallback(candidates: Candidates, verification: Verification, fallback: Fallback) -> Tensor:
    """Which candidate to take on each lane when none is safe: [L]."""
    overrun = verification.overrun
    if fallback == "mean":
        return torch.zeros(len(overrun), dtype=torch.int64, device=overrun.device)
    if fallback == "likely":
        num_likely = max(1, round(LIKELY_SHARE * overrun.shape[1]))
        threshold = candidates.log_density.topk(num_likely, dim=1).values[:, -1:]
        overrun = overrun.masked_fill(candidates.log_density < threshold, torch.inf)
    return overrun.argmin(1)
