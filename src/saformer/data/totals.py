"""What is asked of data once training is over: what its trajectories earned and cost, and what made
them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from saformer.criteria import CostCriterion
from saformer.data.store import EnvironmentSpec

PERCENTILES = tuple(range(5, 100, 5))


class Totals(Protocol):
    """Enough for limits, frontiers and rollouts. A relabelled store is one; it holds every step
    besides."""

    @property
    def environment(self) -> EnvironmentSpec:
        """What made the data."""

    @property
    def criteria(self) -> tuple[CostCriterion, ...]:
        """What the costs are of, one per constraint."""

    @property
    def cost_discount(self) -> float:
        """Step t counts cost_discount**t times its cost."""

    @property
    def episode_cost(self) -> NDArray[np.float64]:
        """[N, C] what each trajectory cost."""

    @property
    def episode_return(self) -> NDArray[np.float64]:
        """[N] what each trajectory earned, undiscounted."""


@dataclass(frozen=True)
class KeptTotals:
    """Totals that are kept without the trajectories themselves."""

    environment: EnvironmentSpec
    criteria: tuple[CostCriterion, ...]
    cost_discount: float
    episode_cost: NDArray[np.float64]
    episode_return: NDArray[np.float64]

    def __post_init__(self) -> None:
        expected = (len(self.episode_return), len(self.criteria))
        if self.episode_cost.shape != expected or not len(self.episode_return):
            raise ValueError(
                f"costs of shape {self.episode_cost.shape} do not fit {expected[0]} returns and "
                f"{expected[1]} criteria"
            )


def percentiles(costs: Sequence[float] | NDArray[np.float64]) -> dict[str, float]:
    """{"p5": ..., "p10": ..., ..., "p95": ...} of one constraint's episode costs."""
    values = np.percentile(costs, PERCENTILES).tolist()
    return {f"p{percent}": value for percent, value in zip(PERCENTILES, values, strict=True)}
