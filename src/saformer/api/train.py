"""Train a policy, or many of them; from nothing to a report."""

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from saformer.agents.agent import Agent, Sampler
from saformer.agents.registry import create_agent, find_kind, name_of
from saformer.api.judge import limits_of
from saformer.api.listener import Listener
from saformer.api.run_data import locator, task_data, training_part, with_costs
from saformer.data.limits import parse_limit
from saformer.data.relabel import RelabelledStore
from saformer.data.transitions import TransitionSampler
from saformer.engine.device import pick_device
from saformer.engine.distributed import Ranks, joined_ranks
from saformer.engine.torchrun import is_first
from saformer.envs.tasks import find_task
from saformer.runs.run import Run
from saformer.runs.spec import RunSpec
from saformer.trained import Context, Trained
from saformer.training.loop.fit import InterruptedTrainingError, fit
from saformer.training.loop.interrupt import Interrupt
from saformer.training.loop.presets import PRESETS, Preset
from saformer.training.loop.trainer import Member, Observer
from saformer.training.packs.grouping import grouped

DEMO_TASK = "hopper-medium-replay"
DEMO_LIMITS = ("p10", "p30", "p50", "p70", "p90")
WATCHED_LIMITS = ("p10", "p50", "p90")
WATCHED_EPISODES = 3
HELD_OUT_WITHOUT_SIMULATOR = 0.1
PresetName = Literal["small", "paper"]
SomeLimit = str | float
Failures = dict[Path, Exception]


@dataclass(frozen=True)
class DataSettings:
    """What is learnt from."""

    criteria: Sequence[str] = ()
    """Criteria, one per constraint: torque, energy, a column's name, an expression such as
    "abs(action).sum()", module:function; by default those of the data."""
    held_out: float | None = None
    """Share of trajectories to hold out for an offline evaluation; by default 0.1 where there is
    no simulator, else 0."""
    data_steps: int | None = None
    """Environment steps of data to make; by default 300,000 for replay tasks and 1,000,000 for the
    others."""
    data_seed: int = 0
    """Decides the data."""


def train(
    task: str,
    *,
    agent: str | None = None,
    limit: SomeLimit | None = None,
    preset: PresetName | Preset = "small",
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    **settings: Any,
) -> Trained:
    """Train on a task (by name, or the path of a trajectory store); the run is written to `out`.

    `agent`: one of those that `saformer agents` lists, by default saformer or what the preset is
    for. `limit`: for those that are trained for one limit: a cost, or a percentile of the training
    data's costs ("p20"). `preset`: "small" (minutes on two cores), "paper" (wants a GPU), or a
    `Preset` of one's own. `seed` decides initial weights, windows and dropout. `resume` continues
    an interrupted run exactly where its last checkpoint left it. By keyword, as in `DataSettings`:
    `criteria`, what a step costs, one for each constraint; `held_out`, the share of trajectories
    for an offline evaluation; `data_steps` and `data_seed` of a task that is made on this machine;
    and a `listener` to hear of progress.

    Processes that torchrun started share every batch; the first alone speaks and writes.
    """
    call = _call(preset_for(preset, agent), (limit,), settings, device, out, resume=resume)
    runs, failures = call.train([task], [seed])
    if failures:
        raise next(iter(failures.values()))
    return Trained(runs[0], Context(device=device), call.listener)


def train_together(
    tasks: Sequence[str],
    *,
    seeds: Sequence[int] = (0,),
    agent: str | None = None,
    limit: SomeLimit | Sequence[SomeLimit] | Mapping[str, SomeLimit] | None = None,
    preset: PresetName | Preset = "small",
    out: str | Path = "runs",
    device: str = "auto",
    watch: Mapping[str, Sequence[str]] | None = None,
    **settings: Any,
) -> list[Run]:
    """A run for every task, seed and limit, each in a folder of its own under `out`; see `train`
    for the rest.

    On a GPU, runs of one architecture are trained as one program; each is what it would be alone.
    Finished runs are not redone and interrupted ones go on, so that the same call can be made
    again. A run that diverges is reported (and its `is_done` is False); the others go on. `watch`
    names the limits under which each task is looked at every `evaluate_every` updates, and leaves
    other tasks alone. `limit` and `criteria` may be mappings by task too: one limit each.
    """
    limits: Any = limit
    if limit is None or isinstance(limit, str | float | int):
        limits = (limit,)
    wanted = preset_for(preset, agent)
    call = _call(wanted, limits, settings, device, out, several=True, watch=watch)
    _check_distinct("task", tasks)
    _check_distinct("seed", seeds)
    for task in tasks:
        _check_distinct("limit", call.limits_of(task))
        find_task(task)  # before the data of others is made
    runs, failures = call.train(tasks, seeds)
    for run in (run for run in runs if run.path in failures):
        run.failure = str(failures[run.path])
        call.listener.say(f"{run.path} failed: {run.failure}")
    return runs


def demo(
    out: str | Path = "demo",
    *,
    scale: Literal["full", "smoke"] = "full",
    seed: int = 0,
    device: str = "auto",
    listener: Listener | None = None,
) -> Path:
    """Make data, train the small preset on it, evaluate under five limits, and write a report.
    Returns its path.

    `smoke` takes the same steps with next to no data and training, to show that they work.
    """
    from saformer.report.rollouts import write_report

    listener = listener or Listener()
    preset, data_steps, episodes = PRESETS["small"](), None, 20
    if scale == "smoke":
        fit = replace(preset.fit, updates=30, warmup_updates=10, report_every=10, evaluate_every=15)
        preset, data_steps, episodes = replace(preset, fit=fit), 6_000, 2
    run_path = demo_run(out, scale, seed)
    trained = train(
        DEMO_TASK,
        preset=preset,
        seed=seed,
        data_steps=data_steps,
        out=run_path,
        resume=Run(run_path).checkpoint_path.exists(),
        device=device,
        listener=listener,
    )
    trained.evaluate(DEMO_LIMITS, episodes=episodes, seed=seed)
    command = " ".join(["saformer", *sys.argv[1:]])
    page = write_report(trained.run, Path(out) / "report.html", command=command)
    listener.say(f"report written to {page}")
    return page


def demo_run(out: str | Path, scale: str, seed: int) -> Path:
    return Path(out) / f"run-{scale}-seed{seed}"


def preset_for(preset: str | Preset, agent: str | None) -> Preset:
    """The preset, of this agent where it is named."""
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise ValueError(f"unknown preset {preset!r}; known are {', '.join(PRESETS)}")
        return PRESETS[preset](agent or "saformer")
    if agent is not None:
        find_kind(agent)
    own = name_of(preset.agent)
    if agent not in {None, own}:
        raise ValueError(f"the preset is for {own}, not for {agent}: leave one of them out")
    return preset


class _Source(NamedTuple):
    """Data that all runs of a task are trained on."""

    data: RelabelledStore
    fingerprint: str
    """of the whole store"""
    held_out: float
    """the share that training never sees"""


@dataclass(frozen=True)
class _Call:
    """One call of `train` or `train_together`: the settings that all of its runs share."""

    preset: Preset
    limits: tuple[SomeLimit | None, ...] | Mapping[str, SomeLimit]
    data: DataSettings
    listener: Listener
    device: str
    out: str | Path | None
    resume: bool = False
    several: bool = False
    watch: Mapping[str, Sequence[str]] | None = None

    def __post_init__(self) -> None:  # first, so that a wrong name costs nothing
        limits = self.limits.values() if isinstance(self.limits, Mapping) else self.limits
        for limit in limits:
            _check_limit(self.preset.agent, limit)
        pick_device(self.device)

    def limits_of(self, task: str) -> tuple[SomeLimit | None, ...]:
        """The limits that a task's runs are trained for, a run each; (None,) where agents heed
        any."""
        if not isinstance(self.limits, Mapping):
            return self.limits
        if task not in self.limits:
            raise ValueError(
                f"limit names no limit for {task}, only for {', '.join(self.limits)}: name one "
                "for each task"
            )
        return (self.limits[task],)

    def train(self, tasks: Sequence[str], seeds: Sequence[int]) -> tuple[list[Run], Failures]:
        """All runs; which failed and why."""
        runs: list[Run] = []
        members: list[Member] = []
        with joined_ranks(pick_device(self.device)) as (ranks, device):
            for task in tasks:
                with ranks.first_alone():  # it may make the data
                    source = self._source(task)
                samplers: dict[Any, Sampler] = {}  # of all seeds, for each limit
                for limit, seed in itertools.product(self.limits_of(task), seeds):
                    agent, spec = self._agent(task, source, seed, limit)
                    run = self._run(spec, ranks)
                    runs.append(run)
                    if ranks.as_first(run.is_done):
                        self.listener.say(f"{run.path} has already finished; nothing to do")
                        continue
                    agent.model.to(device)
                    if limit not in samplers:
                        sampler = agent.sampler(source.data, device)
                        # single steps are drawn from all trajectories, whatever the limit
                        shared = isinstance(sampler, TransitionSampler)
                        same = self.limits_of(task) if shared else [limit]
                        samplers |= dict.fromkeys(same, sampler)
                    observer = self._observer(run, task, source.data)
                    members.append(Member(agent, samplers[limit], seed, run, observer, source.data))
            return runs, self._fit(members, device, ranks)

    def _fit(self, members: Sequence[Member], device: torch.device, ranks: Ranks) -> Failures:
        failures: Failures = {}
        groups, config = grouped(members, device), self.preset.fit
        # one for all, so that Ctrl-C at the end of a run is not lost on the next
        with Interrupt() as interrupt:
            for index, group in enumerate(groups):
                if ranks.any(interrupt.requested):
                    trained = f"{sum(map(len, groups[:index]))} of {len(members)} runs"
                    raise InterruptedTrainingError(f"stopped after {trained}")
                if len(group) > 1:
                    self.listener.say(f"training {len(group)} runs as one program")
                first = group[0].run
                begun = first is not None and ranks.as_first(first.checkpoint_path.exists())
                errors = fit(group, config, resume=begun, interrupt=interrupt, ranks=ranks)
                paths = [member.run.path for member in group if member.run is not None]
                failures |= {paths[position]: error for position, error in errors.items()}
                for path in (path for path in paths if path not in failures):
                    self.listener.say(f"trained for {config.updates} updates; the run is in {path}")
        return failures

    def _source(self, task: str) -> _Source:
        wanted, discount = self.data, self.preset.agent.cost_discount
        store = task_data(task, self.listener, wanted.data_steps, wanted.data_seed)
        has_simulator = store.environment.identifier is not None
        held_out, criteria = wanted.held_out, wanted.criteria
        if held_out is None:
            held_out = 0.0 if has_simulator else HELD_OUT_WITHOUT_SIMULATOR
        if isinstance(criteria, Mapping):
            criteria = criteria.get(task, ())
        data = with_costs(training_part(store, held_out), criteria, discount, self.listener)
        if self.preset.fit.evaluate_every and has_simulator:
            from saformer.envs.costed import try_out

            try_out(store.environment, data.criteria)  # now, not when much has been trained
        return _Source(data, store.fingerprint, held_out)

    def _agent(
        self, task: str, source: _Source, seed: int, limit: SomeLimit | None
    ) -> tuple[Agent, RunSpec]:
        config, limit_name = _config_for(self.preset.agent, limit, source.data)
        agent = create_agent(source.data, config, seed=seed)
        spec = RunSpec(
            task=locator(task),
            agent=agent.name,
            agent_config=asdict(agent.config),
            fit_config=asdict(self.preset.fit),
            seed=seed,
            criteria=tuple(c.name for c in source.data.criteria),
            data_steps=self.data.data_steps,
            data_seed=self.data.data_seed,
            data_fingerprint=source.fingerprint,
            held_out=source.held_out,
            dimensions=agent.dimensions,
            limit=limit_name,
        )
        return agent, spec

    def _run(self, spec: RunSpec, ranks: Ranks) -> Run:
        """The run's folder: begun by the first rank, then seen by the others."""
        path = Path(self.out or "runs")
        if self.several or self.out is None:
            path /= spec.name
        with ranks.first_alone():
            if not ranks.is_first:
                return Run(path).begun_with(spec)
            resume = Run(path).spec_path.exists() if self.several else self.resume
            return Run.open_or_create(path, spec, resume=resume)

    def _observer(self, run: Run, task: str, data: RelabelledStore) -> Observer:
        """Reports to the listener; rolls out under the watched limits where there is a
        simulator."""
        listener, updates = self.listener, self.preset.fit.updates
        limits = WATCHED_LIMITS if self.watch is None else self.watch.get(task, ())
        is_watched = bool(limits) and data.store.environment.identifier is not None

        def evaluate(agent: Agent) -> dict[str, Any]:
            from saformer.evaluation.evaluate import evaluate_policy

            watched = limits_of(run.spec, data, usual=limits)
            seen = evaluate_policy(agent.policy(), data, watched, episodes=WATCHED_EPISODES)
            facts = [(v.limit, v.mean_return, v.mean_cost) for v in seen.verdicts]
            return {
                limit.name: {"return": earned, "cost": cost, "limit": limit.values}
                for limit, earned, cost in facts
            }

        return Observer(
            progress=lambda update, metrics: listener.training(update, updates, metrics),
            evaluate=evaluate if is_watched else None,
            row=lambda row: listener.row(run.path, row),
        )


def _call(preset: Preset, limits: Any, settings: dict[str, Any], *where: Any, **more: Any) -> _Call:
    """A call with these settings; of several ranks, the first alone speaks."""
    listener = settings.pop("listener", None)
    voice = listener if listener is not None and is_first() else Listener()
    return _Call(preset, limits, DataSettings(**settings), voice, *where, **more)


def _check_limit(config: Any, limit: SomeLimit | None) -> None:
    """Before any data is made: whether a limit is needed, and named."""
    name = name_of(config)
    has_one_limit = find_kind(name).has_one_limit
    if limit is not None and not has_one_limit:
        raise ValueError(
            f"{name} is not trained for one limit: leave limit (--limit) out, and evaluate under "
            "any"
        )
    if limit is None and has_one_limit and not config.limit:
        raise ValueError(
            f"{name} is trained for one limit: say which, by a cost or a percentile (--limit p20)"
        )


def _config_for(
    config: Any, limit: SomeLimit | None, data: RelabelledStore
) -> tuple[Any, str | None]:
    """The config with its limit in the cost's own units, and the limit's name."""
    if limit is not None:
        return replace(config, limit=parse_limit(str(limit), data).values), str(limit)
    if find_kind(name_of(config)).has_one_limit:
        return config, ",".join(f"{value:g}" for value in config.limit)
    return config, None


def _check_distinct(what: str, names: Sequence[object]) -> None:
    """Two runs of one task and seed would write to one folder."""
    twice = sorted({str(name) for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{what} {', '.join(twice)} was named more than once; name each once")
