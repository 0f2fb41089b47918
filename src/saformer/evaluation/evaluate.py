"""Roll a policy out under several limits and judge it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from saformer.core.policy import Policy
from saformer.data.limits import Frontier, Limit, Totals, frontier
from saformer.data.shown import Shown, frame_of
from saformer.data.statistics import mean_known, rank_correlation, without_nan
from saformer.envs.episodes import Episode, Hooks
from saformer.evaluation.nothing import NOTHING, DoingNothing
from saformer.evaluation.trace import DecisionTrace, spending_paths
from saformer.evaluation.verdict import TOLERANCE, Endings, EpisodeRow, Verdict, judge_limit

RollOut = Callable[..., list[Episode]]
"""(policy, limits, seeds, *, horizon, hooks): an episode for each limit and seed."""
FIRST_SEED = 1_000_000  # evaluation episodes start from seeds that no dataset uses


@dataclass(frozen=True, repr=False)
class Evaluation(Shown):
    """Every episode, a verdict per limit, and what to draw."""

    rows: tuple[EpisodeRow, ...]
    verdicts: tuple[Verdict, ...]
    decisions_per_second: float
    trace: dict[str, Any]
    criteria: tuple[str, ...]  # what the costs are of, one per constraint
    name: str = "the policy"  # whose episodes these are
    beside: tuple["Evaluation", ...] = ()  # others under the same limits, to be compared with it
    margins: tuple[float, ...] = ()  # share of each limit withheld from the policy; empty if none
    rate: float | None = None  # the violation rate that these margins were calibrated for
    nothing: "Evaluation | None" = None  # doing nothing from the same initial states

    @property
    def limits_met(self) -> int:
        return sum(verdict.met for verdict in self.verdicts)

    @property
    def rank_correlations(self) -> tuple[float, ...]:
        """Spearman's correlation of limit and episode cost, for every constraint."""
        limits = np.array([row.limit for row in self.rows]).T  # [C, episodes]
        costs = np.array([row.cost for row in self.rows]).T
        return tuple(rank_correlation(*pair) for pair in zip(limits, costs, strict=True))

    @property
    def frontier_share(self) -> float:
        """Mean over the limits that leave anything to earn."""
        return mean_known([verdict.frontier_share for verdict in self.verdicts])

    @property
    def ended_early(self) -> float:
        """Share of all episodes that terminated before the horizon."""
        return float(np.mean([row.ended_early for row in self.rows]))

    @property
    def idle_limits(self) -> tuple[str, ...]:
        """Limits that doing nothing keeps, and under which it earns as much."""
        pairs = zip(self.verdicts, self.nothing.verdicts if self.nothing else (), strict=False)
        idle = [own for own, other in pairs if other.met and own.mean_return <= other.mean_return]
        return tuple(verdict.limit.name for verdict in idle)

    def to_frame(self) -> Any:
        """A row for each episode, as a pandas (or else polars) frame."""
        return frame_of([row.plain() for row in self.rows])

    def plain(self) -> dict[str, Any]:
        """For JSON: what is not known is None."""
        plain = {
            "verdicts": [verdict.plain() for verdict in self.verdicts],
            "limits_met": self.limits_met,
            "rank_correlation": self.rank_correlations[0],
            "rank_correlations": self.rank_correlations,
            "criteria": self.criteria,
            "frontier_share": self.frontier_share,
            "uncapped_share": mean_known([each.uncapped_share for each in self.verdicts]),
            "safe_share": mean_known([verdict.safe_share for verdict in self.verdicts]),
            "may_end": self.verdicts[0].endings.may_end,
            "ended_early": self.ended_early,
            "data_ended_early": self.verdicts[0].endings.data_share,
            "tolerance": TOLERANCE,
            "decisions_per_second": self.decisions_per_second,
            "episodes": [row.plain() for row in self.rows],
            "name": self.name,
            "beside": [other.plain() for other in self.beside],
            "margins": self.margins,
            "rate": self.rate,
            "nothing": self.nothing.plain() if self.nothing else None,
            "idle_limits": self.idle_limits,
        }
        return dict(without_nan(plain))


@dataclass(frozen=True)
class Terms:
    """On what terms limits are judged; sequences have an entry for each limit."""

    frontiers: Sequence[Frontier] | None = None  # by default what the data shows to be possible
    margins: Sequence[float] | None = None  # shares withheld from the policy, judged by the whole
    first_seed: int = FIRST_SEED  # of the episodes


def evaluate_policy(
    policy: Policy,
    data: Totals,
    limits: Sequence[Limit],
    *,
    name: str = "the policy",
    episodes: int = 20,
    seed: int = 0,
    terms: Terms | None = None,
    progress: Callable[[int, int], None] | None = None,
    roll_out: RollOut | None = None,
    **how: Any,
) -> Evaluation:
    """Every limit and episode in one batched rollout. All limits face the same initial states.

    `roll_out`: where; by default in the environment of `data`, which `workers` processes step (0:
    this one) for the same results.
    """
    if episodes < 1 or not limits:
        counts = f"{episodes} and {len(limits)}"
        raise ValueError(f"at least one episode and one limit are needed, got {counts}")
    terms = terms or Terms()
    pairs = zip(limits, terms.margins or [0.0] * len(limits), strict=True)
    shown = [(1 - margin) * np.array(limit.values) for limit, margin in pairs]
    trace = DecisionTrace(range(0, len(limits) * episodes, episodes))
    began = time.perf_counter()
    played = (roll_out or _in_environment(data))(
        policy,
        [values for values in shown for _ in range(episodes)],
        [terms.first_seed + 1000 * seed + i for _ in limits for i in range(episodes)],
        horizon=data.environment.horizon,
        hooks=Hooks(watch=trace, progress=progress),
        **how,
    )
    seconds = time.perf_counter() - began
    lanes = zip(played, (limit for limit in limits for _ in range(episodes)), strict=True)
    rows = tuple(_row(episode, limit, data) for episode, limit in lanes)
    paths = spending_paths(played, rows, cost_discount=data.cost_discount)
    by_lane = sorted(trace.decisions.items())
    decisions = [{"limit_name": rows[lane].limit_name, **each} for lane, each in by_lane]
    return Evaluation(
        rows,
        _verdicts(rows, data, limits, terms),
        decisions_per_second=sum(row.num_steps for row in rows) / seconds,
        trace={"paths": paths, "decisions": decisions},
        criteria=tuple(criterion.name for criterion in data.criteria),
        name=name,
        margins=tuple(terms.margins or ()),
    )


def _in_environment(data: Totals) -> RollOut:
    from saformer.envs.lanes import Maker  # needs Gymnasium, as a world learnt from logs does not
    from saformer.envs.rollout import rollout

    def roll_out(policy: Policy, *lanes: Any, **how: Any) -> list[Episode]:
        return rollout(policy, Maker(data.environment, tuple(data.criteria)), *lanes, **how)

    return roll_out


def evaluate_nothing(
    data: Totals, limits: Sequence[Limit], *, terms: Terms | None = None, **how: Any
) -> Evaluation:
    """Do nothing, as `evaluate_policy` would judge it: one rollout, held against every limit."""
    terms = terms or Terms()
    once, start = (data, limits[:1]), Terms(first_seed=terms.first_seed)
    played = evaluate_policy(DoingNothing(data), *once, name=NOTHING, terms=start, **how)
    pairs = product(limits, played.rows)
    rows = tuple(replace(row, limit_name=own.name, limit=own.values) for own, row in pairs)
    return replace(played, rows=rows, verdicts=_verdicts(rows, data, limits, terms))


def _verdicts(
    rows: Sequence[EpisodeRow], data: Totals, limits: Sequence[Limit], terms: Terms
) -> tuple[Verdict, ...]:
    """Of as many rows under each limit, one limit after the other."""
    count, endings = len(rows) // len(limits), Endings.of(data)
    frontiers = terms.frontiers or [frontier(data, limit) for limit in limits]
    return tuple(
        judge_limit(rows[i * count : (i + 1) * count], limit, possible, endings)
        for i, (limit, possible) in enumerate(zip(limits, frontiers, strict=True))
    )


def _row(episode: Episode, limit: Limit, data: Totals) -> EpisodeRow:
    terminated, num_steps = episode.trajectory.terminated, len(episode.trajectory)
    return EpisodeRow(
        limit_name=limit.name,
        limit=limit.values,
        seed=episode.seed,
        episode_return=float(episode.trajectory.reward.sum(dtype=np.float64)),
        cost=tuple(episode.discounted_cost(data.cost_discount).sum(0).tolist()),
        num_steps=num_steps,
        terminated=terminated,
        truncated=episode.trajectory.truncated,
        resampled=float((episode.num_rounds > 1).mean()),
        fell_back=float(episode.fell_back.mean()),
        shielded=float(episode.shielded.mean()),
        ended_early=terminated and num_steps < data.environment.horizon,
        may_end=data.environment.may_end,
    )
