"""Which limits a dataset can support, and what it shows to be possible within them."""

from __future__ import annotations

import re
import warnings
from bisect import bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.criteria import CostCriterion
from saformer.criteria.afford import least_cost_action
from saformer.data.relabel import Doubles, RelabelledStore
from saformer.data.store import EnvironmentSpec

FRONTIER_SIZE = 5
LEAST_SPAN = 0.05
"""Share of the range of stored returns below which a limit leaves nothing to earn."""
THRESHOLDS = {"min": 0, "p10": 10, "p20": 20, "p30": 30, "p50": 50, "max": 100}
"""The columns of the paper's threshold table, as percentiles."""


@dataclass(frozen=True)
class TotalsAlone:
    """Totals without the trajectories themselves, as a run's folder or an export has them."""

    environment: EnvironmentSpec
    criteria: tuple[CostCriterion, ...]
    cost_discount: float  # step t counts cost_discount**t times its cost
    episode_cost: Doubles  # [N, C]
    episode_return: Doubles  # [N] undiscounted
    ended_early: NDArray[np.bool_] | None = None  # [N]; None in exports of older versions
    idle: NDArray[np.float32] | None = None  # [A] doing nothing; None likewise

    def __post_init__(self) -> None:
        num_returns, num_criteria = len(self.episode_return), len(self.criteria)
        if self.episode_cost.shape != (num_returns, num_criteria) or not num_returns:
            counts = f"{num_returns} returns and {num_criteria} criteria"
            raise ValueError(f"costs of shape {self.episode_cost.shape} do not fit {counts}")

    def with_environment(self, **changes: Any) -> TotalsAlone:
        """The same totals, of a machine with these changes."""
        return replace(self, environment=replace(self.environment, **changes))


Totals = RelabelledStore | TotalsAlone


@dataclass(frozen=True)
class Limit:
    """A promise: how much an episode may cost, for each constraint, and the text that named it."""

    name: str
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not all(np.isfinite(value) and value >= 0 for value in self.values):
            problem = f"{self.name!r} = {self.values}"
            raise ValueError(f"a limit must be a finite number of at least 0, got {problem}")

    def __str__(self) -> str:
        return f"{self.name} = {', '.join(f'{value:.4g}' for value in self.values)}"


def parse_limit(text: str, data: Totals) -> Limit:
    """A limit from "4300" (in units of the cost), "p10" (a percentile of the data) or, for two
    constraints, "p20,350". One outside the data's range is accepted with a warning."""
    parts, num_constraints = text.split(","), data.episode_cost.shape[1]
    if len(parts) == 1:
        parts = parts * num_constraints
    if len(parts) != num_constraints:
        problem = f"{len(parts)} limits, the data has {num_constraints} constraints"
        raise ValueError(f"{text!r} holds {problem}")
    pairs = zip(parts, data.episode_cost.T, strict=True)
    limit = Limit(text, tuple(_value(part.strip(), costs) for part, costs in pairs))
    for value, costs in zip(limit.values, data.episode_cost.T, strict=True):
        if not costs.min() <= value <= costs.max():
            warnings.warn(
                f"limit {value:g} lies outside the data, whose episodes cost {costs.min():.4g} to "
                f"{costs.max():.4g}: expect it to be missed, or the policy to be needlessly timid",
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
        advice = "give a number such as 4300, or a percentile such as p10"
        raise ValueError(f"{text!r} is not a limit; {advice}") from None


def thresholds(data: Totals) -> tuple[dict[str, float], ...]:
    """One row of the paper's threshold table per constraint: {"min": ..., ..., "max": ...}."""
    rows = np.percentile(data.episode_cost, list(THRESHOLDS.values()), axis=0).T
    return tuple(dict(zip(THRESHOLDS, row.tolist(), strict=True)) for row in rows)


@dataclass(frozen=True)
class Frontier:
    """The return that the data itself shows to be possible within a limit."""

    best: float  # mean of the five best stored returns within the limit; NaN if there is none
    worst: float  # the lowest stored return
    spread: float = 0.0  # from the lowest to the highest stored return

    def share(self, earned: float, *, cap: float = 1.25) -> float:
        """How far from worst to best a return lies, capped above; NaN with nothing to earn."""
        span = self.best - self.worst
        has_share = span > 0 and span >= LEAST_SPAN * self.spread
        return min((earned - self.worst) / span, cap) if has_share else float("nan")


def idle_action(data: Totals) -> NDArray[np.float32]:
    """[A] doing nothing: what costs least by criteria of the action alone, else is nearest to 0."""
    machine = data.environment
    bounds = (machine.action_low, machine.action_high)
    return least_cost_action(data.criteria, *bounds, machine.action_levels)


def exemplary(data: Totals) -> NDArray[np.bool_]:
    """[N] trajectories that show what is possible: all, or where none may end early, whole ones."""
    if data.environment.may_end or data.ended_early is None:
        return np.ones(len(data.episode_return), dtype=bool)
    return ~data.ended_early


def stored_within(data: Totals, limit: Limit) -> NDArray[np.bool_]:
    """[N] exemplary trajectories that keep the limit of every constraint."""
    cheap: NDArray[np.bool_] = np.all(data.episode_cost <= np.array(limit.values), axis=-1)
    return cheap & exemplary(data)


def frontier(data: Totals, limit: Limit) -> Frontier:
    """The frontier at one limit, all constraints together."""
    best = np.sort(data.episode_return[stored_within(data, limit)])[-FRONTIER_SIZE:]
    mean = float(best.mean()) if len(best) else float("nan")
    return Frontier(mean, float(data.episode_return.min()), float(np.ptp(data.episode_return)))


@dataclass(frozen=True)
class FrontierCurve:
    """The frontier of one constraint at every limit: a step function, stored where it changes."""

    cost: tuple[float, ...]  # rising
    best: tuple[float, ...]  # the frontier from the limit at the same index on, up to the next
    worst: float  # the lowest stored return
    spread: float = 0.0  # from the lowest to the highest stored return

    def __post_init__(self) -> None:
        if len(self.cost) != len(self.best):
            counts = f"{len(self.best)} and {len(self.cost)}"
            raise ValueError(f"a frontier needs one value per cost, got {counts}")
        if (np.diff(self.cost) <= 0).any():
            raise ValueError("the costs of a frontier must rise; sort them, one value for each")

    @classmethod
    def of(cls, data: Totals, *, constraint: int = 0) -> FrontierCurve:
        """Of one constraint alone; where there are others, they are left free."""
        shown = exemplary(data)
        costs, returns = data.episode_cost[shown, constraint], data.episode_return[shown]
        order = np.argsort(costs, kind="stable")
        best: list[float] = []
        means: dict[float, float] = {}  # of trajectories that cost the same, the last one counts
        for cost, earned in zip(costs[order].tolist(), returns[order].tolist(), strict=True):
            if len(best) < FRONTIER_SIZE or earned > best[0]:
                insort(best, earned)
                del best[:-FRONTIER_SIZE]
                means[cost] = float(np.mean(best))
        before = [None, *means.values()]
        changes = [(c, m) for (c, m), old in zip(means.items(), before, strict=False) if m != old]
        rising, bests = tuple(cost for cost, _ in changes), tuple(mean for _, mean in changes)
        every = data.episode_return
        return cls(rising, bests, float(every.min()), float(np.ptp(every)))

    def at(self, limit: float) -> Frontier:
        """The same as `frontier` of the data at this limit."""
        index = bisect_right(self.cost, limit) - 1
        best = self.best[index] if index >= 0 else float("nan")
        return Frontier(best, self.worst, self.spread)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> FrontierCurve:
        return cls(**{**plain, "cost": tuple(plain["cost"]), "best": tuple(plain["best"])})


def pareto_front(data: RelabelledStore) -> NDArray[np.int64]:
    """Indices of the trajectories that no other undercuts in every cost and equals in return; the
    highest return first, and the first of several that are alike."""
    front: list[int] = []
    for index in np.lexsort((*data.episode_cost.T, -data.episode_return)):
        if not (data.episode_cost[front] <= data.episode_cost[index]).all(-1).any():
            front.append(int(index))
    return np.array(front, dtype=np.int64)


def augment(data: RelabelledStore, share: float, *, seed: int = 0) -> RelabelledStore:
    """Add copies of the front's trajectories with more ambitious targets: `share` of the data.

    A limit is drawn within the data's range, and a return from the front's within it to the highest
    stored. The best trajectory within the limit stands for it, its to-go columns shifted.
    """
    rng, front, num_stored = np.random.default_rng(seed), pareto_front(data), len(data.store)
    lowest, highest = data.episode_cost.min(0), data.episode_cost.max(0)
    limit = rng.uniform(lowest, highest, (round(share * num_stored), len(highest)))
    within = np.all(data.episode_cost[front] <= limit[:, None], axis=-1)  # [n, front]
    possible = np.any(within, axis=1)  # with several constraints, nothing may satisfy them all
    limit, donors = limit[possible], front[within.argmax(1)[possible]]  # the highest return

    whole = data.filter(np.concatenate([np.arange(num_stored), donors]))
    more_cost, more_return = np.zeros_like(whole.episode_cost), np.zeros_like(whole.episode_return)
    more_cost[num_stored:] = limit - data.episode_cost[donors]
    headroom = data.episode_return.max() - data.episode_return[donors]
    more_return[num_stored:] = rng.uniform(0, headroom)
    lengths = whole.store.lengths
    return replace(
        whole,
        cost_to_go=whole.cost_to_go + np.repeat(more_cost, lengths, axis=0).astype(np.float32),
        return_to_go=whole.return_to_go + np.repeat(more_return, lengths).astype(np.float32),
        episode_cost=whole.episode_cost + more_cost,
        episode_return=whole.episode_return + more_return,
    )
