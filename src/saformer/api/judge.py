"""Judge a trained agent: limits, frontiers, with and without a shield, an option at many values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from saformer.agents.dt import usual_target
from saformer.api.listener import Listener
from saformer.api.run_data import relabelled, store_of, training_data
from saformer.core.policy import Policy
from saformer.data.canonical import canonical
from saformer.data.limits import Limit, Totals, frontier, parse_limit
from saformer.evaluation.offline import OfflineEvaluation, judge_offline
from saformer.runs.spec import RunSpec
from saformer.shield import LimitBlind, Shield

if TYPE_CHECKING:  # rollouts need Gymnasium; training does not
    from saformer.evaluation.calibration import Calibration
    from saformer.evaluation.evaluate import Evaluation
    from saformer.trained import Trained

DEFAULT_LIMITS = ("p10", "p20", "p30", "p50")
PLAIN, SHIELDED, REFERENCE = "the policy", "the policy + shield", "limit-blind mean action + shield"
MAX_SHOWN_TRAJECTORIES = 500
TARGETS = (0.25, 0.5, 0.75, 1.0, 1.25)
"""Target returns to try, as shares of the way from the lowest to the highest stored return."""


@dataclass(frozen=True)
class JudgeSettings:
    """Under which limits a policy is rolled out, and how it acts."""

    limits: Sequence[str] = ()
    """Percentiles of the data's episode costs (p10) or plain costs (4300); commas separate
    constraints (p20,350); by default p10 p20 p30 p50, or the one limit that the run was trained
    for."""
    episodes: int = 20
    """Episodes under each limit."""
    rule: str | None = None
    """How SaFormer decides: reserve (its default), paper (Algorithm 1) or none (no critic)."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Changes of the agent's or the rule's options, by their names."""
    seed: int = 0
    """Decides initial states and proposals."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ValueError(f"at least one episode is needed, got {self.episodes}")


@dataclass(frozen=True)
class EvaluateSettings(JudgeSettings):
    """How `evaluate` judges."""

    rate: float | None = None
    """Withhold as much of each limit as `calibrate` showed to be needed for this violation rate
    (0.05)."""
    shield: bool = False
    """Make actions cheaper where they would pass the limit: then no episode does, whatever was
    learnt. For costs of the action alone, such as torque."""
    both: bool = False
    """Judge the policy with and without the shield, side by side."""
    reference: bool = False
    """Also show the agent's mean action, prompted with the largest cost of the data, with the
    shield."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate is not None and (self.shield or self.both or self.reference):
            raise ValueError(
                "a shield lets no episode pass its limit, at any rate: leave either rate or the "
                "shield out"
            )


@dataclass(frozen=True)
class Judged:
    """How a policy did, how it acted, and the data that it is held against."""

    evaluation: Evaluation
    acting: dict[str, Any]
    """its rule and options"""
    data: Totals


def judge_rollouts(
    trained: Trained,
    settings: EvaluateSettings,
    limits: Sequence[Limit],
    calibration: Calibration | None = None,
) -> Judged:
    """Roll out under each limit, all in one batch; nothing is written."""
    from saformer.evaluation.evaluate import Terms, evaluate_policy

    totals, margins, rate = trained.totals, None, None
    if calibration is not None:
        margins, rate = [calibration.margin_for(limit) for limit in limits], calibration.rate
    frontiers = [frontier_of(trained.run.spec, totals, limit) for limit in limits]
    evaluations = []
    for name, policy in _policies(trained, settings).items():
        evaluation = evaluate_policy(
            policy,
            totals,
            limits,
            name=name,
            episodes=settings.episodes,
            seed=settings.seed,
            terms=Terms(frontiers, margins),
            progress=trained.listener.evaluating,
            workers=trained.context.workers,
        )
        evaluations.append(evaluation)
    first, *others = evaluations
    evaluation = replace(first, beside=tuple(others), rate=rate)
    is_shielded = settings.shield or settings.both
    return Judged(evaluation, trained.acting(settings, shielded=is_shielded), totals)


def _policies(trained: Trained, settings: EvaluateSettings) -> dict[str, Policy]:
    """By name: first the policy in question, then those to compare it with."""
    agent, data, acting = trained.agent, trained.totals, (settings.rule, settings.options)
    policies: dict[str, Policy] = {}
    if settings.shield or settings.both:
        within = agent.policy(trained.options(*acting, shielded=True))
        policies[SHIELDED] = shielded(within, data)
    if settings.both or not settings.shield:
        policies[PLAIN] = agent.policy(trained.options(*acting))
    if settings.reference:  # the mean action, prompted with the largest cost of the data
        mean = agent.policy(agent.mean_options())
        blind = LimitBlind(mean, data.episode_cost.max(0).tolist())
        policies[REFERENCE] = shielded(blind, data)
    return policies


def shielded(policy: Policy, data: Totals) -> Shield:
    """The policy within what this data's costs, bounds and horizon allow."""
    environment = data.environment
    return Shield(
        policy,
        data.criteria,
        action_low=environment.action_low,
        action_high=environment.action_high,
        cost_discount=data.cost_discount,
        horizon=environment.horizon,
    )


def judge_held_out(trained: Trained, limits: Sequence[str]) -> OfflineEvaluation:
    """Judge critic and actor on the trajectories that training never saw."""
    run, listener, spec = trained.run, trained.listener, trained.run.spec
    if not spec.held_out:
        raise ValueError(
            f"{run.path} held no trajectories out: train with held_out=0.1 (--held-out 0.1) to "
            "judge offline"
        )
    if not trained.kind.verifies:
        raise ValueError(
            "without a rollout only saformer can be judged, by its critic and its actor; "
            f"{run.path} is {spec.agent}"
        )
    store = store_of(run, listener, trained.context.data, exact=True)
    training = training_data(run, store, listener)
    held_out = relabelled(store.split(spec.held_out)[1], spec.criteria, training.cost_discount)
    return judge_offline(
        trained.agent.model,  # type: ignore[arg-type]
        training,
        held_out,
        limits_of(spec, training, limits),
        window=trained.agent.config.window,
        progress=listener.evaluating,
    )


def limits_of(
    spec: RunSpec, data: Totals, names: Sequence[str] = (), usual: Sequence[str] = DEFAULT_LIMITS
) -> list[Limit]:
    """The limits of these names, else those that the run was made for, else the usual ones."""
    if not names and spec.limit is not None:
        return [Limit(spec.limit, tuple(spec.agent_config["limit"]))]
    finetuned = (spec.finetuning or {}).get("limits", {}).items()
    known = {name: Limit(name, tuple(values)) for name, values in finetuned}
    return [known.get(name) or parse_limit(name, data) for name in names or known or usual]


def remark_on_limits(spec: RunSpec, limits: Sequence[Limit], listener: Listener) -> None:
    """Say so where a run is judged under another limit than the one that it was trained for."""
    if spec.limit is None:
        return
    trained = tuple(spec.agent_config["limit"])
    others = [limit for limit in limits if limit.values != trained]
    if others:
        names = ", ".join(f"{limit.name} = {_numbers(limit.values)}" for limit in others)
        listener.say(
            f"{spec.agent} was trained for the limit {spec.limit} = {_numbers(trained)} and "
            f"keeps to that, whatever it is judged under: {names}"
        )


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


def frontier_of(spec: RunSpec, data: Totals, limit: Limit) -> Any:
    """The frontier of the canonical build, where there is one; else of this data."""
    build = canonical(spec.task)
    if build is None or spec.criteria != ("torque",) or data.cost_discount != 1:
        return frontier(data, limit)
    return build.frontier.at(limit.values[0])


def shown_trajectories(data: Totals) -> dict[str, Any]:
    """Return and cost of some stored trajectories, to draw the policy's episodes among them."""
    shown = slice(None, None, -(-len(data.episode_return) // MAX_SHOWN_TRAJECTORIES))
    return {
        "return": data.episode_return[shown].round(2).tolist(),
        "cost": data.episode_cost[shown].round(2).tolist(),
        "criteria": [c.name for c in data.criteria],
    }


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
    option, limits = settings.option, trained.parse_limits(settings.limits)
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
    evaluations = [judge_rollouts(trained, each, limits).evaluation for each in tried]
    return Sweep(option, tuple(map(SweepTrial, values, evaluations)), acting[0])


def default_targets(data: Totals) -> list[float]:
    """Shares of the way from the lowest to the highest stored return, and DT's usual target."""
    low, high = float(data.episode_return.min()), float(data.episode_return.max())
    return sorted({low + share * (high - low) for share in TARGETS} | {usual_target(data)})
