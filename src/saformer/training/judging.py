"""How a policy that is being fine-tuned does under each limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from saformer.core.execution import SaFormerPolicy
from saformer.data.limits import Limit
from saformer.data.relabel import RelabelledStore
from saformer.envs.stepping import Workers
from saformer.evaluation.confidence import holds, upper_bound
from saformer.evaluation.evaluate import evaluate
from saformer.evaluation.verdict import EpisodeRow, Verdict

Judged = dict[str, dict[str, Any]]
"""By the name of the limit: what an evaluation found."""


def judge(
    policy: SaFormerPolicy,
    data: RelabelledStore,
    limits: Sequence[Limit],
    *,
    episodes: int,
    seed: int,
    workers: Workers = "auto",
) -> Judged:
    """Roll out under every limit as it is; the seed decides initial states and proposals."""
    policy.seed = seed
    found = evaluate(policy, data, limits, episodes=episodes, seed=seed, workers=workers)
    return {verdict.limit.name: _plain(verdict, found.rows) for verdict in found.verdicts}


def _plain(verdict: Verdict, rows: Sequence[EpisodeRow]) -> dict[str, Any]:
    costs = [row.cost for row in rows if row.limit_name == verdict.limit.name]
    return {
        "limit": verdict.limit.values,
        "cost": verdict.mean_cost,
        "bound": [upper_bound(one) for one in zip(*costs, strict=True)],
        "return": verdict.mean_return,
        "within": verdict.within,
        "met": verdict.met,
        "holds": holds(costs, verdict.limit.values),
        "fell_back": verdict.fell_back,
    }
