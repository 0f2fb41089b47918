"""What trajectories earned and cost: enough data for limits, frontiers and rollouts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from saformer.criteria import CostCriterion
from saformer.data.relabel import Doubles, RelabelledStore
from saformer.data.store import EnvironmentSpec

PERCENTILES = tuple(range(5, 100, 5))


@dataclass(frozen=True)
class TotalsAlone:
    """Totals without the trajectories themselves, as a run's folder or an export has them."""

    environment: EnvironmentSpec
    criteria: tuple[CostCriterion, ...]
    cost_discount: float  # step t counts cost_discount**t times its cost
    episode_cost: Doubles  # [N, C]
    episode_return: Doubles  # [N] undiscounted

    def __post_init__(self) -> None:
        num_returns, num_criteria = len(self.episode_return), len(self.criteria)
        if self.episode_cost.shape != (num_returns, num_criteria) or not num_returns:
            counts = f"{num_returns} returns and {num_criteria} criteria"
            raise ValueError(f"costs of shape {self.episode_cost.shape} do not fit {counts}")


Totals = RelabelledStore | TotalsAlone


def percentiles(values: Doubles, percents: Sequence[int] = PERCENTILES) -> dict[str, float]:
    """{"p5": ..., "p10": ..., ..., "p95": ...} of a value per trajectory."""
    results = np.percentile(values, percents).tolist()
    return {f"p{percent}": value for percent, value in zip(percents, results, strict=True)}
