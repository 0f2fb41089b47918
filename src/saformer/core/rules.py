"""Rules: what is proposed and which candidate is taken. The paper's, and one without a critic."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from saformer.core.history import Prompt
from saformer.core.model import Prefix, Risk, SaFormer, expected_cost
from saformer.core.policy import Candidates, Decision, Verification

ActionNoise = Literal["normal", "two_point"]
PastReturn = Literal["selected", "expected", "highest"]
Fallback = Literal["mean", "least_cost", "likely"]
LIKELY_SHARE = 0.25  # of each round's candidates, the most probable: `likely` takes the cheapest


@dataclass(frozen=True)
class ProposalOptions:
    """What every rule lets one choose."""

    candidates: int = 128
    """N: returns and actions proposed per round. The first is the mean of both heads."""
    temperature: float = 1.0
    """Spread of the other proposals, in deviations: 1 as the paper samples, 0 means only."""
    action_noise: ActionNoise = "normal"
    """normal: as the paper samples. two_point: each dimension one deviation above or below its
    mean, which hits both modes where the data acts with either sign."""
    past_return: PastReturn = "selected"
    """Which return-to-go enters the past: the selected, the expected or the highest proposed."""
    seed: int = 0
    """Seed of the proposals."""

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise ValueError(f"candidates must be at least 1, got {self.candidates}")
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")

    def draw(self, lanes: int, actions: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A round's standard normal numbers: for returns-to-go [L, N], for actions [L, N, A]."""
        shape, where = (lanes, self.candidates), generator.device
        for_returns = torch.randn(shape, generator=generator, device=where)
        return for_returns, torch.randn((*shape, actions), generator=generator, device=where)


class Rule(Protocol):
    """A way of acting. Unless a rule says otherwise, it reads, spreads and proposes once, as the
    paper does. It computes with tensors alone and never waits for a GPU, so it can be recorded."""

    options: ProposalOptions
    rounds: int = 1  # of proposals: the first decision that did not fall back, else by its score
    asks_critic: bool = True  # else it does not read the past

    def __init__(self, options: ProposalOptions) -> None:
        self.options = options

    def prompt(self, prompt: Prompt) -> Prompt:
        """What the networks read."""
        return prompt

    def deviations(
        self, prefix: Prefix, for_returns: Tensor, for_actions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """How far what was drawn, [L, N] and [L, N, A], puts proposals from their means."""
        if self.options.action_noise == "two_point":
            for_actions = for_actions.sign()
        is_drawn = torch.arange(for_returns.shape[1], device=for_returns.device) > 0
        spread = self.options.temperature * is_drawn
        return spread * for_returns, spread[:, None] * for_actions

    @abstractmethod
    def select(self, model: SaFormer, prefix: Prefix, candidates: Candidates) -> Decision:
        """One of the candidates for each lane."""


@dataclass(frozen=True)
class PaperOptions(ProposalOptions):
    """Reject candidates that the critic forecasts to overrun the budget."""

    rounds: int = 4
    """Rounds of proposals before the fallback decides; the paper re-samples without end."""
    fallback: Fallback = "least_cost"
    """When no round is safe. mean: both heads' means; least_cost: the smallest forecast overrun of
    all rounds; likely: the same among the quarter of each that the actor finds most probable."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {self.rounds}")


class PaperRule(Rule):
    """Algorithm 1, lines 9 to 14: the safe candidate of the highest return."""

    options: PaperOptions

    def __init__(self, options: PaperOptions, risk: Risk = expected_cost) -> None:
        super().__init__(options)
        self.rounds, self._risk = options.rounds, risk

    def select(self, model: SaFormer, prefix: Prefix, candidates: Candidates) -> Decision:
        verification = verify(model, prefix, candidates, self._risk)
        return select(candidates, verification, self.options.fallback)


@dataclass(frozen=True)
class NoCriticOptions(ProposalOptions):
    """Take the highest return proposed, whatever it is forecast to cost."""


class NoCriticRule(Rule):
    """The paper's ablation: no candidate is rejected."""

    def select(self, model: SaFormer, prefix: Prefix, candidates: Candidates) -> Decision:
        return decision_of(candidates, candidates.return_to_go.argmax(1))


def propose(model: SaFormer, prefix: Prefix, rule: Rule, *drawn: Tensor) -> Candidates:
    """N returns-to-go, and an action for each, by what was drawn (Algorithm 1, lines 5 to 8)."""
    return_noise, action_noise = rule.deviations(prefix, *drawn)
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


def select(candidates: Candidates, verification: Verification, fallback: Fallback) -> Decision:
    """The safe candidate of the highest return (line 12); where none is safe, the fallback's."""
    fell_back = ~verification.safe.any(1)
    best = candidates.return_to_go.masked_fill(~verification.safe, -torch.inf).argmax(1)
    score, cheapest = _scores(candidates, verification.overrun, fallback).min(1)
    chosen = torch.where(fell_back, cheapest, best)
    return decision_of(candidates, chosen, verification, fell_back, score)


def decision_of(
    candidates: Candidates,
    chosen: Tensor,
    verification: Verification | None = None,
    fell_back: Tensor | None = None,
    score: Tensor | None = None,
) -> Decision:
    """The chosen candidate [L] of each lane; without a verification, all of them count as safe;
    without a score, the first round's fallback stands."""
    lanes, proposed = torch.arange(len(chosen), device=chosen.device), candidates.return_to_go
    count = proposed.shape[1]
    num_safe = torch.full_like(chosen, count) if verification is None else verification.safe.sum(1)
    return Decision(
        action=candidates.action[lanes, chosen],
        return_to_go=proposed[lanes, chosen],
        chosen=chosen,
        num_safe=num_safe,
        num_rounds=torch.ones_like(chosen),
        fell_back=torch.zeros_like(chosen, dtype=torch.bool) if fell_back is None else fell_back,
        candidates=candidates,
        verification=verification,
        score=torch.zeros_like(proposed[:, 0]) if score is None else score,
    )


def _scores(candidates: Candidates, overrun: Tensor, fallback: Fallback) -> Tensor:
    """What the fallback takes the lowest of, in any round: [L, N]. A quarter of every round is a
    quarter of them all, and no round more can raise what is taken."""
    if fallback == "mean":
        return torch.zeros_like(overrun)  # the first of equals
    if fallback == "likely":
        return overrun.masked_fill(~likely(candidates.log_density), torch.inf)
    return overrun


def likely(log_density: Tensor) -> Tensor:
    """[L, N] whether a candidate is one of the most probable."""
    count = max(1, round(LIKELY_SHARE * log_density.shape[1]))
    return log_density >= log_density.topk(count, dim=1).values[:, -1:]
