"""Algorithm 1: propose, verify, select, within a budget."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from saformer.core.budget import Budget
from saformer.core.critic import Risk, expected_cost
from saformer.core.history import History
from saformer.core.model import Reading, SaFormer
from saformer.core.policy import Decision, as_rows
from saformer.core.proposals import (
    ExecutionOptions,
    PastReturn,
    Selector,
    draw,
    propose,
    resolved,
    select,
    verify,
)
from saformer.core.recording import Recorder, moved, over_tensors


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
        reserve: Selector | None = None,
    ) -> None:
        self.options = resolved(options or ExecutionOptions(), has_reserve=reserve is not None)
        if reserve is None and self.options.verification in ("reserve", "told"):
            raise ValueError(
                "verification by reserve needs to know what steps cost: give the policy a reserve"
            )
        self._reserve = reserve if self.options.verification in ("reserve", "told") else None
        self._model = model.eval()
        self._window, self._cost_discount, self._risk = window, cost_discount, risk
        self._device = model.normalizer.centre("state").device
        self._generator = torch.Generator(self._device).manual_seed(self.options.seed)
        self._begin(num_lanes=0)

    def _begin(self, *, num_lanes: int) -> None:
        """Make room for so many episodes."""
        dimensions, device = self._model.dimensions, self._device
        self._every_lane = torch.arange(num_lanes, device=device)
        self.budget = Budget(
            torch.zeros(num_lanes, dimensions.constraints, device=device), self._cost_discount
        )
        self.history = History(num_lanes, self._window - 1, dimensions, device)
        recorder = Recorder(num_lanes, device)
        self._read = recorder.recorded(self._read_past, trimmed=False)
        self._first = recorder.recorded(self._round)
        self._next = recorder.recorded(
            lambda reading, some, *drawn: self._round(reading.of_lanes(some), *drawn)
        )

    def reset(self, state: object, limit: object, lanes: Tensor | None = None) -> None:
        """Begin episodes on all lanes, or on the named ones: states [L, S], limits [L, C]."""
        dimensions = self._model.dimensions
        num_lanes = len(as_rows(state, dimensions.state, self._device))
        limit = as_rows(limit, dimensions.constraints, self._device, least=0.0).expand(
            num_lanes, -1
        )
        if lanes is None:
            self._generator.manual_seed(self.options.seed)
            if num_lanes != len(self._every_lane):
                self._begin(num_lanes=num_lanes)
        self.budget.renew(limit, self._lanes(lanes))
        self.history.forget(self._lanes(lanes))

    def act(self, state: object, lanes: Tensor | None = None) -> Decision:
        """Choose one action per lane for states [L, S]."""
        index = self._lanes(lanes)
        state = as_rows(state, self._model.dimensions.state, self._device)
        if len(state) != len(index):
            raise ValueError(
                f"got {len(state)} states for {len(index)} lanes; call reset first, with one "
                "state a lane"
            )
        decision: Decision = over_tensors(
            torch.clone, self._decide(state, index)
        )  # the caller's own
        asked = _remembered_return(decision, self.options.past_return)
        self.history.append(
            state, decision.action, asked, self.budget, slice(None) if lanes is None else index
        )
        return decision

    def observe(
        self, reward: object, cost: object, lanes: Tensor | None = None, *, action: object = None
    ) -> None:
        """Book what the last action cost: costs [L, C]. The reward is not needed: returns are asked
        for anew."""
        cost = as_rows(cost, self._model.dimensions.constraints, self._device, least=0.0)
        self.budget.spend(cost, self._lanes(lanes))
        if action is not None:
            self.history.correct(
                as_rows(action, self._model.dimensions.action, self._device), self._lanes(lanes)
            )

    @torch.inference_mode()
    def _decide(self, state: Tensor, lanes: Tensor) -> Decision:
        reading = self._read(self.history, state, lanes)
        decision: Decision = self._first(reading, *self._draw(len(lanes)))
        for _ in range(1, self.options.rounds if self.options.verification == "paper" else 1):
            rejected = decision.fell_back.cpu().nonzero()[:, 0]  # type: ignore[union-attr] # all that the host waits for
            if len(rejected) == 0:
                break
            rejected = moved(rejected, self._device)
            again = self._next(reading, rejected, *self._draw(len(rejected)))
            decision = _with_another_round(decision, again, rejected)
        return decision

    def _draw(self, num_lanes: int) -> tuple[Tensor, Tensor]:
        return draw(num_lanes, self._model.dimensions.action, self.options, self._generator)

    def _read_past(self, history: History, state: Tensor, lanes: Tensor) -> Reading:
        prompt = history.prompt(state, self.budget, lanes)
        if self._reserve is None:
            return self._model.read(prompt)
        remaining = prompt.cost_to_go - self.options.margin * prompt.past.limit
        told = self._reserve.tell(
            prompt, remaining if self.options.verification == "reserve" else None
        )
        return replace(self._model.read(told), remaining=remaining)

    def _round(self, reading: Reading, *drawn: Tensor) -> Decision:
        candidates = propose(self._model, reading, self.options, *drawn)
        is_verified = self.options.verification in ("paper", "reserve")
        verification = (
            verify(self._model, reading, candidates, reading.remaining, self._risk)
            if is_verified
            else None
        )
        if self._reserve is not None:
            return self._reserve.select(self._model, reading, candidates, verification)
        return select(candidates, verification, self.options.fallback)

    def _lanes(self, lanes: Tensor | None) -> Tensor:
        return self._every_lane if lanes is None else moved(lanes, self._device)


def _remembered_return(decision: Decision, past_return: PastReturn) -> Tensor:
    """The return-to-go that stands for this step in the past: [L, 1]."""
    if past_return == "selected":
        return decision.return_to_go[:, None]  # type: ignore[index]
    proposed = decision.candidates.return_to_go  # type: ignore[union-attr]
    return proposed.amax(1, keepdim=True) if past_return == "highest" else proposed[:, :1]


def _with_another_round(decision: Decision, again: Decision, lanes: Tensor) -> Decision:
    """The decision after `lanes` were proposed for once more, in its place: nobody has seen it
    yet."""
    num_rounds = decision.num_rounds.index_add(0, lanes, torch.ones_like(lanes))  # type: ignore[union-attr]
    merged: Decision = over_tensors(
        lambda old, new: old.index_copy_(0, lanes, new), decision, again
    )
    return replace(merged, num_rounds=num_rounds)
