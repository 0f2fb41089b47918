"""Frozen facts of the canonical builds: policies are judged by them, whoever built the data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

from saformer.data.limits import Frontier, FrontierCurve, Limit, Totals, frontier, thresholds
from saformer.data.relabel import RelabelledStore
from saformer.data.statistics import correlation, percentiles, without_nan

ASSET = ("assets", "frontiers.json")


@dataclass(frozen=True)
class CanonicalBuild:
    """Facts of one canonical build, under the cost that it is judged by, undiscounted."""

    fingerprint: str
    versions: dict[str, str]  # of the simulator that made it: another one makes other trajectories
    num_trajectories: int
    num_steps: int
    thresholds: dict[str, float]  # min, p10, p20, p30, p50 and max of the episode cost
    percentiles: dict[str, float]  # p5, p10, ..., p95 of the episode cost
    return_min: float
    return_mean: float
    return_max: float
    correlation: float  # of return and cost; NaN if one never changes
    frontier: FrontierCurve
    criterion: str = "torque"
    may_end: bool = True  # else trajectories that ended early are not on the frontier

    @classmethod
    def of(cls, data: RelabelledStore) -> CanonicalBuild:
        """Gather the facts."""
        names = tuple(criterion.name for criterion in data.criteria)
        if names != data.store.criteria or len(names) > 1 or data.cost_discount != 1:
            raise ValueError(
                f"frontiers are frozen for the store's own criterion, {data.store.criteria}, "
                f"undiscounted, got {names} discounted by {data.cost_discount}; relabel the store "
                "with its own criterion alone"
            )
        costs, returns = data.episode_cost[:, 0], data.episode_return
        return cls(
            fingerprint=data.store.fingerprint,
            versions=dict(data.store.provenance.get("versions", {})),
            num_trajectories=len(data.store),
            num_steps=data.store.num_steps,
            thresholds=thresholds(data)[0],
            percentiles=percentiles(costs),
            return_min=float(returns.min()),
            return_mean=float(returns.mean()),
            return_max=float(returns.max()),
            correlation=correlation(returns, costs),
            frontier=FrontierCurve.of(data),
            criterion=names[0],
            may_end=data.environment.may_end,
        )

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        plain: dict[str, Any] = without_nan(asdict(self))
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> CanonicalBuild:
        known = float("nan") if plain["correlation"] is None else plain["correlation"]
        spread = plain["return_max"] - plain["return_min"]
        frontier = FrontierCurve.from_plain({"spread": spread, **plain["frontier"]})
        return cls(**{**plain, "correlation": known, "frontier": frontier})


def canonical(task_name: str) -> CanonicalBuild | None:
    """The frozen facts of a task's canonical build, or None where none are frozen."""
    return _frozen().get(task_name)


def frontier_of(task_name: str, data: Totals, limit: Limit) -> Frontier:
    """That of the canonical build, where one has this cost and setting; else of this data."""
    build, criteria = canonical(task_name), [criterion.name for criterion in data.criteria]
    if build is None or criteria != [build.criterion] or data.cost_discount != 1:
        return frontier(data, limit)
    if build.may_end != data.environment.may_end:
        return frontier(data, limit)
    return build.frontier.at(limit.values[0])


def parse_builds(text: str) -> dict[str, CanonicalBuild]:
    """Builds by task name, from JSON."""
    return {name: CanonicalBuild.from_plain(plain) for name, plain in json.loads(text).items()}


@cache
def _frozen() -> dict[str, CanonicalBuild]:
    return parse_builds(resources.files("saformer").joinpath(*ASSET).read_text())
