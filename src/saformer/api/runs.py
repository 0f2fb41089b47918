"""Load what was trained, and judge it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from saformer.agents.agent import Agent
from saformer.agents.registry import restore_agent
from saformer.agents.saformer import SaFormerAgent
from saformer.api.calibrated import kept_calibration, options_as_calibrated
from saformer.api.findings import findings_of, keep_findings
from saformer.api.listener import Listener
from saformer.api.run_data import (
    as_trained,
    check_criteria,
    held_out_part,
    open_data,
    totals_of,
    training_part,
    with_costs,
)
from saformer.api.settings import options_of, plain_options
from saformer.api.shielding import judged_policies
from saformer.data.canonical import canonical
from saformer.data.limits import Limit, frontier, parse_limit
from saformer.data.totals import Totals
from saformer.engine.device import pick_device
from saformer.evaluation.offline import OfflineEvaluation, judge_offline
from saformer.runs.export import read_model
from saformer.runs.run import Run, find_run
from saformer.runs.spec import RunSpec

if TYPE_CHECKING:  # rollouts need Gymnasium; training does not
    from saformer.evaluation.calibration import Calibration
    from saformer.evaluation.evaluate import Evaluation

DEFAULT_LIMITS = ("p10", "p20", "p30", "p50")
MAX_SHOWN_TRAJECTORIES = 500


def load(path: str | Path, *, device: str = "auto") -> Agent:
    """The agent that a run has trained so far, or that was exported; `.policy()` makes it act.

    `path` is a run's folder, an export's, or "pretrained:NAME" for a policy that comes with the
    package.
    """
    run = find_run(path)
    spec = run.spec
    agent = restore_agent(spec.agent, spec.dimensions, spec.agent_config, read_model(run))
    agent.model.to(pick_device(device))
    return agent


@dataclass(frozen=True)
class Judged:
    """What was found when a run's policy was rolled out, how it acted, and the data that it was
    held against."""

    evaluation: Evaluation
    options: dict[str, Any]
    """of the policy, with the name of its rule"""
    data: Totals


def judge(
    path: str | Path,
    *,
    limits: Sequence[str] | None = None,
    episodes: int = 20,
    execution: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    cost_discount: float | None = None,
    shield: bool = False,
    both: bool = False,
    reference: bool = False,
    calibration: Calibration | None = None,
    seed: int = 0,
    device: str = "auto",
    workers: int | Literal["auto"] = "auto",
    listener: Listener | None = None,
) -> Judged:
    """As `evaluate`, but nothing is kept, and a calibration is given rather than found.

    `cost_discount` judges an agent that learns nothing from costs by costs that are counted in
    another way.
    """
    from saformer.evaluation.evaluate import Terms, evaluate_policy

    listener = listener or Listener()
    run = find_run(path)
    agent = load(path, device=device)
    if cost_discount not in {None, agent.config.cost_discount} and agent.name != "dt":
        raise ValueError(
            f"{path} was trained on costs discounted by {agent.config.cost_discount:g} and can "
            "be judged by no others; "
            f"train again with cost_discount {cost_discount:g}"
        )
    found = totals_of(run, listener, data=data, cost_discount=cost_discount)
    if found.environment.identifier is None:
        raise ValueError(
            f"the data of {path} has no environment to roll out in: use evaluate_offline "
            "(--offline)"
        )
    parsed = limits_of(run.spec, found, limits)
    remark_on_limits(run.spec, parsed, listener)
    if episodes < 1:  # before anything is prepared
        raise ValueError(f"at least one episode is needed, got {episodes}")
    if calibration is None:
        options, margins = options_of(agent, execution or {}), None
        in_shield = options_of(agent, execution or {}, shielded=True)
    else:
        options = options_as_calibrated(agent, run, calibration, execution or {})
        margins = [calibration.margin_for(limit) for limit in parsed]
        in_shield = options
    policies = judged_policies(
        agent, options, found, shield=shield, both=both, reference=reference, in_shield=in_shield
    )
    first, *others = [
        evaluate_policy(
            policy,
            found,
            parsed,
            name=name,
            episodes=episodes,
            seed=seed,
            terms=Terms([frontier_of(run.spec, found, limit) for limit in parsed], margins),
            progress=listener.evaluating,
            workers=workers,
        )
        for name, policy in policies.items()
    ]
    rate = None if calibration is None else calibration.rate
    acted = in_shield if shield or both else options
    plain = plain_options(agent, acted)
    return Judged(replace(first, beside=tuple(others), rate=rate), plain, found)


def evaluate(
    path: str | Path,
    *,
    limits: Sequence[str] | None = None,
    episodes: int = 20,
    execution: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    out: str | Path | None = None,
    rate: float | None = None,
    shield: bool = False,
    both: bool = False,
    reference: bool = False,
    seed: int = 0,
    device: str = "auto",
    workers: int | Literal["auto"] = "auto",
    listener: Listener | None = None,
) -> Evaluation:
    """Roll a run's policy out under each limit; the findings are kept in `out`, by default beside
    the run.

    `path` may be an export or "pretrained:NAME", which need no data; findings of the latter go to
    runs/pretrained-NAME.

    `limits` are by default the 10th, 20th, 30th and 50th percentile of the data's costs, or the one
    limit that the run was trained for. `execution` changes how the policy acts, by the names of its
    agent's options: {"rule": "none", "candidates": 128} for saformer, {"target_return":
    3600} for dt. `rate` keeps as much of each limit back as `calibrate` found to be needed for this
    violation rate. `shield` makes actions cheaper where they would pass the limit, if costs are
    functions of the action alone; `both` judges the policy with and without it; `reference` adds
    the agent's mean action, blind to the limit, with it. They are in `beside` of what is returned.
    `data` says where the run's store is now, if it was moved. `workers` processes step the
    environments: by default one per core where that pays; with 0 this one does. The findings are
    the same.
    """
    listener, kept = listener or Listener(), findings_of(path, out)
    if rate is not None and (shield or both or reference):
        raise ValueError(
            "a shield lets no episode pass its limit, at any rate: leave either rate or the "
            "shield out"
        )
    found = judge(
        path,
        limits=limits,
        episodes=episodes,
        execution=execution,
        data=data,
        shield=shield,
        both=both,
        reference=reference,
        calibration=None if rate is None else kept_calibration(path, rate, out=out),
        seed=seed,
        device=device,
        workers=workers,
        listener=listener,
    )
    trace = {**found.evaluation.trace, "data": _shown_trajectories(found.data)}
    evaluation = {"options": found.options, "seed": seed, **found.evaluation.plain()}
    place = keep_findings(
        find_run(path), kept, {"trace.json": trace, "evaluation.json": evaluation}
    )
    listener.say(f"evaluation kept in {place}")
    return found.evaluation


def evaluate_offline(
    path: str | Path,
    *,
    limits: Sequence[str] | None = None,
    data: str | Path | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    listener: Listener | None = None,
) -> OfflineEvaluation:
    """Judge a run on the trajectories that it never saw, without any rollout; the findings are kept
    as by `evaluate`.

    An export does not hold those trajectories: its run's data must be there.
    """
    listener, run, kept = listener or Listener(), find_run(path), findings_of(path, out)
    spec = run.spec
    check_criteria(run)
    if not spec.held_out:
        raise ValueError(
            f"{path} held no trajectories out: train with held_out=0.1 (--held-out 0.1) to judge "
            "offline"
        )
    agent = load(path, device=device)
    if not isinstance(agent, SaFormerAgent):
        raise ValueError(
            f"without a rollout only saformer can be judged, by its critic and its actor; {path} "
            f"is {spec.agent}"
        )
    store = as_trained(
        run, open_data(str(data or spec.task), listener, steps=spec.data_steps, seed=spec.data_seed)
    )
    if store.fingerprint != spec.data_fingerprint:
        raise ValueError(
            f"the data of {spec.task} is not what {run.path} was trained on ({store.fingerprint} "
            "against "
            f"{spec.data_fingerprint}), so nobody knows what it never saw: say where that data "
            "is now with data "
            "(--data), or train again"
        )
    discount = spec.agent_config["cost_discount"]
    training = with_costs(training_part(store, spec.held_out), spec.criteria, discount, listener)
    held_out = with_costs(held_out_part(store, spec.held_out), spec.criteria, discount, Listener())
    found = judge_offline(
        agent.model,
        training,
        held_out,
        limits_of(spec, training, limits),
        window=agent.config.window,
        progress=listener.evaluating,
    )
    listener.say(
        "no rollout: offline evaluation kept in "
        f"{keep_findings(run, kept, {'offline.json': found.plain()})}"
    )
    return found


def limits_of(
    spec: RunSpec,
    data: Totals,
    asked: Sequence[str] | None,
    *,
    usual: Sequence[str] = DEFAULT_LIMITS,
) -> list[Limit]:
    """What a run is judged under: the limits asked for, else those that it was made for, else the
    usual ones."""
    if not asked and spec.limit is not None:
        return [Limit(spec.limit, tuple(spec.agent_config["limit"]))]
    known = {
        name: Limit(name, tuple(values))
        for name, values in (spec.finetuning or {}).get("limits", {}).items()
    }
    return [known.get(name) or parse_limit(name, data) for name in asked or known or usual]


def remark_on_limits(spec: RunSpec, judged: Sequence[Limit], listener: Listener) -> None:
    """Say so where a run is judged under another limit than the one that it was trained for."""
    if spec.limit is None:
        return
    trained = tuple(spec.agent_config["limit"])
    others = [limit for limit in judged if limit.values != trained]
    if others:
        named = ", ".join(f"{limit.name} = {_numbers(limit.values)}" for limit in others)
        listener.say(
            f"{spec.agent} was trained for the limit {spec.limit} = {_numbers(trained)} and "
            "keeps to that, whatever it "
            f"is judged under: {named}"
        )


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


def frontier_of(spec: RunSpec, data: Totals, limit: Limit) -> Any:
    """What the canonical build shows to be possible, where there is one; else what this data
    shows."""
    build = canonical(spec.task)
    if build is None or spec.criteria != ("torque",) or data.cost_discount != 1:
        return frontier(data, limit)
    return build.frontier.at(limit.values[0])


def _shown_trajectories(data: Totals) -> dict[str, Any]:
    """Return and cost of some stored trajectories, to draw the policy's episodes among them."""
    shown = slice(None, None, -(-len(data.episode_return) // MAX_SHOWN_TRAJECTORIES))
    return {
        "return": data.episode_return[shown].round(2).tolist(),
        "cost": data.episode_cost[shown].round(2).tolist(),
        "criteria": [c.name for c in data.criteria],
    }


def open_run(path: Path, spec: RunSpec, *, resume: bool) -> Run:
    """A new run, or one to go on with."""
    if not resume:
        return Run.create(path, spec)
    if not Run(path).spec_path.exists():
        raise FileNotFoundError(
            f"there is no run to resume in {path}; leave --resume out to begin one"
        )
    run = begun_run(path, spec)
    return run if run.is_done or run.checkpoint_path.exists() else Run.create(path, spec)


def begun_run(path: Path, spec: RunSpec) -> Run:
    """One that is there, begun with these settings."""
    run = Run(path)
    if not run.spec_path.exists():
        raise FileNotFoundError(
            f"there is no run in {path}, where another rank began it: all ranks must see one folder"
        )
    differences = run.spec.differences(spec)
    if differences:
        raise ValueError(
            f"{path} was begun with other settings, so it cannot be resumed: "
            f"{'; '.join(differences)}"
        )
    return run
