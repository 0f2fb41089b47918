"""Roll a policy out under several limits and say how it did."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from saformer.core.policy import Policy
from saformer.data.limits import Frontier, Limit, frontier
from saformer.data.statistics import rank_correlation, without_nan
from saformer.data.totals import Totals
from saformer.envs.lanes import Maker
from saformer.envs.rollout import Episode, Hooks, rollout
from saformer.envs.stepping import Workers
from saformer.evaluation.trace import DecisionTrace, cost_paths
from saformer.evaluation.verdict import TOLERANCE, EpisodeRow, Verdict, judge

FIRST_SEED = 1_000_000
"""Evaluation episodes start from seeds that no dataset uses."""


@dataclass(frozen=True)
class Evaluation:
    """Every episode, a verdict per limit, and what to draw."""

    rows: tuple[EpisodeRow, ...]
    verdicts: tuple[Verdict, ...]
    decisions_per_second: float
    trace: dict[str, Any]
    criteria: tuple[str, ...]
    """what the costs are of, one per constraint"""
    name: str = "the policy"
    """whose episodes these are"""
    beside: tuple[Evaluation, ...] = ()
    """others under the same limits, to be compared with it"""
    margins: tuple[float, ...] = ()
    """share of each limit that the policy was not told of; empty where it was told all"""
    rate: float | None = None
    """the violation rate that these margins were calibrated for"""

    @property
    def limits_met(self) -> int:
        """How many limits were met on average."""
        return sum(verdict.met for verdict in self.verdicts)

    @property
    def rank_correlation(self) -> float:
        """Spearman's correlation of limit and episode cost, for the first constraint."""
        return self.rank_correlations[0]

    @property
    def rank_correlations(self) -> tuple[float, ...]:
        """The same for every constraint."""
        pairs = (
            [(row.limit[i], row.cost[i]) for row in self.rows] for i in range(len(self.criteria))
        )
        return tuple(rank_correlation(*zip(*each, strict=True)) for each in pairs)

    @property
    def frontier_share(self) -> float:
        """Mean over the limits."""
        return float(np.mean([verdict.frontier_share for verdict in self.verdicts]))

    def plain(self) -> dict[str, Any]:
        """As JSON keeps it: what is not known is None."""
        plain = {
            "verdicts": [verdict.plain() for verdict in self.verdicts],
            "limits_met": self.limits_met,
            "rank_correlation": self.rank_correlation,
            "rank_correlations": self.rank_correlations,
            "criteria": self.criteria,
            "frontier_share": self.frontier_share,
            "safe_share": float(np.mean([verdict.safe_share for verdict in self.verdicts])),
            "tolerance": TOLERANCE,
            "decisions_per_second": self.decisions_per_second,
            "episodes": [row.plain() for row in self.rows],
            "name": self.name,
            "beside": [other.plain() for other in self.beside],
            "margins": self.margins,
            "rate": self.rate,
        }
        known: dict[str, Any] = without_nan(plain)
        return known


def evaluate(
    policy: Policy,
    data: Totals,
    limits: Sequence[Limit],
    *,
    name: str = "the policy",
    episodes: int = 20,
    seed: int = 0,
    frontiers: Sequence[Frontier] | None = None,
    margins: Sequence[float] | None = None,
    first_seed: int = FIRST_SEED,
    progress: Callable[[int, int], None] | None = None,
    workers: Workers = "auto",
) -> Evaluation:
    """Every limit and episode in one batched rollout. All limits face the same initial states.

    The environment and its costs come from `data`, and so does what counts as possible within each
    limit, unless `frontiers` says it. Of each limit the policy is told all but its share of
    `margins`, and judged by the whole. `workers` processes step the environments (0: this one); the
    findings are the same.
    """
    if episodes < 1 or not limits:
        raise ValueError(
            f"at least one episode and one limit are needed, got {episodes} and {len(limits)}"
        )
    environment = data.environment
    lane_limits = [limit for limit in limits for _ in range(episodes)]
    kept_back = margins or [0.0] * len(limits)
    told = [
        (1 - margin) * np.array(limit.values)
        for limit, margin in zip(limits, kept_back, strict=True)
    ]
    seeds = [first_seed + 1000 * seed + i for _ in limits for i in range(episodes)]
    trace = DecisionTrace(range(0, len(lane_limits), episodes))
    began = time.perf_counter()
    played = rollout(
        policy,
        Maker(environment, tuple(data.criteria)),
        [values for values in told for _ in range(episodes)],
        seeds,
        horizon=environment.horizon,
        hooks=Hooks(watch=trace, progress=progress),
        workers=workers,
    )
    seconds = time.perf_counter() - began
    rows = tuple(
        _row(e, limit, data.cost_discount) for e, limit in zip(played, lane_limits, strict=True)
    )
    frontiers = frontiers or [frontier(data, limit) for limit in limits]
    verdicts = tuple(
        judge(rows[i * episodes : (i + 1) * episodes], limit, possible)
        for i, (limit, possible) in enumerate(zip(limits, frontiers, strict=True))
    )
    decisions = [
        {"limit_name": lane_limits[lane].name, **kept} for lane, kept in sorted(trace.kept.items())
    ]
    return Evaluation(
        rows,
        verdicts,
        decisions_per_second=sum(row.num_steps for row in rows) / seconds,
        trace={
            "paths": cost_paths(played, lane_limits, cost_discount=data.cost_discount),
            "decisions": decisions,
        },
        criteria=tuple(criterion.name for criterion in data.criteria),
        name=name,
        margins=tuple(margins or ()),
    )


def _row(episode: Episode, limit: Limit, cost_discount: float) -> EpisodeRow:
    discount = cost_discount ** np.arange(len(episode.cost))[:, None]
    return EpisodeRow(
        limit_name=limit.name,
        limit=limit.values,
        seed=episode.seed,
        episode_return=float(episode.trajectory.reward.sum(dtype=np.float64)),
        cost=tuple((discount * episode.cost).sum(0).tolist()),
        num_steps=len(episode.trajectory),
        terminated=episode.trajectory.terminated,
        truncated=episode.trajectory.truncated,
        resampled=float((episode.num_rounds > 1).mean()),
        fell_back=float(episode.fell_back.mean()),
        shielded=float(episode.shielded.mean()),
    )
