"""What trajectories earned and cost: enough data for limits, frontiers and rollouts."""

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
    """A relabelled store is one; it holds every step besides."""

    @property
    def environment(self) -> EnvironmentSpec: ...

    @property
    def criteria(self) -> tuple[CostCriterion, ...]: ...

    @property
    def cost_discount(self) -> float:
        """Step t counts cost_discount**t times its cost."""

    @property
    def episode_cost(self) -> NDArray[np.float64]:
        """[N, C]"""

    @property
    def episode_return(self) -> NDArray[np.float64]:
        """[N] undiscounted"""


@dataclass(frozen=True)
class TotalsAlone:
    """Totals without the trajectories themselves, as a run's folder or an export has them."""

    environment: EnvironmentSpec
    criteria: tuple[CostCriterion, ...]
    cost_discount: float
    episode_cost: NDArray[np.float64]
    episode_return: NDArray[np.float64]

    def __post_init__(self) -> None:
        num_returns, num_criteria = len(self.episode_return), len(self.criteria)
        if self.episode_cost.shape != (num_returns, num_criteria) or not num_returns:
            counts = f"{num_returns} returns and {num_criteria} criteria"
            raise ValueError(f"costs of shape {self.episode_cost.shape} do not fit {counts}")


def percentiles(
    values: Sequence[float] | NDArray[np.float64], percents: Sequence[int] = PERCENTILES
) -> dict[str, float]:
    """{"p5": ..., "p10": ..., ..., "p95": ...} of a value per trajectory."""
    results = np.percentile(values, percents).tolist()
    return {f"p{percent}": value for percent, value in zip(percents, results, strict=True)}
