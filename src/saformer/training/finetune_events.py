"""What a caller hears of fine-tuning: while it goes on, and at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from saformer.training.best import best_of, settled
from saformer.training.experience import ExploredEpisode
from saformer.training.judging import Judged
from saformer.training.loop.trainer import Metrics


@dataclass(frozen=True)
class FinetuneObserver:
    """What a caller may want to hear of."""

    episode: Callable[[ExploredEpisode, int], None] = lambda row, allowance: None
    """called with each new episode, and how many there may be"""
    progress: Callable[[int, int, Metrics], None] = lambda update, total, metrics: None
    """called after updates: how many of how many at most, and the latest metrics"""
    judged: Callable[[int, Judged], None] = lambda num_episodes, found: None
    """called after each evaluation, with the number of episodes explored before it"""
    row: Callable[[dict[str, Any]], None] = lambda row: None
    """called with each row of metrics, as it is written"""


@dataclass(frozen=True)
class Outcome:
    """How fine-tuning ended."""

    held: bool
    """whether every limit holds with confidence, none at the price of its return; else the
    allowance is spent"""
    num_episodes: int
    num_evaluation_episodes: int
    broke_ceiling: float
    """share of the explored episodes that did"""
    before: Judged
    """what the first evaluation found, before anything was explored"""
    after: Judged
    """what the best evaluation found, whose weights were kept"""
    kept_after: int
    """episodes explored before that evaluation"""

    @classmethod
    def of(
        cls, explored: Sequence[ExploredEpisode], evaluations: Sequence[dict[str, Any]]
    ) -> Outcome:
        """From what was explored and the rows of evaluations."""
        best, first = best_of(evaluations), evaluations[0]["evaluation"]
        return cls(
            held=settled(best["evaluation"], first) == set(first),
            num_episodes=len(explored),
            num_evaluation_episodes=sum(row["evaluation_episodes"] for row in evaluations),
            broke_ceiling=sum(row.broke_ceiling for row in explored) / max(1, len(explored)),
            before=first,
            after=best["evaluation"],
            kept_after=best["episodes"],
        )

    def facts(self) -> dict[str, Any]:
        """As `done.json` has it."""
        return {
            "held": self.held,
            "episodes": self.num_episodes,
            "evaluation_episodes": self.num_evaluation_episodes,
            "broke_ceiling": self.broke_ceiling,
            "kept_after": self.kept_after,
        }
