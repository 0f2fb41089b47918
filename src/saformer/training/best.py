"""Which evaluation of a run that is fine-tuned was the best: its weights are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from saformer.training.judging import Judged

Merit = tuple[int, int, float, float]


def merit(found: Judged) -> Merit:
    """How good an evaluation was, to be compared: how many limits hold, how many are met, by how little the others are
    overrun, and the mean return.

    Overruns are shares of the limits; evaluations of a run are under the same limits, so the order does not depend on
    the units of costs or rewards.
    """
    every = found.values()
    return (
        sum(bool(one["holds"]) for one in every),
        sum(bool(one["met"]) for one in every),
        -float(np.mean([_overrun(one["cost"], one["limit"]) for one in every])),
        float(np.mean([one["return"] for one in every])),
    )


def best_of(evaluations: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row of metrics with the best evaluation; of equals the first."""
    return max(evaluations, key=lambda row: merit(row["evaluation"]))


def _overrun(cost: Sequence[float], limit: Sequence[float]) -> float:
    """Of the worst constraint; 0 if it is within all."""
    bounds = np.maximum(limit, 1e-9)
    return max(0.0, float(((np.array(cost) - bounds) / bounds).max()))
