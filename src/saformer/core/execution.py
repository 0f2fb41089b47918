"""Algorithm 1: propose, verify, select, within a budget."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from saformer.core.budget import Budget
from saformer.core.history import History
from saformer.core.model import Prefix, SaFormer
from saformer.core.policy import Decision, as_rows, over_tensors, to_device
from saformer.core.rules import PastReturn, Rule, propose


class SaFormerPolicy:
    """Acts within a budget, by a rule, for L episodes at once; the recorder may replay them.
    Implements: Algorithm 1"""

    def __init__(
        self, model: SaFormer, rule: Rule, recorder: Any, *, window: int, cost_discount: float = 1.0
    ) -> None:
        self.rule, self.seed = rule, rule.options.seed
        self.model, self._recorder = model.eval(), recorder
        self.window, self._cost_discount = window, cost_discount
        self._device = model.normalizer.centre("state").device
        self._generator = torch.Generator(self._device).manual_seed(self.seed)
        self._begin(num_lanes=0)

    def _begin(self, *, num_lanes: int) -> None:
        dimensions, device = self.model.dimensions, self._device
        self._every_lane = torch.arange(num_lanes)
        self.budget = Budget(torch.zeros(num_lanes, dimensions.constraints), self._cost_discount)
        self.history = History(num_lanes, self.window - 1, dimensions, device)
        recorder = self._recorder(num_lanes, device)
        self._both = recorder.both if self.rule.asks_critic else recorder.second
        self._prefill = recorder.recorded(self._read_past, trimmed=False)
        self._first_round = recorder.recorded(self._round)
        self._next_round = recorder.recorded(
            lambda prefix, lanes, *drawn: self._round(prefix.of_lanes(lanes), *drawn)
        )

    def reset(self, state: object, limit: object, lanes: Tensor | None = None) -> None:
        dimensions = self.model.dimensions
        num_lanes = len(as_rows(state, dimensions.state, "state", self._device, lanes))
        limits = as_rows(limit, dimensions.constraints, "limit", lanes=lanes).expand(num_lanes, -1)
        if lanes is None:
            self._generator.manual_seed(self.seed)
            if num_lanes != len(self._every_lane):
                self._begin(num_lanes=num_lanes)
        which, index = self._lanes(lanes)
        self.budget.renew(limits, which)
        self.history.forget(index)

    def act(self, state: object, lanes: Tensor | None = None) -> Decision:
        which, index = self._lanes(lanes)
        rows = as_rows(state, self.model.dimensions.state, "state", self._device, lanes)
        if len(rows) != len(index):
            raise ValueError(f"{len(rows)} states for {len(index)} lanes; call reset, one a lane")
        account = to_device(self.budget.rows(which), self._device)
        # a copy: a recording's next replay overwrites its results
        decision: Decision = over_tensors(torch.clone, self._decide(rows, account, index))
        return_to_go = past_return(decision, self.rule.options.past_return)
        self.history.append(account, index, return_to_go, rows, decision.action)
        try:
            return decision.on_host(which)  # the caller waits here, and no more after it
        except ValueError:
            self.history.forget(index)
            raise

    def observe(
        self, reward: object, cost: object, lanes: Tensor | None = None, *, action: object = None
    ) -> None:
        """Book what the last action cost. Each step asks for a return anew, whatever the reward."""
        dimensions, (which, index) = self.model.dimensions, self._lanes(lanes)
        self.budget.spend(as_rows(cost, dimensions.constraints, "cost", lanes=lanes), which)
        if action is not None:
            self.history.correct(as_rows(action, dimensions.action, "action", self._device), index)

    @torch.inference_mode()
    def _decide(self, state: Tensor, account: Tensor, lanes: Tensor) -> Any:
        prefix = self._prefill(self.history, state, account, lanes)
        decision: Any = self._first_round(prefix, *self._draw(len(lanes)))
        for _ in range(1, self.rule.rounds):
            rejected = decision.fell_back.cpu().nonzero()[:, 0]  # the host waits for this alone
            if len(rejected) == 0:
                break
            rejected = to_device(rejected, self._device)
            again = self._next_round(prefix, rejected, *self._draw(len(rejected)))
            decision = _with_another_round(decision, again, rejected)
        return decision

    def _draw(self, num_lanes: int) -> tuple[Tensor, Tensor]:
        return self.rule.options.draw(num_lanes, self.model.dimensions.action, self._generator)

    def _read_past(self, history: History, *present: Tensor) -> Prefix:
        return self.model.prefill(self.rule.prompt(history.prompt(*present)), self._both)

    def _round(self, prefix: Prefix, *drawn: Tensor) -> Decision:
        candidates = propose(self.model, prefix, self.rule, *drawn)
        return self.rule.select(self.model, prefix, candidates)

    def _lanes(self, lanes: Tensor | None) -> tuple[Tensor, Tensor]:
        """On the host, where accounts are, and where networks are."""
        which = self._every_lane if lanes is None else lanes.cpu()
        return which, to_device(which, self._device)


def past_return(decision: Any, which: PastReturn) -> Any:
    """The return-to-go that stands for this step in the past: [L, 1]."""
    if which == "selected":
        return decision.return_to_go[:, None]
    proposed = decision.candidates.return_to_go
    return proposed.amax(1, keepdim=True) if which == "highest" else proposed[:, :1]


def _with_another_round(decision: Any, again: Any, lanes: Tensor) -> Any:
    """The decision after another round of proposals for these lanes, which had fallen back: the new
    one where it did not, or where it scores lower."""
    is_better = ~again.fell_back | (again.score < decision.score[lanes])
    row = torch.arange(len(decision.action) + len(lanes), device=lanes.device)
    old, new = row.split([len(decision.action), len(lanes)])
    rows = old.index_copy(0, lanes, torch.where(is_better, new, lanes))
    num_rounds = decision.num_rounds.index_add(0, lanes, torch.ones_like(lanes))
    merged = over_tensors(lambda *both: torch.cat(both)[rows], decision, again)
    return replace(merged, num_rounds=num_rounds)
