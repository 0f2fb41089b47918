"""Train a policy, load it, and judge it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from saformer.agents.agent import Agent
from saformer.agents.registry import create_agent, restore_agent
from saformer.api.listener import Listener
from saformer.criteria import criterion
from saformer.data.canonical import canonical
from saformer.data.limits import Limit, frontier, parse_limit
from saformer.data.relabel import RelabelledStore, relabel
from saformer.data.store import TrajectoryStore
from saformer.engine.device import pick_device
from saformer.envs.tasks import find_task, is_store, load_data
from saformer.evaluation.offline import OfflineEvaluation
from saformer.evaluation.offline import evaluate_offline as judge_offline
from saformer.runs.run import Run
from saformer.runs.spec import RunSpec
from saformer.training.config import FitConfig
from saformer.training.fit import fit
from saformer.training.presets import PRESETS, Preset
from saformer.training.trainer import Observer

if TYPE_CHECKING:  # rollouts need Gymnasium; training does not
    from saformer.evaluation.evaluate import Evaluation

DEFAULT_LIMITS = ("p10", "p20", "p30", "p50")
WATCHED_LIMITS = ("p10", "p50", "p90")
HELD_OUT_WITHOUT_SIMULATOR = 0.1
MAX_SHOWN_TRAJECTORIES = 500


def train(
    task: str,
    *,
    preset: Literal["small", "paper"] | Preset = "small",
    criteria: Sequence[str] = (),
    held_out: float | None = None,
    seed: int = 0,
    data_steps: int | None = None,
    data_seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    listener: Listener | None = None,
) -> Run:
    """Train on a task (by name, or the path of a trajectory store) and keep the run under `out`.

    `criteria` says what a step costs, one for each constraint; by default those that the data came with. `held_out` is
    the share of trajectories kept for an offline evaluation: by default a tenth where there is no simulator, else none.
    An interrupted run is continued with `resume=True`, exactly where its last checkpoint left it.
    """
    listener = listener or Listener()
    preset = PRESETS[preset]() if isinstance(preset, str) else preset
    processor = pick_device(device)  # first, so that a wrong name costs nothing
    store = _open(task, listener, steps=data_steps, seed=data_seed)
    if held_out is None:
        held_out = HELD_OUT_WITHOUT_SIMULATOR if store.environment.identifier is None else 0.0
    data = _relabelled(_training_part(store, held_out), criteria, preset.agent.cost_discount, listener)
    if preset.fit.evaluate_every and store.environment.identifier is not None:
        from saformer.envs.costed import try_out

        try_out(store.environment, data.criteria)  # now, not when much has been trained already
    agent = create_agent(data, preset.agent, seed=seed)
    spec = RunSpec(
        task=_locator(task),
        agent=agent.name,
        agent_config=asdict(agent.config),
        fit_config=asdict(preset.fit),
        seed=seed,
        criteria=tuple(c.name for c in data.criteria),
        data_steps=data_steps,
        data_seed=data_seed,
        data_fingerprint=store.fingerprint,
        held_out=held_out,
        dimensions=agent.dimensions,
    )
    run = _open_run(Path(out) if out else Path("runs") / spec.name, spec, resume=resume)
    if run.is_done:
        listener.say(f"{run.path} has already finished; nothing to do")
        return run
    agent.model.to(processor)
    fit(
        agent,
        agent.sampler(data, processor),
        preset.fit,
        seed=seed,
        run=run,
        resume=run.checkpoint_path.exists(),
        observer=_observer(run, preset.fit, data, listener),
    )
    listener.say(f"trained for {preset.fit.updates} updates; the run is in {run.path}")
    return run


def load(path: str | Path, *, device: str = "auto") -> Agent:
    """The agent that a run has trained so far; `.policy()` makes it act."""
    run = Run(path)
    spec = run.spec
    agent = restore_agent(spec.agent, spec.dimensions, spec.agent_config, run.load(groups=("model",)).groups["model"])
    agent.model.to(pick_device(device))
    return agent


def evaluate(
    path: str | Path,
    *,
    limits: Sequence[str] = DEFAULT_LIMITS,
    episodes: int = 20,
    execution: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    seed: int = 0,
    device: str = "auto",
    workers: int | Literal["auto"] = "auto",
    listener: Listener | None = None,
) -> Evaluation:
    """Roll a run's policy out under each limit; the findings are kept beside the run.

    `execution` changes how the policy acts, by the names of its options: {"candidates": 128, "verification": "off"}.
    `data` says where the run's store is now, if it was moved. `workers` processes step the environments: by default one
    per core where that pays; with 0 this one does. The findings are the same.
    """
    from saformer.evaluation.evaluate import evaluate as evaluate_policy

    listener = listener or Listener()
    run = Run(path)
    agent = load(path, device=device)
    found = data_of(run, listener, data=data)
    if found.store.environment.identifier is None:
        raise ValueError(f"the data of {path} has no environment to roll out in: use evaluate_offline (--offline)")
    parsed = [parse_limit(limit, found) for limit in limits]
    options = replace(agent.default_options, **(execution or {}))
    evaluation = evaluate_policy(
        agent.policy(options),
        found,
        parsed,
        episodes=episodes,
        seed=seed,
        frontiers=[_frontier(run.spec, found, limit) for limit in parsed],
        progress=listener.evaluating,
        workers=workers,
    )
    how = {"options": asdict(options), "seed": seed}
    run.write_json("trace.json", {**evaluation.trace, "data": _shown_trajectories(found)})
    kept = run.write_json("evaluation.json", {**how, **evaluation.plain()})
    listener.say(f"evaluation kept in {kept}")
    return evaluation


def evaluate_offline(
    path: str | Path,
    *,
    limits: Sequence[str] = DEFAULT_LIMITS,
    data: str | Path | None = None,
    device: str = "auto",
    listener: Listener | None = None,
) -> OfflineEvaluation:
    """Judge a run on the trajectories that it never saw, without any rollout; the findings are kept beside the run."""
    listener = listener or Listener()
    run = Run(path)
    spec = run.spec
    if not spec.held_out:
        raise ValueError(f"{path} held no trajectories out: train with held_out=0.1 (--held-out 0.1) to judge offline")
    agent = load(path, device=device)
    store = _as_trained(run, _open(str(data or spec.task), listener, steps=spec.data_steps, seed=spec.data_seed))
    if store.fingerprint != spec.data_fingerprint:
        raise ValueError(
            f"the data of {spec.task} is not what {run.path} was trained on ({store.fingerprint} against "
            f"{spec.data_fingerprint}), so nobody knows what it never saw: say where that data is now with data "
            "(--data), or train again"
        )
    discount = spec.agent_config["cost_discount"]
    training = _relabelled(_training_part(store, spec.held_out), spec.criteria, discount, listener)
    held_out = _relabelled(_held_out_part(store, spec.held_out), spec.criteria, discount, Listener())
    found = judge_offline(
        agent.model,  # type: ignore[arg-type]
        training,
        held_out,
        [parse_limit(limit, training) for limit in limits],
        window=agent.config.window,
        progress=listener.evaluating,
    )
    listener.say(f"no rollout: offline evaluation kept in {run.write_json('offline.json', found.plain())}")
    return found


def data_of(run: Run, listener: Listener | None = None, *, data: str | Path | None = None) -> RelabelledStore:
    """The data that a run was trained on, relabelled as it was."""
    spec, listener = run.spec, listener or Listener()
    store = _as_trained(run, _open(str(data or spec.task), listener, steps=spec.data_steps, seed=spec.data_seed))
    _check_fingerprint(run, store)
    training = _training_part(store, spec.held_out)
    return _relabelled(training, spec.criteria, spec.agent_config["cost_discount"], listener)


def has_environment(path: str | Path, *, data: str | Path | None = None) -> bool:
    """Whether the data of a run came from a simulator that a policy can be rolled out in."""
    store = find_task(str(data or Run(path).spec.task)).store
    return store is None or store.environment.identifier is not None


def run_of_store(path: str | Path, *, runs: str | Path = "runs") -> Path:
    """The latest run that was trained on the store at this path; those without a checkpoint are passed over."""
    trained = [spec.parent for spec in Path(runs).glob("*/run.json") if _was_trained_on(Run(spec.parent), str(path))]
    if not trained:
        raise FileNotFoundError(f"no run under {runs} was trained on {path}: train first, or give the run's folder")
    return max(trained, key=lambda run: (run / "run.json").stat().st_mtime)


def _was_trained_on(run: Run, path: str) -> bool:
    try:
        return run.checkpoint_path.exists() and run.spec.task == _locator(path)
    except ValueError:  # another version's, or damaged: whose data it had cannot be said
        return False


def relabelled(store: TrajectoryStore, criteria: Sequence[str], cost_discount: float = 1.0) -> RelabelledStore:
    """The store's finished trajectories with costs by these criteria, or by those that the store names."""
    if criteria:
        return relabel(store, [criterion(name) for name in criteria], cost_discount=cost_discount)
    # a store may come from elsewhere: what it names is never imported as code
    return relabel(store, [criterion(name, trusted=False) for name in store.criteria], cost_discount=cost_discount)


def _open(task: str, listener: Listener, *, steps: int | None, seed: int) -> TrajectoryStore:
    return load_data(find_task(task), steps=steps, seed=seed, progress=listener.building)


def _locator(task: str) -> str:
    """How a run finds its data again, from whatever folder."""
    return str(Path(task).resolve()) if is_store(task) else task


def _relabelled(
    store: TrajectoryStore, criteria: Sequence[str], cost_discount: float, listener: Listener
) -> RelabelledStore:
    data = relabelled(store, criteria, cost_discount)
    listener.say(f"data: {len(data.store)} trajectories, {data.store.num_steps} steps")
    if data.num_left_out:
        listener.say(f"left out {data.num_left_out} unfinished trajectories: what they would have cost is unknown")
    return data


def _training_part(store: TrajectoryStore, held_out: float) -> TrajectoryStore:
    return store.split(held_out)[0] if held_out else store


def _held_out_part(store: TrajectoryStore, held_out: float) -> TrajectoryStore:
    return store.split(held_out)[1]


def _as_trained(run: Run, store: TrajectoryStore) -> TrajectoryStore:
    """What the store held when the run was trained, if it has only grown since: else what was held out would change."""
    return store.as_of(run.spec.data_fingerprint) or store


def _check_fingerprint(run: Run, store: TrajectoryStore) -> None:
    if store.fingerprint != run.spec.data_fingerprint:
        warnings.warn(
            f"the data of {run.spec.task} is not what {run.path} was trained on ({store.fingerprint} against "
            f"{run.spec.data_fingerprint}): limits and frontier are those of the present data",
            stacklevel=3,
        )


def _frontier(spec: RunSpec, data: RelabelledStore, limit: Limit) -> Any:
    """What the canonical build shows to be possible, where there is one; else what this data shows."""
    build = canonical(spec.task)
    if build is None or spec.criteria != ("torque",) or data.cost_discount != 1:
        return frontier(data, limit)
    return build.frontier.at(limit.values[0])


def _open_run(path: Path, spec: RunSpec, *, resume: bool) -> Run:
    if not resume:
        return Run.create(path, spec)
    run = Run(path)
    if not run.spec_path.exists():
        raise FileNotFoundError(f"there is no run to resume in {path}; leave --resume out to begin one")
    differences = run.spec.differences(spec)
    if differences:
        raise ValueError(f"{path} was begun with other settings, so it cannot be resumed: {'; '.join(differences)}")
    if not run.checkpoint_path.exists():
        return Run.create(path, spec)
    return run


def _observer(run: Run, config: FitConfig, data: RelabelledStore, listener: Listener) -> Observer:
    can_roll_out = data.store.environment.identifier is not None
    return Observer(
        progress=lambda update, metrics: listener.training(update, config.updates, metrics),
        evaluate=(lambda agent: _watch(agent, data)) if can_roll_out else None,
        row=lambda row: listener.row(run.path, row),
    )


def _watch(agent: Agent, data: RelabelledStore, *, episodes: int = 3) -> dict[str, Any]:
    """A brief evaluation while training goes on."""
    from saformer.evaluation.evaluate import evaluate as evaluate_policy

    limits = [parse_limit(name, data) for name in WATCHED_LIMITS]
    found = evaluate_policy(agent.policy(), data, limits, episodes=episodes)
    return {
        v.limit.name: {"return": v.mean_return, "cost": v.mean_cost, "limit": v.limit.values} for v in found.verdicts
    }


def _shown_trajectories(data: RelabelledStore) -> dict[str, Any]:
    """Return and cost of some stored trajectories, to draw the policy's episodes among them."""
    shown = slice(None, None, -(-len(data.store) // MAX_SHOWN_TRAJECTORIES))
    return {
        "return": data.episode_return[shown].round(2).tolist(),
        "cost": data.episode_cost[shown].round(2).tolist(),
        "criteria": [c.name for c in data.criteria],
    }
