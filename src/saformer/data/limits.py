"""Which limits a dataset can support, and what it shows to be possible within them."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass

import numpy as np

from saformer.data.relabel import Doubles, RelabelledStore

FRONTIER_SIZE = 5


@dataclass(frozen=True)
class Limit:
    """A promise: what an episode may cost, for each constraint, and the name it was asked for by."""

    name: str
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not all(np.isfinite(value) and value >= 0 for value in self.values):
            raise ValueError(f"a limit must be a finite number of at least 0, got {self.name!r} = {self.values}")


def parse_limit(text: str, data: RelabelledStore) -> Limit:
    """A limit from "4300" (in units of the cost), "p10" (a percentile of the data), or one of these per constraint.

    "p20,350" sets two constraints. A limit outside the data's range is accepted with a warning.
    """
    parts = text.split(",")
    num_constraints = data.cost.shape[1]
    if len(parts) == 1:
        parts = parts * num_constraints
    if len(parts) != num_constraints:
        raise ValueError(f"{text!r} holds {len(parts)} limits, the data has {num_constraints} constraints")
    limit = Limit(text, tuple(_value(part.strip(), data.episode_cost[:, i]) for i, part in enumerate(parts)))
    for value, costs in zip(limit.values, data.episode_cost.T, strict=True):
        if not costs.min() <= value <= costs.max():
            warnings.warn(
                f"limit {value:g} lies outside the data, whose episodes cost {costs.min():.4g} to {costs.max():.4g}: "
                "expect it to be missed, or the policy to be needlessly timid",
                stacklevel=2,
            )
    return limit


def _value(text: str, costs: Doubles) -> float:
    percentile = re.fullmatch(r"p(\d+(?:\.\d+)?)", text)
    if percentile and float(percentile[1]) <= 100:
        return float(np.percentile(costs, float(percentile[1])))
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a limit; give a number such as 4300, or a percentile such as p10") from None


@dataclass(frozen=True)
class Frontier:
    """What the data itself shows to be possible within a limit."""

    best: float
    """mean of the five best stored returns within the limit; NaN if no stored trajectory lies within it"""
    worst: float
    """the lowest stored return"""

    def share(self, earned: float, *, cap: float = 1.25) -> float:
        """How far from worst to best a return lies, capped above."""
        span = self.best - self.worst
        return min((earned - self.worst) / span, cap) if span > 0 else float("nan")


def frontier(data: RelabelledStore, limit: Limit) -> Frontier:
    """The mean of the best stored returns among trajectories within the limit, and the lowest of all."""
    within = (data.episode_cost <= np.array(limit.values)).all(-1)
    best = np.sort(data.episode_return[within])[-FRONTIER_SIZE:]
    return Frontier(float(best.mean()) if len(best) else float("nan"), float(data.episode_return.min()))
