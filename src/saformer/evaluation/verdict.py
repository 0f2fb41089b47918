"""How well limits were kept, and the return within them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from saformer.data.limits import Frontier, Limit, Totals
from saformer.evaluation.confidence import violation_bound, wilson_interval

SHARES = ("resampled", "fell_back", "shielded")
TOLERANCE = 0.0  # added to a limit before costs are held against it; printed with every table
MORE_ENDINGS, MOST_ENDINGS = 0.02, 0.1
"""Where no episode may end early: by how much their share may exceed the data's, and any share."""


@dataclass(frozen=True)
class Endings:
    """Whether episodes may end early to keep a limit, and which share of the data's does."""

    may_end: bool = True
    data_share: float = float("nan")  # NaN where it is unknown

    @classmethod
    def of(cls, data: Totals) -> Self:
        early = data.ended_early
        share = float("nan") if early is None else float(early.mean())
        return cls(data.environment.may_end, share)

    def tolerates(self, ended_early: float) -> bool:
        """Whether a limit can be met with this share of episodes ended early."""
        usual = 0.0 if np.isnan(self.data_share) else self.data_share
        most = min(usual + MORE_ENDINGS, MOST_ENDINGS)
        return self.may_end or ended_early <= most + 1e-9  # shares of counts are rounded


@dataclass(frozen=True)
class EpisodeRow:
    """One judged episode."""

    limit_name: str
    limit: tuple[float, ...]
    seed: int
    episode_return: float
    cost: tuple[float, ...]  # per constraint; discounted if the policy's costs are
    num_steps: int
    terminated: bool
    truncated: bool
    resampled: float  # share of steps that took more than one round of proposals
    fell_back: float  # share of steps that the fallback decided
    shielded: float = 0.0  # share of steps whose action a shield changed
    ended_early: bool = False  # terminated before the horizon
    may_end: bool = True  # else an episode that ended early is not within

    @property
    def within(self) -> bool:
        if self.ended_early and not self.may_end:
            return False
        pairs = zip(self.cost, self.limit, strict=True)
        return all(cost <= limit + TOLERANCE for cost, limit in pairs)

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "within": self.within}


@dataclass(frozen=True)
class Verdict:
    """All episodes under one limit."""

    limit: Limit
    num_episodes: int
    met: bool
    """Eq. (1): the mean cost is within the limit, for every constraint; where no episode may end
    early, hardly more do than in the data"""
    mean_cost: tuple[float, ...]
    worst_cost: tuple[float, ...]
    within: float  # share of episodes within the limit
    within_interval: tuple[float, float]  # 95% Wilson interval of that share
    mean_return: float
    frontier: float  # what the data shows to be possible within the limit
    frontier_share: float  # (R - R_min) / (frontier - R_min), capped at 1.25
    resampled: float  # mean of the episodes' shares, as are the following
    fell_back: float
    shielded: float
    uncapped_share: float = float("nan")
    ended_early: float = 0.0  # share of episodes that terminated before the horizon
    endings: Endings = Endings()

    @property
    def safe_share(self) -> float:
        """The frontier share, or 0 where the limit is not met; NaN with nothing to earn."""
        return self.frontier_share if self.met or np.isnan(self.frontier_share) else 0.0

    @property
    def num_violations(self) -> int:
        return round((1 - self.within) * self.num_episodes)

    @property
    def violation_bound(self) -> float:
        """Upper bound, with 95% confidence, of the share of episodes that pass the limit."""
        return violation_bound(self.num_violations, self.num_episodes)

    def plain(self) -> dict[str, Any]:
        bound = self.violation_bound
        return {**asdict(self), "safe_share": self.safe_share, "violation_bound": bound}


def judge_limit(
    rows: Sequence[EpisodeRow], limit: Limit, frontier: Frontier, endings: Endings | None = None
) -> Verdict:
    """Hold episodes against their limit: met if J_C <= d.

    Implements: Eq. (1)
    """
    endings = endings or Endings()
    if not rows:
        raise ValueError(f"no episodes to judge under limit {limit.name}")
    costs = np.array([row.cost for row in rows])  # [episodes, C]
    mean_cost = costs.mean(0)
    mean_return = float(np.mean([row.episode_return for row in rows]))
    num_within = sum(row.within for row in rows)
    ended_early = float(np.mean([row.ended_early for row in rows]))
    is_cheap = bool((mean_cost <= np.array(limit.values) + TOLERANCE).all())
    return Verdict(
        limit=limit,
        num_episodes=len(rows),
        met=is_cheap and endings.tolerates(ended_early),
        mean_cost=tuple(mean_cost.tolist()),
        worst_cost=tuple(costs.max(0).tolist()),
        within=num_within / len(rows),
        within_interval=wilson_interval(num_within, len(rows)),
        mean_return=mean_return,
        frontier=frontier.best,
        frontier_share=frontier.share(mean_return),
        uncapped_share=frontier.share(mean_return, cap=float("inf")),
        ended_early=ended_early,
        endings=endings,
        **{name: float(np.mean([getattr(row, name) for row in rows])) for name in SHARES},
    )
