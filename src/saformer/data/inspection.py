"""Which limits can this data support, and in plain words: where does it fail what is assumed?

The paper (section 3) assumes that return and cost are at least weakly correlated, and that costs
are spread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.data import statistics
from saformer.data.limits import (
    FrontierCurve,
    Limit,
    frontier,
    parse_limit,
    stored_within,
    thresholds,
)
from saformer.data.relabel import Doubles, RelabelledStore
from saformer.data.shown import Shown
from saformer.data.statistics import correlation, is_constant, mean_known, percentiles, without_nan

DEFAULT_LIMITS = ("p5", "p10", "p20", "p30", "p50", "p70", "p90")
TIGHT_LIMITS = ("p10", "p20", "p30", "p40", "p50")
MIN_BINS, MAX_BINS = 10, 40
MAX_SAMPLE = 1500
WEAK_CORRELATION = 0.3
SMALL_SPREAD = 0.1  # (p90 - p10) / median of the episode cost
CRITIC_ERROR = 0.05
"""usual error of the critic's forecast, as a share of the range of episode costs"""
CLOSE_LIMITS = 0.01  # relative difference below which two limits are one
FEW_WITHIN = 20
FEW_TRAJECTORIES = 50
MANY_LEFT_OUT = 0.1
LENGTH_CORRELATION = 0.95


@dataclass(frozen=True)
class DataWarning:
    """One thing that the data cannot support, with the numbers, and what to do about it."""

    kind: str  # for programs: "weak_correlation"
    text: str  # for people


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
    """What the data shows within one limit, all constraints together; NaN if nothing is within.
    Where no episode may end early, those that did are not within."""

    name: str
    values: tuple[float, ...]
    num_within: int
    share_within: float
    frontier: float  # mean of the five best returns within the limit
    median_return: float  # of the trajectories within the limit


@dataclass(frozen=True)
class EndingGroup:
    """The trajectories that ended early, or all others; NaN if there are none."""

    number: int
    share: float
    mean_return: float
    mean_cost: tuple[float, ...]

    @classmethod
    def of(cls, data: RelabelledStore, chosen: NDArray[np.bool_]) -> EndingGroup:
        earned = mean_known(data.episode_return[chosen].tolist())
        costs = tuple(mean_known(costs.tolist()) for costs in data.episode_cost[chosen].T)
        return cls(int(chosen.sum()), float(chosen.mean()), earned, costs)


@dataclass(frozen=True, repr=False)
class Inspection(Shown):
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
    may_end: bool  # whether ending early is a legitimate way to keep a limit
    ended_early: EndingGroup
    whole: EndingGroup
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
        may_end=data.environment.may_end,
        ended_early=EndingGroup.of(data, data.ended_early),
        whole=EndingGroup.of(data, ~data.ended_early),
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
        rank_correlation=statistics.rank_correlation(returns, costs),
        length_correlation=correlation(data.store.lengths, costs),
        relative_spread=(p90 - p10) / median if median > 0 else float("nan"),
        variation=cost.deviation / cost.mean if cost.mean > 0 else float("nan"),
        frontier=FrontierCurve.of(data, constraint=index),
    )


def _support(data: RelabelledStore, limit: Limit) -> LimitSupport:
    returns = data.episode_return[stored_within(data, limit)]
    share, best = len(returns) / len(data.episode_return), frontier(data, limit).best
    median = float(np.median(returns)) if len(returns) else float("nan")
    return LimitSupport(limit.name, limit.values, len(returns), share, best, median)


def _warnings(
    data: RelabelledStore, constraints: Sequence[ConstraintSupport], limits: Sequence[LimitSupport]
) -> Iterator[DataWarning]:
    yield from _warnings_of_episodes(data)
    yield from _warnings_of_endings(data)
    for index, constraint in enumerate(constraints):
        own_limits = [(limit.name, limit.values[index]) for limit in limits]
        yield from _warnings_of_cost(constraint, own_limits, data.store.lengths)
    few = [
        f"{limit.name} = {', '.join(map(_rounded, limit.values))} ({limit.num_within})"
        for limit in limits
        if limit.num_within < FEW_WITHIN
    ]
    if few:
        yield DataWarning(
            "few_within",
            f"Fewer than {FEW_WITHIN} trajectories lie within {_listed(few)}: frontier and policy "
            "rest on hardly any examples. Ask for looser limits, or record more cheap episodes.",
        )


def _warnings_of_endings(data: RelabelledStore) -> Iterator[DataWarning]:
    """Where no episode may end early: limits that only trajectories keep which did."""
    tight = [parse_limit(name, data) for name in TIGHT_LIMITS]
    empty = [str(limit) for limit in tight if not stored_within(data, limit).any()]
    if empty:
        yield DataWarning(
            "kept_by_ending_alone",
            f"No recorded episode keeps {_listed(empty)} without ending early, which none may: no "
            "recorded behaviour can keep these limits. Ask for looser ones, record cheaper whole "
            "episodes, or say that episodes may end (--may-end yes) if that is no failure.",
        )


def _warnings_of_episodes(data: RelabelledStore) -> Iterator[DataWarning]:
    """Enough trajectories, most of them finished, that earn differently."""
    num_trajectories, num_left_out = len(data.store), data.num_left_out
    if num_trajectories < FEW_TRAJECTORIES:
        yield DataWarning(
            "few_trajectories",
            f"Only {num_trajectories} trajectories: percentiles and frontier rest on single "
            f"episodes. Record more, {FEW_TRAJECTORIES} at the least.",
        )
    recorded = num_trajectories + num_left_out
    if num_left_out > MANY_LEFT_OUT * recorded:
        yield DataWarning(
            "many_left_out",
            f"{num_left_out} of {recorded} trajectories ({num_left_out / recorded:.0%}) are "
            "unfinished and left out, as what they would have cost is unknown. Record episodes to "
            "their end; where a time limit ended them, mark them as truncated.",
        )
    if is_constant(data.episode_return):
        yield DataWarning(
            "constant_return",
            f"Every trajectory earns {_rounded(float(data.episode_return.mean()))}: no limit can "
            "be seen to cost any return. Check the rewards.",
        )


def _warnings_of_cost(
    constraint: ConstraintSupport, limits: Sequence[tuple[str, float]], lengths: NDArray[np.int64]
) -> Iterator[DataWarning]:
    """Costs that go with the return, differ, are told apart by limits, and not by length alone."""
    criterion = constraint.criterion
    if constraint.cost.percentiles["p100"] == 0:  # the other checks would only say so again
        yield DataWarning(
            "all_costs_zero",
            f"Every trajectory costs 0 ({criterion}): there is nothing to limit, and learning "
            "would be imitation. Check the criterion and what it reads.",
        )
        return
    yield from _warnings_of_spread(constraint)
    named = [(f"{name} = {_rounded(value)}", value) for name, value in limits]
    chains = [_listed(name for name, _ in chain) for chain in close_limits(named)]
    if chains:
        yield DataWarning(
            "close_limits",
            f"Limits within {CLOSE_LIMITS:.0%} of the next ({criterion}): {'; '.join(chains)}. A "
            "policy can hardly tell them apart: evaluate under fewer limits, further apart.",
        )
    if constraint.length_correlation > LENGTH_CORRELATION:
        yield DataWarning(
            "cost_follows_length",
            f"Cost ({criterion}) follows the length of the episode (correlation "
            f"{constraint.length_correlation:.2f}, {lengths.min()} to {lengths.max()} steps): "
            "cheap trajectories are cheap because they are short, and a policy may keep a limit by "
            "ending early. Judge its lengths, too.",
        )


def _warnings_of_spread(constraint: ConstraintSupport) -> Iterator[DataWarning]:
    """The paper's two assumptions. A correlation is NaN where another check warns."""
    criterion, correlation = constraint.criterion, constraint.correlation
    if correlation <= -WEAK_CORRELATION:
        yield DataWarning(
            "negative_correlation",
            f"Return falls as cost ({criterion}) rises (correlation {correlation:.2f}): spending "
            "less earns more, so a limit costs nothing. Ask for the tightest limit you need, and "
            "check the signs of cost and reward.",
        )
    elif abs(correlation) < WEAK_CORRELATION:
        yield DataWarning(
            "weak_correlation",
            f"Return and cost ({criterion}) are hardly correlated ({correlation:.2f}, at least "
            f"{WEAK_CORRELATION} is wanted): the limit cannot steer the return. Choose a cost that "
            "is spent to earn reward, or add trajectories that trade one for the other.",
        )
    percents = (0, 10, 50, 90, 100)
    low, p10, median, p90, high = (constraint.cost.percentiles[f"p{each}"] for each in percents)
    if p90 - p10 <= SMALL_SPREAD * median:
        share = f" ({(p90 - p10) / median:.1%} of the median)" if median > 0 else ""
        error = f"{_rounded(CRITIC_ERROR * (high - low))} apart, the critic's usual error"
        yield DataWarning(
            "small_spread",
            f"Costs ({criterion}) are nearly alike: p10 to p90 is {_rounded(p10)} to "
            f"{_rounded(p90)}{share}. Limits less than {error} ({CRITIC_ERROR:.0%} of the range), "
            "cannot be told apart. Add cheaper or dearer trajectories, or space limits further.",
        )


def close_limits(limits: Sequence[tuple[str, float]]) -> list[list[tuple[str, float]]]:
    """Chains of two or more limits, rising, each within 1% of the next."""
    chains: list[list[tuple[str, float]]] = []
    for name, value in sorted(limits, key=lambda limit: limit[1]):
        if chains and value <= (1 + CLOSE_LIMITS) * chains[-1][-1][1]:
            chains[-1].append((name, value))
        else:
            chains.append([(name, value)])
    return [chain for chain in chains if len(chain) > 1]


def _rounded(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _listed(parts: Iterable[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def _sample(data: RelabelledStore) -> dict[str, list[Any]]:
    count = min(len(data.store), MAX_SAMPLE)
    chosen = np.linspace(0, len(data.store) - 1, count).round().astype(int)

    def short(values: Doubles) -> list[float]:
        return [float(f"{value:.6g}") for value in values]  # enough for a drawing

    costs = [short(each) for each in data.episode_cost[chosen]]
    return {"episode_return": short(data.episode_return[chosen]), "episode_cost": costs}
