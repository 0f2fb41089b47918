"""Evaluations of a run that is fine-tuned: which was the best, and what a caller hears of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from saformer.core.execution import SaFormerPolicy
from saformer.data.limits import Limit
from saformer.data.relabel import RelabelledStore
from saformer.evaluation.confidence import holds, upper_bound
from saformer.evaluation.evaluate import evaluate_policy
from saformer.evaluation.verdict import EpisodeRow, Verdict
from saformer.training.finetune.experience import ExploredEpisode, joined, overrun
from saformer.training.loop.trainer import Metrics

WeightsVerdict = dict[str, dict[str, Any]]
"""How some weights do under each limit, by the limit's name."""
TOLERATED_LOSS = 0.05
"""Share of its return that a limit met at first may lose: anyone can stand still."""
PATIENCE = 2
"""Evaluations that may pass before a limit that is held must have earned more."""


def judge_weights(
    policy: SaFormerPolicy, data: RelabelledStore, limits: Sequence[Limit], *, seed: int, **how: Any
) -> WeightsVerdict:
    """Roll out under every limit as it is, as `evaluate_policy` does; the seed decides initial
    states and proposals."""
    policy.seed = seed
    evaluation = evaluate_policy(policy, data, limits, seed=seed, **how)
    return {v.limit.name: _plain(v, evaluation.rows) for v in evaluation.verdicts}


def _plain(verdict: Verdict, rows: Sequence[EpisodeRow]) -> dict[str, Any]:
    costs = [row.cost for row in rows if row.limit_name == verdict.limit.name]
    return {
        "limit": verdict.limit.values,
        "cost": verdict.mean_cost,
        "bound": [upper_bound(values) for values in zip(*costs, strict=True)],
        "return": verdict.mean_return,
        "within": verdict.within,
        "met": verdict.met,
        "holds": verdict.met and holds(costs, verdict.limit.values),
        "fell_back": verdict.fell_back,
    }


def merit(verdict: WeightsVerdict, first: WeightsVerdict) -> tuple[int, int, float, float]:
    """How good an evaluation was, to be compared: how many limits are met, how many surely hold, by
    which share the others are overrun, and the mean return. Limits whose return was lost since the
    first evaluation count as neither."""
    earning = [v for name, v in verdict.items() if _keeps_return(v, first[name])]
    num_met, num_held = (sum(bool(v[name]) for v in earning) for name in ("met", "holds"))
    passed = [max(0.0, overrun(v["cost"], v["limit"])) for v in verdict.values()]
    return (
        num_met,
        num_held,
        -float(np.mean(passed)),
        float(np.mean([v["return"] for v in verdict.values()])),
    )


def held(verdict: WeightsVerdict, first: WeightsVerdict) -> set[str]:
    """The limits that surely hold and kept their return."""
    return {name for name, v in verdict.items() if v["holds"] and _keeps_return(v, first[name])}


def settled(evaluations: Sequence[dict[str, Any]]) -> set[str]:
    """The limits that are held and either were from the first, or earned most within the limit
    some evaluations ago: there is no more to come."""
    verdicts = [row["evaluation"] for row in evaluations]
    holding = [held(verdict, verdicts[0]) for verdict in verdicts]

    def is_rising(name: str) -> bool:
        pairs = zip(verdicts, holding, strict=True)
        earned = [verdict[name]["return"] if name in names else -np.inf for verdict, names in pairs]
        return int(np.argmax(earned)) >= max(1, len(earned) - PATIENCE)

    return {name for name in holding[-1] if not is_rising(name)}


def best_of(evaluations: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row of metrics with the best evaluation; of equals the first."""
    first = evaluations[0]["evaluation"]
    return max(evaluations, key=lambda row: merit(row["evaluation"], first))


def _keeps_return(now: dict[str, Any], first: dict[str, Any]) -> bool:
    """Whether a limit that was met at first still earns nearly as much."""
    least = first["return"] - TOLERATED_LOSS * abs(first["return"])
    return not first["met"] or bool(now["return"] >= least)


def opening_lines(
    limits: Sequence[Limit], data: RelabelledStore, ceiling: Sequence[float] | None
) -> Iterator[str]:
    """What is about to be tried, for a person who watches."""
    lowest = joined(np.min(data.episode_cost, axis=0).tolist())
    yield (
        f"limits: {', '.join(joined(limit.values) for limit in limits)}; the data begins at "
        f"{lowest}. cost! overruns the limit, cost? is within it but not surely"
    )
    if ceiling is None:
        return
    below = ", ".join(limit.name for limit in limits if np.less(ceiling, limit.values).any())
    if below:
        yield (
            f"the ceiling {joined(ceiling)} lies below the limit {below}: episodes that would "
            "keep it are ended and not learnt from; raise the ceiling unless that is meant"
        )


def verdict_line(num_episodes: int, verdict: WeightsVerdict) -> str:
    """For a person who watches; cost! overruns the limit, cost? is within it but not surely."""
    marks = ["" if v["holds"] else "?" if v["met"] else "!" for v in verdict.values()]
    pairs = zip(verdict.values(), marks, strict=True)
    parts = [f"{joined(v['limit'])}: {joined(v['cost'])}{mark}" for v, mark in pairs]
    held = f"{marks.count('')} of {len(verdict)} limits hold"
    return f"after {num_episodes} episodes {held}; limit: cost  {'  '.join(parts)}"


@dataclass(frozen=True)
class FinetuneObserver:
    """Functions of the caller's: called with each new episode and how many there may be, after
    updates, after each evaluation with the number of episodes explored before it, and with each
    row of metrics as it is written."""

    episode: Callable[[ExploredEpisode, int], None] = lambda row, allowance: None
    progress: Callable[[int, int, Metrics], None] = lambda update, total, metrics: None
    judged: Callable[[int, WeightsVerdict], None] = lambda num_episodes, verdict: None
    row: Callable[[dict[str, Any]], None] = lambda row: None


@dataclass(frozen=True)
class FinetuneOutcome:
    """How fine-tuning ended."""

    held: bool  # whether every limit surely holds, with its return; else the allowance is spent
    num_episodes: int
    num_evaluation_episodes: int
    broke_ceiling: float  # share of the explored episodes that did
    before: WeightsVerdict  # the first evaluation, before anything was explored
    after: WeightsVerdict  # the best evaluation, whose weights the run ends with
    kept_after: int  # episodes explored before that evaluation

    @classmethod
    def of(
        cls, explored: Sequence[ExploredEpisode], evaluations: Sequence[dict[str, Any]]
    ) -> FinetuneOutcome:
        best, first = best_of(evaluations), evaluations[0]["evaluation"]
        return cls(
            held=held(best["evaluation"], first) == set(first),
            num_episodes=len(explored),
            num_evaluation_episodes=sum(row["evaluation_episodes"] for row in evaluations),
            broke_ceiling=sum(row.broke_ceiling for row in explored) / max(1, len(explored)),
            before=first,
            after=best["evaluation"],
            kept_after=best["episodes"],
        )

    def __str__(self) -> str:
        ended = "every limit holds" if self.held else "the allowance is spent"
        return (
            f"{ended}: {self.num_episodes} new trajectories ({self.broke_ceiling:.0%} broke the "
            f"ceiling), {self.num_evaluation_episodes} episodes of evaluation; the weights are "
            f"those of the best evaluation, after {self.kept_after} episodes"
        )

    def facts(self) -> dict[str, Any]:
        """As `done.json` has it."""
        judged = {"evaluation_episodes": self.num_evaluation_episodes}
        same = {name: getattr(self, name) for name in ("held", "broke_ceiling", "kept_after")}
        return {"episodes": self.num_episodes, **judged, **same}
