"""A policy's deeds and reasons, to be drawn: cost paths, and the candidates of one decision."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from saformer.core.policy import Decision
from saformer.data.limits import Totals
from saformer.envs.episodes import Episode
from saformer.evaluation.verdict import EpisodeRow

MAX_POINTS, PATHS_PER_LIMIT, MAX_TRAJECTORIES = 200, 5, 500


class DecisionTrace:
    """Holds one decision of each watched lane: the latest that rejects and accepts most evenly."""

    def __init__(self, lanes: Sequence[int]) -> None:
        self._lanes, self._step = set(lanes), 0
        self.decisions: dict[int, dict[str, Any]] = {}

    def __call__(self, lanes: Tensor, decision: Decision) -> None:
        if decision.verification is not None:
            assert decision.candidates is not None
            assert decision.num_safe is not None
            num_candidates = decision.candidates.return_to_go.shape[1]
            counts = zip(lanes.tolist(), decision.num_safe.tolist(), strict=True)
            for row, (lane, num_safe) in enumerate(counts):
                balance = min(num_safe, num_candidates - num_safe)
                latest = self.decisions.get(lane)
                if lane in self._lanes and (latest is None or balance >= latest["balance"]):
                    self.decisions[lane] = _describe(decision, row, self._step)
        self._step += 1


def _describe(decision: Decision, row: int, step: int) -> dict[str, Any]:
    assert decision.verification is not None
    assert decision.candidates is not None
    assert decision.chosen is not None
    assert decision.fell_back is not None
    safe = decision.verification.safe[row]
    return {
        "step": step,
        "return_to_go": decision.candidates.return_to_go[row].tolist(),
        "forecast_cost": decision.verification.cost[row].tolist(),
        "remaining": decision.verification.remaining[row].tolist(),
        "safe": safe.tolist(),
        "chosen": int(decision.chosen[row]),
        "fell_back": bool(decision.fell_back[row]),
        "balance": min(int(safe.sum()), int((~safe).sum())),
    }


def spending_paths(
    episodes: Sequence[Episode], rows: Sequence[EpisodeRow], *, cost_discount: float
) -> list[dict[str, Any]]:
    """Cumulated cost of a few episodes under each limit; `rows` are the same episodes, judged."""
    paths: list[dict[str, Any]] = []
    for episode, row in zip(episodes, rows, strict=True):
        if sum(path["limit_name"] == row.limit_name for path in paths) < PATHS_PER_LIMIT:
            spent = np.cumsum(episode.discounted_cost(cost_discount), axis=0)
            num_points = min(MAX_POINTS, len(spent))
            shown = np.unique(np.linspace(0, len(spent) - 1, num_points).astype(int))
            path = {"step": (shown + 1).tolist(), "spent": spent[shown].round(3).tolist()}
            names = ("limit_name", "limit", "ended_early", "may_end")
            paths.append({**{name: getattr(row, name) for name in names}, **path})
    return paths


def shown_trajectories(data: Totals) -> dict[str, Any]:
    """Return and cost of some stored trajectories, to draw the policy's episodes among them."""
    shown = slice(None, None, -(-len(data.episode_return) // MAX_TRAJECTORIES))
    return {
        "return": data.episode_return[shown].round(2).tolist(),
        "cost": data.episode_cost[shown].round(2).tolist(),
        "criteria": [criterion.name for criterion in data.criteria],
    }
