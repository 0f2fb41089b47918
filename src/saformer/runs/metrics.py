"""Names in rows of metrics: PHASE/TERM is a term of a phase's loss, PHASE/watched/FIGURE no part of
it (a multiplier, an expected cost), PHASE/gradient_norm stands beside both."""

from collections.abc import Iterable
from typing import Any

GRADIENT_NORM = "gradient_norm"
WATCHED = "watched/"
MetricsRow = dict[str, int | float | dict[str, dict[str, Any]] | None]
"""Of metrics.jsonl: the update and figures by name; an evaluation's by limit."""


def terms_by_phase(names: Iterable[str], *, watched: bool = False) -> dict[str, list[str]]:
    """The names of the terms that each phase minimises, or of the figures that are only watched."""
    by_phase: dict[str, list[str]] = {}
    for name in names:
        phase, slash, term = name.partition("/")
        if slash and term != GRADIENT_NORM and term.startswith(WATCHED) == watched:
            by_phase.setdefault(phase, []).append(name)
    return by_phase
