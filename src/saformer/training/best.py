"""Which evaluation of a run that is fine-tuned was the best: its weights are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from saformer.training.judging import Judged

Merit = tuple[int, int, float, float]
LOSS = 0.05
"""A limit that was met at first is not kept by giving up so much of what was earned: anyone can
stand still."""


def merit(found: Judged, first: Judged) -> Merit:
    """How good an evaluation was, to be compared: how many limits are met, how many surely hold, by
    how little the others are overrun, and the mean return. Limits whose return was lost since the
    first evaluation count as neither.

    Overruns are shares of the limits; evaluations of a run are under the same limits, so the order
    does not depend on the units of costs or rewards.
    """
    every, kept = (
        found.values(),
        {name for name, one in found.items() if keeps_return(one, first[name])},
    )
    return (
        sum(bool(found[name]["met"]) for name in kept),
        sum(bool(found[name]["holds"]) for name in kept),
        -float(np.mean([_overrun(one["cost"], one["limit"]) for one in every])),
        float(np.mean([one["return"] for one in every])),
    )


def keeps_return(found: dict[str, Any], first: dict[str, Any]) -> bool:
    """Whether a limit that was met at first still earns nearly as much."""
    return not first["met"] or bool(
        found["return"] >= first["return"] - LOSS * abs(first["return"])
    )


def settled(found: Judged, first: Judged) -> set[str]:
    """The limits that surely hold and kept their return."""
    return {name for name, one in found.items() if one["holds"] and keeps_return(one, first[name])}


def best_of(evaluations: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row of metrics with the best evaluation; of equals the first."""
    first = evaluations[0]["evaluation"]
    return max(evaluations, key=lambda row: merit(row["evaluation"], first))


def _overrun(cost: Sequence[float], limit: Sequence[float]) -> float:
    """Of the worst constraint; 0 if it is within all."""
    bounds = np.maximum(limit, 1e-9)
    return max(0.0, float(((np.array(cost) - bounds) / bounds).max()))
