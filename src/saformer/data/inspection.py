"""Which limits can this data support?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.data import assumptions
from saformer.data.assumptions import DataWarning, rounded
from saformer.data.limits import FrontierCurve, Limit, frontier, parse_limit, thresholds
from saformer.data.relabel import Doubles, RelabelledStore
from saformer.data.statistics import correlation, is_constant, rank_correlation, without_nan
from saformer.data.totals import percentiles

DEFAULT_LIMITS = ("p5", "p10", "p20", "p30", "p50", "p70", "p90")
MIN_BINS, MAX_BINS = 10, 40
MAX_SAMPLE = 1500


@dataclass(frozen=True)
class Distribution:
    """How one quantity is spread over the trajectories."""

    mean: float
    deviation: float
    percentiles: dict[str, float]  # p0, p5, ..., p100
    edges: tuple[float, ...]  # of the histogram's bins, one more than there are counts
    counts: tuple[int, ...]

    @classmethod
    def of(cls, values: Doubles) -> Distribution:
        """Of one value per trajectory."""
        low, high = float(values.min()), float(values.max())
        if is_constant(values):  # too narrow to be cut into bins
            margin = max(0.5, 0.01 * abs(high))
            low, high = low - margin, high + margin
        num_bins = int(np.clip(2 * np.sqrt(len(values)), MIN_BINS, MAX_BINS))
        counts, edges = np.histogram(values, bins=num_bins, range=(low, high))
        spread = percentiles(values, range(0, 101, 5))
        bins = (tuple(edges.tolist()), tuple(counts.tolist()))
        return cls(float(values.mean()), float(values.std()), spread, *bins)


@dataclass(frozen=True)
class ConstraintSupport:
    """One cost, and how it goes with the return. NaN where a ratio or correlation has none."""

    criterion: str
    cost: Distribution
    thresholds: dict[str, float]  # a row of the paper's threshold table
    correlation: float  # Pearson's, of return and cost: the paper's first assumption
    rank_correlation: float  # Spearman's, of the same
    length_correlation: float  # Pearson's, of length and cost
    relative_spread: float  # (p90 - p10) / median of the cost: the paper's second assumption
    variation: float  # deviation / mean of the cost
    frontier: FrontierCurve  # under this constraint alone


@dataclass(frozen=True)
class LimitSupport:
    """What the data shows within one limit, all constraints together; NaN if nothing is within."""

    name: str
    values: tuple[float, ...]
    num_within: int
    share_within: float
    frontier: float  # mean of the five best returns within the limit
    median_return: float  # of the trajectories within the limit


@dataclass(frozen=True)
class Inspection:
    """Which limits a dataset can support."""

    fingerprint: str
    num_trajectories: int
    num_steps: int
    num_left_out: int  # unfinished trajectories
    cost_discount: float
    length: dict[str, float]  # min, median and max of the episodes, in steps
    episode_return: Distribution
    constraints: tuple[ConstraintSupport, ...]
    limits: tuple[LimitSupport, ...]
    warnings: tuple[DataWarning, ...]
    sample: dict[str, list[Any]]
    """episode_return and episode_cost (a list each) of some trajectories, evenly chosen"""

    def plain(self) -> dict[str, Any]:
        """For strict JSON: None where a number is not known."""
        plain: dict[str, Any] = without_nan(asdict(self))
        return plain


def inspect(data: RelabelledStore, limits: Sequence[Limit] | None = None) -> Inspection:
    """Costs, returns and support of each limit, with a warning for each assumption that fails."""
    limits = [parse_limit(name, data) for name in DEFAULT_LIMITS] if limits is None else limits
    for limit in limits:
        if len(limit.values) != len(data.criteria):
            problem = f"{len(limit.values)} values, the data has {len(data.criteria)} constraints"
            raise ValueError(f"limit {limit.name!r} has {problem}")
    constraints = tuple(_constraint(data, index) for index in range(len(data.criteria)))
    supports = tuple(_support(data, limit) for limit in limits)
    return Inspection(
        fingerprint=data.store.fingerprint,
        num_trajectories=len(data.store),
        num_steps=data.store.num_steps,
        num_left_out=data.num_left_out,
        cost_discount=data.cost_discount,
        length=length_summary(data.store.lengths),
        episode_return=Distribution.of(data.episode_return),
        constraints=constraints,
        limits=supports,
        warnings=tuple(_warnings(data, constraints, supports)),
        sample=_sample(data),
    )


def length_summary(lengths: NDArray[np.int64]) -> dict[str, float]:
    """Shortest, median and longest."""
    median = float(np.median(lengths))
    return {"min": int(lengths.min()), "median": median, "max": int(lengths.max())}


def _constraint(data: RelabelledStore, index: int) -> ConstraintSupport:
    costs, returns = data.episode_cost[:, index], data.episode_return
    cost = Distribution.of(costs)
    p10, median, p90 = (cost.percentiles[name] for name in ("p10", "p50", "p90"))
    return ConstraintSupport(
        criterion=data.criteria[index].name,
        cost=cost,
        thresholds=thresholds(data)[index],
        correlation=correlation(returns, costs),
        rank_correlation=rank_correlation(returns, costs),
        length_correlation=correlation(data.store.lengths, costs),
        relative_spread=(p90 - p10) / median if median > 0 else float("nan"),
        variation=cost.deviation / cost.mean if cost.mean > 0 else float("nan"),
        frontier=FrontierCurve.of(data, constraint=index),
    )


def _support(data: RelabelledStore, limit: Limit) -> LimitSupport:
    returns = data.episode_return[np.all(data.episode_cost <= np.array(limit.values), axis=-1)]
    share, best = len(returns) / len(data.episode_return), frontier(data, limit).best
    median = float(np.median(returns)) if len(returns) else float("nan")
    return LimitSupport(limit.name, limit.values, len(returns), share, best, median)


def _warnings(
    data: RelabelledStore, constraints: Sequence[ConstraintSupport], limits: Sequence[LimitSupport]
) -> Iterator[DataWarning]:
    yield from assumptions.check_size(len(data.store), data.num_left_out)
    yield from assumptions.check_return(data.episode_return)
    for index, constraint in enumerate(constraints):
        name, is_free = constraint.criterion, constraint.cost.percentiles["p100"] == 0
        if not is_free:  # else the others would only say so again
            yield from assumptions.check_correlation(name, constraint.correlation)
        yield from assumptions.check_spread(name, constraint.cost.percentiles)
        if not is_free:
            own_limits = [(limit.name, limit.values[index]) for limit in limits]
            yield from assumptions.check_close_limits(name, own_limits)
            follows = constraint.length_correlation
            yield from assumptions.check_length(name, follows, data.store.lengths)
    shown = [f"{limit.name} = {', '.join(map(rounded, limit.values))}" for limit in limits]
    counts = [limit.num_within for limit in limits]
    yield from assumptions.check_within(list(zip(shown, counts, strict=True)))


def _sample(data: RelabelledStore) -> dict[str, list[Any]]:
    count = min(len(data.store), MAX_SAMPLE)
    chosen = np.linspace(0, len(data.store) - 1, count).round().astype(int)

    def short(values: Doubles) -> list[float]:
        return [float(f"{value:.6g}") for value in values]  # enough for a drawing

    costs = [short(each) for each in data.episode_cost[chosen]]
    return {"episode_return": short(data.episode_return[chosen]), "episode_cost": costs}
