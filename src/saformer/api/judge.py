"""Judge a trained agent: with and without a shield, offline, with an option at many values."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from saformer.agents.dt import targets_to_try
from saformer.api.loaded import Loaded
from saformer.api.run_data import limits_of, store_of, training_data
from saformer.core.policy import Policy
from saformer.data.canonical import frontier_of
from saformer.data.limits import Limit, Totals
from saformer.data.relabel import relabelled
from saformer.evaluation.calibration import Calibration
from saformer.evaluation.offline.held_out import OfflineEvaluation, judge_offline
from saformer.evaluation.settings import EvaluateSettings, JudgeSettings, SweepSettings
from saformer.shield import LimitBlind, Shield

if TYPE_CHECKING:  # rollouts need Gymnasium; training does not
    from saformer.evaluation.evaluate import Evaluation
    from saformer.evaluation.sweep import Sweep

PLAIN, SHIELDED, REFERENCE = "the policy", "the policy + shield", "limit-blind mean action + shield"


def judge_rollouts(
    loaded: Loaded,
    settings: EvaluateSettings,
    limits: Sequence[Limit],
    calibration: Calibration | None = None,
    nothing: "Evaluation | None" = None,
) -> tuple["Evaluation", dict[str, Any]]:
    """Roll out under each limit, all in one batch, and do nothing beside it, unless that was judged
    before; also returns how the policy acted."""
    from saformer.evaluation.evaluate import Terms, evaluate_nothing, evaluate_policy

    totals, task = loaded.totals_for(settings.may_end), loaded.run.spec.task
    margins = [calibration.margin_for(limit) for limit in limits] if calibration else None
    terms = Terms([frontier_of(task, totals, limit) for limit in limits], margins)
    how: dict[str, Any] = {"episodes": settings.episodes, "seed": settings.seed, "terms": terms}
    how["workers"] = loaded.context.workers
    nothing = nothing or evaluate_nothing(totals, limits, **how)
    how["progress"] = loaded.listener.evaluating
    evaluation, *others = [
        evaluate_policy(policy, totals, limits, name=name, **how)
        for name, policy in _policies(loaded, settings).items()
    ]
    rate = calibration.rate if calibration else None
    options = _options(loaded, settings, shielded=settings.shield or settings.both)
    judged = replace(evaluation, beside=tuple(others), rate=rate, nothing=nothing)
    return judged, loaded.described(options)


def _options(loaded: Loaded, settings: JudgeSettings, *, shielded: bool = False) -> Any:
    acting = (settings.rule, settings.options)
    return loaded.options(*acting, shielded=shielded, may_end=settings.may_end)


def _policies(loaded: Loaded, settings: EvaluateSettings) -> dict[str, Policy]:
    """By name: first the policy in question, then those to compare it with."""
    agent, data = loaded.agent, loaded.totals
    policies: dict[str, Policy] = {}
    if settings.shield or settings.both:
        within = agent.policy(_options(loaded, settings, shielded=True))
        policies[SHIELDED] = shielded(within, data, settings.floor)
    if settings.both or not settings.shield:
        policies[PLAIN] = agent.policy(_options(loaded, settings))
    if settings.reference:
        largest = data.episode_cost.max(0).tolist()
        blind = LimitBlind(agent.policy(agent.mean_options()), largest)
        policies[REFERENCE] = shielded(blind, data, settings.floor)
    return policies


def shielded(policy: Policy, data: Totals, floor: Sequence[float] = ()) -> Shield:
    """The policy within what this data's costs, bounds and horizon allow."""
    environment = data.environment
    terms: dict[str, Any] = {"cost_discount": data.cost_discount, "horizon": environment.horizon}
    names = ("action_low", "action_high", "action_levels")
    terms |= {name: getattr(environment, name) for name in names}
    return Shield(policy, data.criteria, floor=floor, **terms)


def judge_held_out(loaded: Loaded, limits: Sequence[str]) -> OfflineEvaluation:
    """Judge critic and actor on the trajectories that training never saw."""
    run, listener, spec = loaded.run, loaded.listener, loaded.run.spec
    if not spec.held_out:
        remedy = "train with held_out=0.1 (--held-out 0.1) to judge offline"
        raise ValueError(f"{run.path} held no trajectories out: {remedy}")
    if not loaded.kind.verifies:
        alone = "without a rollout only saformer can be judged, by its critic and its actor"
        raise ValueError(f"{alone}; {run.path} is {spec.agent}")
    store = store_of(run, listener, loaded.context.data, exact=True)
    training = training_data(run, store, listener)
    held_out = relabelled(store.split(spec.held_out)[1], training.criteria, training.cost_discount)
    return judge_offline(
        loaded.agent.model,  # type: ignore[arg-type]
        training,
        held_out,
        limits_of(spec, training, limits),
        window=loaded.agent.config.window,
        progress=listener.evaluating,
    )


def sweep_option(loaded: Loaded, settings: SweepSettings) -> "Sweep":
    """Roll out with the option at each of its values."""
    from saformer.evaluation.sweep import Sweep, SweepTrial

    option, limits = settings.option, loaded.parse_limits(settings.limits)
    if not settings.values and option != "target_return":
        raise ValueError(f"say which values of {option} to try: only target returns have defaults")
    values = sorted(settings.values) or targets_to_try(loaded.totals)
    shared = {each.name: getattr(settings, each.name) for each in fields(JudgeSettings)}
    changes = [{**settings.options, option: value} for value in values]
    # refuses a wrong value before anything is rolled out
    trials = [EvaluateSettings(**{**shared, "options": each}) for each in changes]
    acting = [loaded.described(_options(loaded, each)) for each in trials]
    evaluations: list[Evaluation] = []
    for trial in trials:
        nothing = evaluations[0].nothing if evaluations else None
        evaluations.append(judge_rollouts(loaded, trial, limits, nothing=nothing)[0])
    return Sweep(option, tuple(map(SweepTrial, values, evaluations)), acting[0])
