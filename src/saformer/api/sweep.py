"""Try one option of a policy at several values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from saformer.agents.dt import usual_target
from saformer.api.judge import EvaluateSettings, JudgeSettings, judge_rollouts
from saformer.data.totals import Totals

if TYPE_CHECKING:  # rollouts need Gymnasium
    from saformer.evaluation.evaluate import Evaluation
    from saformer.trained import Trained

TARGETS = (0.25, 0.5, 0.75, 1.0, 1.25)
"""Target returns to try, as shares of the way from the lowest to the highest stored return."""


@dataclass(frozen=True)
class SweepSettings(JudgeSettings):
    """Which option `sweep` tries, at which values."""

    values: Sequence[float] = ()
    """Values to try; for target_return by default five spread over the data and beyond, and the
    usual one."""
    option: str = "target_return"
    """An option of the run's agent that takes a number: target_return (dt, cdt), temperature."""


@dataclass(frozen=True)
class SweepTrial:
    """A value, and how the policy did with it."""

    value: float
    evaluation: Evaluation

    @property
    def mean_return(self) -> float:
        """Over all limits."""
        return float(np.mean([verdict.mean_return for verdict in self.evaluation.verdicts]))

    @property
    def mean_cost(self) -> tuple[float, ...]:
        """Over all limits, per constraint."""
        costs = np.mean([verdict.mean_cost for verdict in self.evaluation.verdicts], axis=0)
        return tuple(costs.tolist())

    def plain(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "mean_return": self.mean_return,
            "mean_cost": self.mean_cost,
            "limits_met": self.evaluation.limits_met,
            "verdicts": [verdict.plain() for verdict in self.evaluation.verdicts],
        }


@dataclass(frozen=True)
class Sweep:
    """The values that were tried, from the lowest to the highest."""

    option: str
    trials: tuple[SweepTrial, ...]
    acting: dict[str, Any]
    """rule and options of the first trial"""

    @property
    def best(self) -> SweepTrial:
        """The trial of the highest return, whatever it cost."""
        return max(self.trials, key=lambda trial: trial.mean_return)

    def plain(self) -> dict[str, Any]:
        trials = [trial.plain() for trial in self.trials]
        return {"option": self.option, "best": self.best.value, "trials": trials}


def sweep_option(trained: Trained, settings: SweepSettings) -> Sweep:
    """Roll out with the option at each of its values."""
    option = settings.option
    trained.check_environment(trained.totals.environment)
    if not settings.values and option != "target_return":
        raise ValueError(
            f"say which values of {option} to try: only target returns have some by default"
        )
    values = sorted(settings.values) or default_targets(trained.totals)
    shared = {f.name: getattr(settings, f.name) for f in fields(JudgeSettings)}
    tried = [
        EvaluateSettings(**{**shared, "options": {**settings.options, option: value}})
        for value in values
    ]
    # refuses a wrong value before anything is rolled out
    acting = [trained.acting(each) for each in tried]
    evaluations = [judge_rollouts(trained, each).evaluation for each in tried]
    return Sweep(option, tuple(map(SweepTrial, values, evaluations)), acting[0])


def default_targets(data: Totals) -> list[float]:
    """Shares of the way from the lowest to the highest stored return, and DT's usual target."""
    low, high = float(data.episode_return.min()), float(data.episode_return.max())
    return sorted({low + share * (high - low) for share in TARGETS} | {usual_target(data)})
