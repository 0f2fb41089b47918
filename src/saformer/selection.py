"""Choose among runs, rules and margins by what the logs alone let us expect of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from saformer.api.estimate import logged_limits, world_of
from saformer.data.canonical import frontier_of
from saformer.data.limits import Limit
from saformer.data.shown import Shown
from saformer.data.statistics import mean_known, without_nan
from saformer.evaluation.calibration import check_margins
from saformer.evaluation.evaluate import Terms, evaluate_policy
from saformer.evaluation.offline.estimate import estimate_policy
from saformer.evaluation.offline.world import World
from saformer.trained import Trained

MARGINS = (0.0, 0.05, 0.1)
"""Shares of each limit that a policy may never hear of, to be tried."""


@dataclass(frozen=True)
class Candidate:
    """One way to act, and what is expected of it."""

    run: str
    agent: str
    rule: str
    margin: float
    limits_met: int
    within: float  # mean share of episodes within their limits
    safe_share: float  # mean over limits; 0 under those that are missed, or not supported
    trust: tuple[str, ...]  # of each limit
    rolled_out: float | None = None  # the safe share in the simulator, where that was asked for


@dataclass(frozen=True, repr=False)
class Selection(Shown):
    """All candidates under the same limits, and the one that the logs speak for."""

    limits: tuple[str, ...]
    candidates: tuple[Candidate, ...]

    @property
    def chosen(self) -> Candidate:
        """The highest safe share; of equals the first: its run's usual rule, all of the limit."""
        return max(self.candidates, key=lambda each: _known(each.safe_share))

    @property
    def best_rolled_out(self) -> Candidate | None:
        """What rollouts would have chosen, where there were any."""
        judged = [each for each in self.candidates if each.rolled_out is not None]
        return max(judged, key=lambda each: _known(each.rolled_out)) if judged else None

    def plain(self) -> dict[str, Any]:
        candidates = [vars(each) for each in self.candidates]
        best = self.best_rolled_out
        chosen: dict[str, Any] = {"chosen": self.candidates.index(self.chosen)}
        chosen["best_rolled_out"] = self.candidates.index(best) if best else None
        return dict(without_nan({"limits": self.limits, "candidates": candidates, **chosen}))


def select_policy(
    runs: Sequence[Trained],
    limits: Sequence[str] = (),
    *,
    rules: Sequence[str] = (),
    margins: Sequence[float] = MARGINS,
    episodes: int = 20,
    check: bool = False,
    seed: int = 0,
) -> Selection:
    """Estimate every run by each of its rules, or by these, with each margin. `check`: also roll
    out in the simulator, to see what that would have chosen."""
    if not runs:
        raise ValueError("name at least one run to choose among")
    check_margins(margins)
    there = dict.fromkeys(rule for trained in runs for rule in trained.kind.rules)
    unknown = [rule for rule in rules if rule not in there]
    if unknown:
        raise ValueError(f"no run has a rule {', '.join(unknown)}; there are {', '.join(there)}")
    candidates, named = list[Candidate](), tuple[str, ...]()
    for trained in runs:
        world = world_of(trained)
        known = logged_limits(trained, world, limits)
        named = named or tuple(map(str, known))
        own = [rule for rule in trained.kind.rules if not rules or rule in rules]
        # who hears of no limit acts alike, whatever is withheld
        tried = margins[:1] if trained.kind.has_one_limit else margins
        for rule, margin in product(own or trained.kind.rules, tried):
            trained.listener.say(f"{trained.path.name}, rule {rule}, margin {margin:.0%}")
            way = _Way(trained, world, known, rule, margin, episodes, seed)
            candidates.append(way.judged(check=check))
    return Selection(named, tuple(candidates))


@dataclass(frozen=True)
class _Way:
    """One way to act under limits."""

    trained: Trained
    world: World
    limits: Sequence[Limit]
    rule: str
    margin: float
    episodes: int
    seed: int

    def judged(self, *, check: bool) -> Candidate:
        """From the logs, and in the simulator too if it is to be checked."""
        trained, data = self.trained, self.world.data
        policy = trained.agent.policy(trained.options(self.rule))
        frontiers = [frontier_of(trained.run.spec.task, data, limit) for limit in self.limits]
        terms = Terms(frontiers, [self.margin] * len(self.limits))
        how: Any = {"episodes": self.episodes, "seed": self.seed, "terms": terms}
        how["progress"] = trained.listener.evaluating
        estimate, rolled_out = estimate_policy(policy, self.world, self.limits, **how), None
        if check:
            trained.check_environment(trained.totals.environment)
            evaluation = evaluate_policy(policy, trained.totals, self.limits, **how)
            rolled_out = mean_known([verdict.safe_share for verdict in evaluation.verdicts])
        verdicts = [limit.verdict for limit in estimate.limits]
        return Candidate(
            run=str(trained.path),
            agent=trained.run.spec.agent,
            rule=self.rule,
            margin=self.margin,
            limits_met=sum(verdict.met for verdict in verdicts),
            within=float(np.mean([verdict.within for verdict in verdicts])),
            safe_share=estimate.safe_share,
            trust=tuple(limit.trust for limit in estimate.limits),
            rolled_out=rolled_out,
        )


def _known(share: float | None) -> float:
    return -np.inf if share is None or np.isnan(share) else share
