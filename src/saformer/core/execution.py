"""Algorithm 1: propose, verify, select, within a budget."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from saformer.core.budget import Budget
from saformer.core.critic import CostForecast, Risk, expected_cost
from saformer.core.history import History
from saformer.core.model import Reading, SaFormer
from saformer.core.policy import Decision, as_rows
from saformer.core.recording import Recorder, over_tensors

Fallback = Literal["mean", "least_cost", "likely"]
ActionNoise = Literal["normal", "two_point"]
PastReturn = Literal["selected", "expected", "highest"]
LIKELY_SHARE = 0.25
"""`likely` falls back on the cheapest among this share of the candidates, the most probable ones."""


@dataclass(frozen=True)
class ExecutionOptions:
    """How a trained model acts."""

    candidates: int = 128
    """N: returns and actions proposed per round. The first is always the mean of both heads."""
    temperature: float = 1.0
    """Spread of the other proposals, in deviations of both heads: 1 samples as the paper does, 0 means only."""
    rounds: int = 4
    """Rounds of proposals before the fallback decides; the paper re-samples without end."""
    action_noise: ActionNoise = "normal"
    """normal: as the paper samples. two_point: each dimension one deviation above or below its mean, which hits both modes where the data acts with either sign."""  # noqa: E501
    verification: Literal["paper", "off"] = "paper"
    """paper: reject candidates forecast to overrun the budget. off: take the highest return proposed."""
    fallback: Fallback = "mean"
    """When no round is safe. mean: both heads' means; least_cost: the smallest forecast overrun; likely: the same among the quarter of the candidates that the actor finds most probable."""  # noqa: E501
    past_return: PastReturn = "selected"
    """Which return-to-go enters the past: the selected candidate's, the expected one, or the highest proposed."""
    seed: int = 0
    """Seed of the proposals."""

    def __post_init__(self) -> None:
        if self.candidates < 1 or self.rounds < 1:
            raise ValueError(f"candidates and rounds must be at least 1, got {self.candidates} and {self.rounds}")
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
    """[L, N, C] the forecast, read at the policy's risk"""
    remaining: Tensor
    """[L, C] what it is held against"""
    overrun: Tensor
    """[L, N] the worst constraint's forecast beyond its budget, in the scale of that cost"""

    @property
    def safe(self) -> Tensor:
        """[L, N] bool: every constraint is forecast to hold."""
        return (self.cost <= self.remaining[:, None]).all(-1)


def draw(lanes: int, actions: int, options: ExecutionOptions, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """What a round leaves to chance, in deviations: returns-to-go [L, N] and actions [L, N, A] from their means."""
    shape, device = (lanes, options.candidates), generator.device
    return_noise = torch.randn(*shape, generator=generator, device=device)
    action_noise = torch.randn(*shape, actions, generator=generator, device=device)
    if options.action_noise == "two_point":
        action_noise = action_noise.sign()
    return_noise[:, 0], action_noise[:, 0] = 0, 0
    return options.temperature * return_noise, options.temperature * action_noise


def propose(model: SaFormer, reading: Reading, return_noise: Tensor, action_noise: Tensor) -> Candidates:
    """N returns-to-go, and an action for each, so far from their means (Algorithm 1, lines 5 to 8)."""
    return_to_go, return_density = model.returns_to_go(reading, return_noise)
    action, action_density = model.actions(reading, return_to_go, action_noise)
    return Candidates(return_to_go[..., 0], action, return_density + action_density)


def verify(
    model: SaFormer, reading: Reading, candidates: Candidates, remaining: Tensor, risk: Risk = expected_cost
) -> Verification:
    """Forecast what each candidate leads to, and hold it against the budget (lines 10 and 11)."""
    forecast: CostForecast = model.forecast(reading, candidates.action)
    cost = risk(forecast)
    overrun = ((cost - remaining[:, None]) / model.normalizer.scale("cost_to_go")).amax(-1)
    return Verification(cost, remaining, overrun)


def select(candidates: Candidates, verification: Verification | None, fallback: Fallback) -> Decision:
    """The safe candidate of the highest return (line 12); where none is safe, the fallback's."""
    wanted = candidates.return_to_go
    safe = torch.ones_like(wanted, dtype=torch.bool) if verification is None else verification.safe
    fell_back = ~safe.any(1)
    chosen = wanted.masked_fill(~safe, -torch.inf).argmax(1)
    if verification is not None:
        chosen = torch.where(fell_back, _fallback(candidates, verification, fallback), chosen)
    lanes = torch.arange(len(chosen), device=chosen.device)
    return Decision(
        action=candidates.action[lanes, chosen],
        return_to_go=wanted[lanes, chosen],
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


class SaFormerPolicy:
    """Acts within a budget: Algorithm 1 for L episodes at once.

    Implements: Algorithm 1
    """

    def __init__(
        self,
        model: SaFormer,
        *,
        window: int,
        cost_discount: float = 1.0,
        options: ExecutionOptions | None = None,
        risk: Risk = expected_cost,
    ) -> None:
        self.options = options or ExecutionOptions()
        self._model = model.eval()
        self._window, self._cost_discount = window, cost_discount
        self._risk = risk
        self._device = model.normalizer.centre("state").device
        self._generator = torch.Generator(self._device).manual_seed(self.options.seed)
        self._begin(num_lanes=0)

    def _begin(self, *, num_lanes: int) -> None:
        """Make room for so many episodes."""
        dimensions, device = self._model.dimensions, self._device
        self._every_lane = torch.arange(num_lanes, device=device)
        self.budget = Budget(torch.zeros(num_lanes, dimensions.constraints, device=device), self._cost_discount)
        self.history = History(num_lanes, self._window - 1, dimensions, device)
        recorder = Recorder(num_lanes, device)
        self._read = recorder.recorded(self._read_past, trimmed=False)
        self._first, self._next = recorder.recorded(self._first_round), recorder.recorded(self._next_round)

    def reset(self, state: object, limit: object, lanes: Tensor | None = None) -> None:
        """Begin episodes on all lanes, or on the named ones: states [L, S], limits [L, C]."""
        dimensions = self._model.dimensions
        num_lanes = len(as_rows(state, dimensions.state, self._device))
        limit = as_rows(limit, dimensions.constraints, self._device, least=0.0).expand(num_lanes, -1)
        if lanes is None:
            self._generator.manual_seed(self.options.seed)
            if num_lanes != len(self._every_lane):
                self._begin(num_lanes=num_lanes)
        self.budget.renew(limit, self._lanes(lanes))
        self.history.forget(self._lanes(lanes))

    def act(self, state: object, lanes: Tensor | None = None) -> Decision:
        """Choose one action per lane for states [L, S]."""
        lanes = self._lanes(lanes)
        state = as_rows(state, self._model.dimensions.state, self._device)
        if len(state) != len(lanes):
            raise ValueError(f"got {len(state)} states for {len(lanes)} lanes; call reset first, with one state a lane")
        decision: Decision = over_tensors(torch.clone, self._decide(state, lanes))  # the caller's own
        asked = _remembered_return(decision, self.options.past_return)
        self.history.append(state, decision.action, asked[:, None], self.budget, lanes)
        return decision

    def observe(self, reward: object, cost: object, lanes: Tensor | None = None, *, action: object = None) -> None:
        """Book what the last action cost: costs [L, C]. The reward is not needed: returns are asked for anew."""
        cost = as_rows(cost, self._model.dimensions.constraints, self._device, least=0.0)
        self.budget.spend(cost, self._lanes(lanes))
        if action is not None:
            self.history.correct(as_rows(action, self._model.dimensions.action, self._device), self._lanes(lanes))

    @torch.inference_mode()
    def _decide(self, state: Tensor, lanes: Tensor) -> Decision:
        reading = self._read(self.history, state, lanes)
        decision: Decision = self._first(reading, *self._draw(len(lanes)))
        for _ in range(1, self.options.rounds):
            assert decision.fell_back is not None
            rejected = decision.fell_back.cpu().nonzero()[:, 0].to(self._device)  # all that the host waits for
            if len(rejected) == 0:
                break
            again = self._next(reading, rejected, *self._draw(len(rejected)))
            decision = _with_another_round(decision, again, rejected)
        return decision

    def _draw(self, num_lanes: int) -> tuple[Tensor, Tensor]:
        return draw(num_lanes, self._model.dimensions.action, self.options, self._generator)

    def _read_past(self, history: History, state: Tensor, lanes: Tensor) -> Reading:
        return self._model.read(history.prompt(state, self.budget, lanes))

    def _first_round(self, reading: Reading, *noise: Tensor) -> Decision:
        candidates = propose(self._model, reading, *noise)
        verifying = self.options.verification == "paper"
        verification = verify(self._model, reading, candidates, reading.remaining, self._risk) if verifying else None
        return select(candidates, verification, self.options.fallback)

    def _next_round(self, reading: Reading, rejected: Tensor, *noise: Tensor) -> Decision:
        return self._first_round(reading.of_lanes(rejected), *noise)

    def _lanes(self, lanes: Tensor | None) -> Tensor:
        return self._every_lane if lanes is None else lanes.to(self._device)


def _remembered_return(decision: Decision, past_return: PastReturn) -> Tensor:
    """The return-to-go that stands for this step in the past: [L]."""
    assert decision.candidates is not None
    assert decision.return_to_go is not None
    proposed = decision.candidates.return_to_go
    return {"selected": decision.return_to_go, "expected": proposed[:, 0], "highest": proposed.amax(1)}[past_return]


def _with_another_round(decision: Decision, again: Decision, lanes: Tensor) -> Decision:
    """The decision after `lanes` were proposed for once more, in its place: nobody has seen it yet."""
    num_rounds = decision.num_rounds.index_add(0, lanes, torch.ones_like(lanes))  # type: ignore[union-attr]
    merged: Decision = over_tensors(lambda old, new: old.index_copy_(0, lanes, new), decision, again)
    return replace(merged, num_rounds=num_rounds)
