"""What pages read of evaluation.json and trace.json: types, and lengths that agree."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from dataclasses import dataclass
from typing import Any

from typing_extensions import TypedDict  # pydantic asks for it below Python 3.12

from saformer.runs.metrics import Number
from saformer.runs.run import Run

Values = tuple[Number, ...]
Unknown = Number | None


@dataclass(frozen=True)
class LimitEntry:
    name: str
    values: Values


@dataclass(frozen=True)
class VerdictEntry:
    limit: LimitEntry
    num_episodes: int
    met: bool
    mean_cost: Values
    worst_cost: Values
    within: Number
    within_interval: tuple[Number, Number]
    mean_return: Number
    frontier: Unknown
    frontier_share: Unknown
    fell_back: Number
    shielded: Number
    violation_bound: Number = 0.0
    uncapped_share: Unknown = None
    ended_early: Unknown = None


@dataclass(frozen=True)
class EpisodeEntry:
    limit_name: str
    limit: Values
    cost: Values
    episode_return: Number
    within: bool
    ended_early: bool = False
    may_end: bool = True


@dataclass(frozen=True)
class JudgedEntry:
    """One policy under every limit."""

    name: str
    criteria: tuple[str, ...]
    verdicts: tuple[VerdictEntry, ...]
    episodes: tuple[EpisodeEntry, ...]
    limits_met: int
    frontier_share: Unknown
    rank_correlations: tuple[Unknown, ...]
    decisions_per_second: Number
    tolerance: Number
    margins: Values | None = None
    rate: Number | None = None
    may_end: bool = True
    ended_early: Unknown = None
    data_ended_early: Unknown = None
    idle_limits: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rows = [each for v in self.verdicts for each in (v.limit.values, v.mean_cost, v.worst_cost)]
        _check_lengths(len(self.criteria), [*rows, *(e.cost for e in self.episodes)])
        _check_lengths(len(self.criteria), (episode.limit for episode in self.episodes))
        if not self.verdicts or not self.criteria:
            raise ValueError("no limit was judged, or by no criterion")
        if self.rate is not None:
            _check_lengths(len(self.verdicts), [self.margins or ()])


@dataclass(frozen=True, kw_only=True)
class EvaluationFile(JudgedEntry):
    options: dict[str, Any]
    seed: int
    beside: tuple[JudgedEntry, ...]
    nothing: JudgedEntry | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        others = (*self.beside, *([self.nothing] if self.nothing else ()))
        _check_lengths(len(self.verdicts), (other.verdicts for other in others))


TraceData = TypedDict(
    "TraceData",
    {"return": Values, "cost": tuple[Values, ...], "criteria": tuple[str, ...]},
)


@dataclass(frozen=True)
class PathEntry:
    limit_name: str
    limit: Values
    step: tuple[int, ...]
    spent: tuple[Values, ...]
    ended_early: bool = False
    may_end: bool = True


@dataclass(frozen=True)
class DecisionEntry:
    limit_name: str
    step: int
    return_to_go: Values
    forecast_cost: tuple[Values, ...]
    remaining: Values
    safe: tuple[bool, ...]
    chosen: int
    fell_back: bool
    balance: int


@dataclass(frozen=True)
class TraceFile:
    data: TraceData
    paths: tuple[PathEntry, ...]
    decisions: tuple[DecisionEntry, ...]

    def __post_init__(self) -> None:
        width, costs = len(self.data["criteria"]), self.data["cost"]
        _check_lengths(width, [*costs, *(path.limit for path in self.paths)])
        _check_lengths(len(costs), [self.data["return"]])
        for path in self.paths:
            _check_lengths(len(path.step) or -1, [path.spent])
            _check_lengths(width, path.spent)
        for each in self.decisions:
            _check_lengths(len(each.safe), [each.return_to_go, each.forecast_cost])
            _check_lengths(width, [each.remaining, *each.forecast_cost])
            if not 0 <= each.chosen < len(each.safe):
                raise ValueError(f"candidate {each.chosen} of {len(each.safe)} was chosen")


def read_findings(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """The evaluation and the trace of a run, checked."""
    evaluation = run.read_json("evaluation.json", EvaluationFile)
    return evaluation, run.read_json("trace.json", TraceFile)


def _check_lengths(expected: int, rows: Iterable[Sized]) -> None:
    for row in rows:
        if len(row) != expected:
            raise ValueError(f"{len(row)} values where there should be {expected}")
