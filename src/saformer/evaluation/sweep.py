"""One option of a policy at several values."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from saformer.data.shown import Shown
from saformer.data.statistics import without_nan
from saformer.evaluation.evaluate import Evaluation


@dataclass(frozen=True)
class SweepTrial:
    """A value, and how the policy did with it; means are over all limits."""

    value: float
    evaluation: Evaluation

    @property
    def mean_return(self) -> float:
        return float(np.mean([verdict.mean_return for verdict in self.evaluation.verdicts]))

    @property
    def mean_cost(self) -> tuple[float, ...]:
        costs = np.mean([verdict.mean_cost for verdict in self.evaluation.verdicts], axis=0)
        return tuple(costs.tolist())

    def plain(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "mean_return": self.mean_return,
            "mean_cost": self.mean_cost,
            "limits_met": self.evaluation.limits_met,
            "ended_early": self.evaluation.ended_early,
            "verdicts": [verdict.plain() for verdict in self.evaluation.verdicts],
        }


@dataclass(frozen=True, repr=False)
class Sweep(Shown):
    """The values that were tried, from the lowest to the highest."""

    option: str
    trials: tuple[SweepTrial, ...]
    acting: dict[str, Any]  # rule and options of the first trial

    @property
    def best(self) -> SweepTrial:
        """The trial of the highest return, whatever it cost."""
        return max(self.trials, key=lambda trial: trial.mean_return)

    def plain(self) -> dict[str, Any]:
        trials = [trial.plain() for trial in self.trials]
        evaluation = self.trials[0].evaluation
        endings, nothing = evaluation.verdicts[0].endings, evaluation.nothing
        plain: dict[str, Any] = {"option": self.option, "best": self.best.value, "trials": trials}
        plain |= {"may_end": endings.may_end, "data_ended_early": endings.data_share}
        plain["nothing"] = SweepTrial(float("nan"), nothing).plain() if nothing else None
        return dict(without_nan(plain))
