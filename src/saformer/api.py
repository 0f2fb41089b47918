"""The Python interface. The command line is a thin layer over these functions."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from saformer.agents.agent import Agent
from saformer.agents.registry import create_agent, restore_agent
from saformer.criteria import criterion
from saformer.data.limits import Limit, parse_limit
from saformer.data.relabel import RelabelledStore, relabel
from saformer.data.sampling import WindowSampler
from saformer.engine.device import pick_device
from saformer.envs.tasks import find_task, load_data
from saformer.runs.run import Run
from saformer.runs.spec import RunSpec
from saformer.training.config import FitConfig
from saformer.training.fit import Metrics, Observer, fit
from saformer.training.presets import PRESETS, Preset

if TYPE_CHECKING:  # rollouts need Gymnasium; training does not
    from saformer.evaluation.evaluate import Evaluation

DEFAULT_LIMITS = ("p10", "p20", "p30", "p50")
DEMO_TASK = "hopper-medium-replay"
DEMO_LIMITS = ("p10", "p30", "p50", "p70", "p90")
WATCHED_LIMITS = ("p10", "p50", "p90")
MAX_SHOWN_TRAJECTORIES = 500

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Listener:
    """What a front end may want to hear of. Every part is optional."""

    say: Callable[[str], None] = lambda message: None
    """one line for a person"""
    building: Progress | None = None
    """(steps made, steps wanted) while data is built"""
    training: Callable[[int, int, Metrics], None] = lambda update, updates, metrics: None
    """(update, of how many, latest metrics)"""
    row: Callable[[Path, dict[str, Any]], None] = lambda run, row: None
    """(run, row) for each row of metrics"""
    evaluating: Progress | None = None
    """(episodes finished, episodes in all)"""


def train(
    task: str,
    *,
    preset: Literal["small", "paper"] | Preset = "small",
    seed: int = 0,
    data_steps: int | None = None,
    data_seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    listener: Listener | None = None,
) -> Run:
    """Train on a task (by name, or the path of a trajectory store) and keep the run under `out`.

    An interrupted run is continued with `resume=True`, exactly where its last checkpoint left it.
    """
    listener = listener or Listener()
    preset = PRESETS[preset]() if isinstance(preset, str) else preset
    processor = pick_device(device)  # first, so that a wrong name costs nothing
    data = _load(task, listener, steps=data_steps, seed=data_seed, cost_discount=preset.agent.cost_discount)
    agent = create_agent(data, preset.agent, seed=seed)
    spec = _spec(task, agent, preset.fit, data, seed=seed, data_steps=data_steps, data_seed=data_seed)
    run = _open_run(Path(out) if out else Path("runs") / spec.name, spec, resume=resume)
    if run.is_done:
        listener.say(f"{run.path} has already finished; nothing to do")
        return run
    agent.model.to(processor)
    sampler = WindowSampler(data, window=agent.window, device=processor)
    fit(
        agent,
        sampler,
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
    seed: int = 0,
    device: str = "auto",
    listener: Listener | None = None,
) -> Evaluation:
    """Roll a run's policy out under each limit; the findings are kept beside the run.

    `execution` changes how the policy acts, by the names of its options: {"candidates": 128, "verification": "off"}.
    """
    from saformer.evaluation.evaluate import evaluate as evaluate_policy

    listener = listener or Listener()
    run = Run(path)
    agent = load(path, device=device)
    data = data_of(run, listener)
    parsed = [parse_limit(limit, data) for limit in limits]
    options = replace(agent.default_options, **(execution or {}))
    policy = agent.policy(options)
    found = evaluate_policy(policy, data, parsed, episodes=episodes, seed=seed, progress=listener.evaluating)
    how = {"options": asdict(options), "seed": seed}
    run.write_json("trace.json", {**found.trace, "data": _shown_trajectories(data)})
    kept = run.write_json("evaluation.json", {**how, **found.plain()})
    listener.say(f"evaluation kept in {kept}")
    return found


def data_of(run: Run, listener: Listener | None = None) -> RelabelledStore:
    """The data that a run was trained on, relabelled as it was."""
    spec = run.spec
    data = _load(
        spec.task,
        listener or Listener(),
        steps=spec.data_steps,
        seed=spec.data_seed,
        cost_discount=spec.agent_config["cost_discount"],
        criteria=spec.criteria,
    )
    if data.store.fingerprint != spec.data_fingerprint:
        warnings.warn(
            f"the data of {spec.task} is not what {run.path} was trained on ({data.store.fingerprint} against "
            f"{spec.data_fingerprint}): limits and frontier are those of the present data",
            stacklevel=2,
        )
    return data


def demo(
    out: str | Path = "demo",
    *,
    scale: Literal["full", "smoke"] = "full",
    seed: int = 0,
    device: str = "auto",
    listener: Listener | None = None,
) -> Path:
    """Make data, train the small preset on it, evaluate under five limits, and write a report. Returns its path.

    `smoke` takes the same steps with next to no data and training, to show that they work.
    """
    from saformer.report.page import write_report

    listener = listener or Listener()
    preset, data_steps, episodes = PRESETS["small"](), None, 20
    if scale == "smoke":
        brief = replace(preset.fit, updates=30, warmup_updates=10, report_every=10, evaluate_every=15)
        preset, data_steps, episodes = replace(preset, fit=brief), 6_000, 2
    out = Path(out)
    run_path = out / f"run-{scale}-seed{seed}"
    run = train(
        DEMO_TASK,
        preset=preset,
        seed=seed,
        data_steps=data_steps,
        out=run_path,
        resume=Run(run_path).checkpoint_path.exists(),
        device=device,
        listener=listener,
    )
    evaluate(run.path, limits=DEMO_LIMITS, episodes=episodes, seed=seed, device=device, listener=listener)
    page = write_report(run, out / "report.html", command=" ".join(["saformer", *sys.argv[1:]]))
    listener.say(f"report written to {page}")
    return page


def _load(
    task_name: str,
    listener: Listener,
    *,
    steps: int | None,
    seed: int,
    cost_discount: float,
    criteria: Sequence[str] | None = None,
) -> RelabelledStore:
    task = find_task(task_name)
    chosen = [criterion(name) for name in criteria] if criteria else task.criteria
    store = load_data(task, steps=steps, seed=seed, progress=listener.building)
    data = relabel(store, chosen, cost_discount=cost_discount)
    listener.say(f"data: {len(data.store)} trajectories, {data.store.num_steps} steps of {task_name}")
    if data.num_left_out:
        listener.say(f"left out {data.num_left_out} unfinished trajectories: what they would have cost is unknown")
    return data


def _spec(task: str, agent: Agent, fit_config: FitConfig, data: RelabelledStore, **plain: Any) -> RunSpec:
    return RunSpec(
        task=task,
        agent=agent.name,
        agent_config=asdict(agent.config),
        fit_config=asdict(fit_config),
        criteria=tuple(c.name for c in data.criteria),
        data_fingerprint=data.store.fingerprint,
        dimensions=agent.dimensions,
        **plain,
    )


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


__all__ = ["Limit", "Listener", "data_of", "demo", "evaluate", "load", "train"]
