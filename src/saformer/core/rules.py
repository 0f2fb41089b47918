"""Rules: which of the candidates is executed. The paper's, and the same without a critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from saformer.core.critic import Risk, expected_cost
from saformer.core.history import Prompt
from saformer.core.model import Prefix, SaFormer
from saformer.core.policy import Decision
from saformer.core.proposals import Candidates, ProposalOptions, Verification, deviations, verify

Fallback = Literal["mean", "least_cost", "likely"]
LIKELY_SHARE = 0.25
"""`likely` falls back on the cheapest among this share of the candidates, the most probable."""


class Rule(Protocol):
    """A way of acting. Unless a rule says otherwise, it reads, spreads and proposes once, as the
    paper does. It reads tensors alone and never waits for a GPU, so that it can be recorded."""

    options: ProposalOptions

    @property
    def rounds(self) -> int:
        """Rounds of proposals for lanes whose decision fell back."""
        return 1

    def prompt(self, prompt: Prompt) -> Prompt:
        """What the networks read."""
        return prompt

    def deviations(self, for_returns: Tensor, for_actions: Tensor) -> tuple[Tensor, Tensor]:
        """How far random numbers [L, N] and [L, N, A] put proposals from their means."""
        return deviations(self.options, for_returns, for_actions)

    def select(self, model: SaFormer, prefix: Prefix, candidates: Candidates) -> Decision:
        """One of the candidates for each lane."""
        raise NotImplementedError


@dataclass(frozen=True)
class PaperOptions(ProposalOptions):
    """Reject candidates that the critic forecasts to overrun the budget."""

    rounds: int = 4
    """Rounds of proposals before the fallback decides; the paper re-samples without end."""
    fallback: Fallback = "mean"
    """When no round is safe. mean: both heads' means; least_cost: the smallest forecast overrun;
    likely: the same among the quarter of the candidates that the actor finds most probable."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {self.rounds}")


class PaperRule(Rule):
    """Algorithm 1, lines 9 to 14: the safe candidate of the highest return."""

    def __init__(self, options: PaperOptions, risk: Risk = expected_cost) -> None:
        self.options: PaperOptions = options
        self._risk = risk

    @property
    def rounds(self) -> int:
        return self.options.rounds

    def select(self, model: SaFormer, prefix: Prefix, candidates: Candidates) -> Decision:
        verification = verify(model, prefix, candidates, self._risk)
        return select(candidates, verification, self.options.fallback)


@dataclass(frozen=True)
class NoCriticOptions(ProposalOptions):
    """Take the highest return proposed, whatever it is forecast to cost."""


class NoCriticRule(Rule):
    """The paper's ablation: no candidate is rejected."""

    def __init__(self, options: NoCriticOptions) -> None:
        self.options: NoCriticOptions = options

    def select(self, model: SaFormer, prefix: Prefix, candidates: Candidates) -> Decision:
        return decision_of(candidates, candidates.return_to_go.argmax(1))


def select(candidates: Candidates, verification: Verification, fallback: Fallback) -> Decision:
    """The safe candidate of the highest return (line 12); where none is safe, the fallback's."""
    fell_back = ~verification.safe.any(1)
    best = candidates.return_to_go.masked_fill(~verification.safe, -torch.inf).argmax(1)
    chosen = torch.where(fell_back, _fallback(candidates, verification, fallback), best)
    return decision_of(candidates, chosen, verification, fell_back=fell_back)


def decision_of(
    candidates: Candidates,
    chosen: Tensor,
    verification: Verification | None = None,
    *,
    fell_back: Tensor | None = None,
) -> Decision:
    """The chosen candidate [L] of each lane; without a verification, all of them count as safe."""
    lanes = torch.arange(len(chosen), device=chosen.device)
    safe = torch.ones_like(candidates.return_to_go) if verification is None else verification.safe
    return Decision(
        action=candidates.action[lanes, chosen],
        return_to_go=candidates.return_to_go[lanes, chosen],
        chosen=chosen,
        num_safe=safe.bool().sum(1),
        num_rounds=torch.ones_like(chosen),
        fell_back=torch.zeros_like(chosen, dtype=torch.bool) if fell_back is None else fell_back,
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
