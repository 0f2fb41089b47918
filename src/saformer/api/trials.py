"""Try one option of a policy at several values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from saformer.agents.dt import usual_target
from saformer.api.findings import findings_of, keep_findings
from saformer.api.listener import Listener
from saformer.api.run_data import totals_of
from saformer.api.runs import limits_of, load, remark_on_limits
from saformer.api.settings import options_of, plain_options
from saformer.data.totals import Totals
from saformer.runs.run import find_run

if TYPE_CHECKING:  # rollouts need Gymnasium
    from saformer.evaluation.evaluate import Evaluation

TARGETS = (0.25, 0.5, 0.75, 1.0, 1.25)
"""Target returns to try, as shares of the way from the lowest to the highest stored return."""


@dataclass(frozen=True)
class Trial:
    """One value, and how the policy did with it."""

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


@dataclass(frozen=True)
class Sweep:
    """All values that were tried."""

    option: str
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        """The trial of the highest return, whatever it cost."""
        return max(self.trials, key=lambda trial: trial.mean_return)

    def plain(self) -> dict[str, Any]:
        """As JSON keeps it."""
        trials = [
            {
                "value": trial.value,
                "mean_return": trial.mean_return,
                "mean_cost": trial.mean_cost,
                "limits_met": trial.evaluation.limits_met,
                "verdicts": [verdict.plain() for verdict in trial.evaluation.verdicts],
            }
            for trial in self.trials
        ]
        return {"option": self.option, "best": self.best.value, "trials": trials}


def sweep(
    path: str | Path,
    values: Sequence[float] = (),
    *,
    option: str = "target_return",
    limits: Sequence[str] | None = None,
    episodes: int = 20,
    data: str | Path | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    device: str = "auto",
    workers: int | Literal["auto"] = "auto",
    listener: Listener | None = None,
) -> Sweep:
    """Roll a run's policy out with one option at each of these values; the findings are kept in
    `out`, as by `evaluate`.

    For target returns the values are by default five from within and beyond the data, and the one
    that the policy would be asked for anyway (the paper's, for its robots). `workers`: as in
    `evaluate`.
    """
    from saformer.evaluation.evaluate import evaluate_policy

    listener = listener or Listener()
    run, kept, agent = find_run(path), findings_of(path, out), load(path, device=device)
    found = totals_of(run, listener, data=data)
    if found.environment.identifier is None:
        raise ValueError(
            f"the data of {path} has no environment to roll out in, so nothing can be tried"
        )
    if not values and option != "target_return":
        raise ValueError(
            f"say which values of {option} to try: only target returns have some by default"
        )
    tried = sorted(values) or default_targets(found)
    settings = [options_of(agent, {option: value}) for value in tried]
    judged = limits_of(run.spec, found, limits)
    remark_on_limits(run.spec, judged, listener)
    trials = tuple(
        Trial(
            value,
            evaluate_policy(
                agent.policy(options), found, judged, episodes=episodes, seed=seed, workers=workers
            ),
        )
        for value, options in zip(tried, settings, strict=True)
    )
    result = Sweep(option, trials)
    how = {"options": plain_options(agent, settings[0]), "seed": seed, "episodes": episodes}
    listener.say(
        f"sweep kept in {keep_findings(run, kept, {'sweep.json': {**how, **result.plain()}})}"
    )
    return result


def default_targets(data: Totals) -> list[float]:
    """Shares of the way from the lowest to the highest stored return, and what DT is usually asked
    for."""
    low, high = float(data.episode_return.min()), float(data.episode_return.max())
    return sorted({low + share * (high - low) for share in TARGETS} | {usual_target(data)})
