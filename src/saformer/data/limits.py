"""Which limits a dataset can support, and what it shows to be possible within them."""

from __future__ import annotations

import re
import warnings
from bisect import bisect_right, insort
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from saformer.data.relabel import Doubles
from saformer.data.totals import Totals

FRONTIER_SIZE = 5
THRESHOLDS = {"min": 0, "p10": 10, "p20": 20, "p30": 30, "p50": 50, "max": 100}
"""The columns of the paper's threshold table, as percentiles."""


@dataclass(frozen=True)
class Limit:
    """A promise: what an episode may cost, for each constraint, and the name it was asked for
    by."""

    name: str
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not all(np.isfinite(value) and value >= 0 for value in self.values):
            raise ValueError(
                f"a limit must be a finite number of at least 0, got {self.name!r} = {self.values}"
            )


def parse_limit(text: str, data: Totals) -> Limit:
    """A limit from "4300" (in units of the cost), "p10" (a percentile of the data), or one of these
    per constraint.

    "p20,350" sets two constraints. A limit outside the data's range is accepted with a warning.
    """
    parts = text.split(",")
    num_constraints = data.episode_cost.shape[1]
    if len(parts) == 1:
        parts = parts * num_constraints
    if len(parts) != num_constraints:
        raise ValueError(
            f"{text!r} holds {len(parts)} limits, the data has {num_constraints} constraints"
        )
    limit = Limit(
        text, tuple(_value(part.strip(), data.episode_cost[:, i]) for i, part in enumerate(parts))
    )
    for value, costs in zip(limit.values, data.episode_cost.T, strict=True):
        if not costs.min() <= value <= costs.max():
            warnings.warn(
                f"limit {value:g} lies outside the data, whose episodes cost {costs.min():.4g} "
                f"to {costs.max():.4g}: "
                "expect it to be missed, or the policy to be needlessly timid",
                stacklevel=2,
            )
    return limit


def _value(text: str, costs: Doubles) -> float:
    percentile = re.fullmatch(r"p(\d+(?:\.\d+)?)", text)
    if percentile and float(percentile[1]) <= 100:
        return float(np.percentile(costs, float(percentile[1])))
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a limit; give a number such as 4300, or a percentile such as p10"
        ) from None


def thresholds(data: Totals) -> tuple[dict[str, float], ...]:
    """One row of the paper's threshold table per constraint: {"min": ..., "p10": ..., ..., "max":
    ...}."""
    percentiles = np.percentile(
        data.episode_cost, list(THRESHOLDS.values()), axis=0
    )  # [thresholds, C]
    return tuple(dict(zip(THRESHOLDS, of_one.tolist(), strict=True)) for of_one in percentiles.T)


@dataclass(frozen=True)
class Frontier:
    """What the data itself shows to be possible within a limit."""

    best: float
    """mean of the five best stored returns within the limit; NaN if no stored trajectory lies
    within it"""
    worst: float
    """the lowest stored return"""

    def share(self, earned: float, *, cap: float = 1.25) -> float:
        """How far from worst to best a return lies, capped above."""
        span = self.best - self.worst
        return min((earned - self.worst) / span, cap) if span > 0 else float("nan")


def frontier(data: Totals, limit: Limit) -> Frontier:
    """The mean of the best stored returns among trajectories within the limit, and the lowest of
    all."""
    within = (data.episode_cost <= np.array(limit.values)).all(-1)
    best = np.sort(data.episode_return[within])[-FRONTIER_SIZE:]
    return Frontier(
        float(best.mean()) if len(best) else float("nan"), float(data.episode_return.min())
    )


@dataclass(frozen=True)
class FrontierCurve:
    """The frontier of one constraint at every limit: a step function, kept only where its value
    changes."""

    cost: tuple[float, ...]
    """rising; from each of these limits on, up to the next, the frontier is the entry of `best` in
    the same place"""
    best: tuple[float, ...]
    worst: float
    """the lowest stored return"""

    def __post_init__(self) -> None:
        if len(self.cost) != len(self.best) or not self.cost:
            raise ValueError(
                f"a frontier needs one value per cost, got {len(self.cost)} and {len(self.best)}"
            )
        if any(later <= earlier for earlier, later in zip(self.cost, self.cost[1:], strict=False)):
            raise ValueError(
                "the costs of a frontier must rise; sort them and keep one value for each"
            )

    @classmethod
    def of(cls, data: Totals, *, constraint: int = 0) -> FrontierCurve:
        """Of one constraint alone; where there are others, they are left free."""
        costs, returns = data.episode_cost[:, constraint], data.episode_return
        order = np.argsort(costs, kind="stable")
        best: list[float] = []
        found: dict[
            float, float
        ] = {}  # of trajectories that cost the same, the last has seen them all
        for cost, earned in zip(costs[order].tolist(), returns[order].tolist(), strict=True):
            if len(best) < FRONTIER_SIZE or earned > best[0]:
                insort(best, earned)
                del best[:-FRONTIER_SIZE]
                found[cost] = float(np.mean(best))
        kept = _changes(found)
        return cls(tuple(kept), tuple(kept.values()), float(returns.min()))

    def at(self, limit: float) -> Frontier:
        """What `frontier` finds in the data within this limit."""
        place = bisect_right(self.cost, limit) - 1
        return Frontier(self.best[place] if place >= 0 else float("nan"), self.worst)

    def plain(self) -> dict[str, Any]:
        """As JSON keeps it."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> FrontierCurve:
        """As JSON kept it."""
        return cls(tuple(plain["cost"]), tuple(plain["best"]), plain["worst"])


def _changes(steps: dict[float, float]) -> dict[float, float]:
    """The steps whose value is not that of the step before."""
    before = [None, *list(steps.values())[:-1]]
    return {
        cost: value
        for (cost, value), old in zip(steps.items(), before, strict=True)
        if value != old
    }
