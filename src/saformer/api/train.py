"""Train a policy, or many of them."""

import itertools
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

import torch

from saformer.agents.agent import Agent, Sampler
from saformer.agents.registry import check_limit, create_agent, find_kind, name_of
from saformer.api.listener import Listener
from saformer.api.run_data import limits_of, task_data, training_part
from saformer.criteria.code import typed
from saformer.data.interrupt import Interrupt
from saformer.data.limits import parse_limit
from saformer.data.relabel import RelabelledStore
from saformer.data.remembered import remember
from saformer.data.transitions import TransitionSampler
from saformer.engine.device import pick_device
from saformer.engine.distributed import Ranks, joined_ranks
from saformer.engine.torchrun import is_first
from saformer.envs.tasks import find_task, locator
from saformer.runs.run import Run
from saformer.runs.spec import RunSpec
from saformer.training.loop.config import DataSettings
from saformer.training.loop.fit import InterruptedTrainingError, fit
from saformer.training.loop.presets import Preset, changed_preset, find_preset
from saformer.training.loop.trainer import Member, Observer
from saformer.training.packs.grouping import grouped

WATCHED_LIMITS = ("p10", "p50", "p90")
WATCHED_EPISODES = 3
HELD_OUT_WITHOUT_SIMULATOR = 0.1
PresetName = Literal["small", "full", "paper"]
SomeLimit = str | float
Failures = dict[Path, Exception]


def train_together(
    tasks: Sequence[str],
    *,
    seeds: Sequence[int] = (0,),
    agent: str | None = None,
    limit: SomeLimit | Sequence[SomeLimit] | Mapping[str, SomeLimit] | None = None,
    preset: PresetName | Preset = "small",
    out: str | Path = "runs",
    watch: Mapping[str, Sequence[str]] | None = None,
    listener: Listener | None = None,
    device: str = "auto",
    **settings: Any,
) -> list[Run]:
    """A run for every task, seed and limit, each in its own folder under `out`; see `train` too.

    On a GPU, runs of one architecture are trained as one program; each is what it would be alone.
    Finished runs are not redone and interrupted ones go on, so that the same call can be made
    again. A run that diverges is reported (and its `is_done` is False); the others go on. `watch`
    names the limits under which each task is looked at every `evaluate_every` updates, and leaves
    other tasks alone. `limit` and `criteria` may be mappings by task too: one limit each.
    """
    is_one = limit is None or isinstance(limit, str | float | int)
    how: dict[str, Any] = {"limits": (limit,) if is_one else limit, "device": device, "out": out}
    how |= {"listener": listener, "several": True, "watch": watch}
    trainer = RunTrainer.of(find_preset(preset, agent), settings, **how)
    _check_distinct("task", tasks)
    _check_distinct("seed", seeds)
    for task in tasks:
        _check_distinct("limit", trainer.limits_of(task))
        find_task(task)  # before the data of others is made
    runs, failures = trainer.train(tasks, seeds)
    for run in (run for run in runs if run.path in failures):
        run.failure = str(failures[run.path])
        trainer.voice.say(f"{run.path} failed: {run.failure}")
    return runs


@dataclass(frozen=True)
class RunTrainer:
    """Trains a run for each task, limit and seed."""

    preset: Preset
    limits: tuple[SomeLimit | None, ...] | Mapping[str, SomeLimit]
    data: DataSettings
    listener: Listener | None
    device: str
    out: str | Path | None
    resume: bool = False
    several: bool = False
    watch: Mapping[str, Sequence[str]] | None = None

    @classmethod
    def of(cls, preset: Preset, settings: Mapping[str, Any], **how: Any) -> Self:
        """With keywords of `train`: fields of `DataSettings`, `tensorboard`, else of the preset."""
        others, data = dict(settings), {each.name for each in fields(DataSettings)}
        own = DataSettings(**{name: others.pop(name) for name in data & set(others)})
        if others.pop("tensorboard", False):
            how["listener"] = (how["listener"] or Listener()).with_tensorboard()
        return cls(changed_preset(preset, others), data=own, **how)

    def __post_init__(self) -> None:  # first, so that a wrong name costs nothing
        limits = self.limits.values() if isinstance(self.limits, Mapping) else self.limits
        for limit in limits:
            check_limit(self.preset.agent, limit)
        pick_device(self.device)

    @property
    def voice(self) -> Listener:
        """The caller's; of several ranks, the first alone speaks."""
        return self.listener if self.listener is not None and is_first() else Listener()

    def limits_of(self, task: str) -> tuple[SomeLimit | None, ...]:
        """The limits of a task's runs, a run each; (None,) where agents heed any."""
        if not isinstance(self.limits, Mapping):
            return self.limits
        if task not in self.limits:
            names = ", ".join(self.limits)
            raise ValueError(f"limit names no limit for {task}, only for {names}: name each")
        return (self.limits[task],)

    def train(self, tasks: Sequence[str], seeds: Sequence[int]) -> tuple[list[Run], Failures]:
        """All runs; which failed and why."""
        runs: list[Run] = []
        members: list[Member] = []
        with joined_ranks(pick_device(self.device)) as (ranks, device), ExitStack() as locks:
            for task in tasks:
                with ranks.first_alone():  # it may make the data
                    data, facts = self._data(task)
                samplers: dict[Any, Sampler] = {}  # of all seeds, for each limit
                for limit, seed in itertools.product(self.limits_of(task), seeds):
                    agent, name = self._agent(data, seed, limit)
                    run = self._run(agent, ranks, locks, limit=name, seed=seed, **facts)
                    runs.append(run)
                    if ranks.as_first(run.is_done):
                        self.voice.say(f"{run.path} has already finished; nothing to do")
                        continue
                    agent.model.to(device)
                    if limit not in samplers:
                        sampler = agent.sampler(data, device)
                        # single steps are drawn from all trajectories, whatever the limit
                        shared = isinstance(sampler, TransitionSampler)
                        same = self.limits_of(task) if shared else [limit]
                        samplers |= dict.fromkeys(same, sampler)
                    observer = self._observer(run, task, data)
                    members.append(Member(agent, samplers[limit], seed, run, observer, data))
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
                    self.voice.say(f"training {len(group)} runs as one program")
                runs = [member.run for member in group if member.run is not None]
                begun = ranks.as_first(runs[0].checkpoint_path.exists())
                errors = fit(group, config, resume=begun, interrupt=interrupt, ranks=ranks)
                failures |= {runs[position].path: error for position, error in errors.items()}
                for path in (run.path for run in runs if run.path not in failures):
                    self.voice.say(f"trained for {config.updates} updates; the run is in {path}")
        return failures

    def _data(self, task: str) -> tuple[RelabelledStore, dict[str, Any]]:
        """What all runs of a task are trained on, and what their specs say of it."""
        wanted, preset = self.data, self.preset
        store = task_data(task, self.voice, wanted.data_steps, wanted.data_seed)
        if wanted.environment:
            from saformer.envs.costed import attached

            num_states = store.steps["state"].shape[1]
            store = attached(store, wanted.environment, num_states, self.voice.say)
        has_simulator = store.environment.identifier is not None
        held_out, criteria = wanted.held_out, wanted.criteria
        if held_out is None:
            held_out = 0.0 if has_simulator else HELD_OUT_WITHOUT_SIMULATOR
        if isinstance(criteria, Mapping):
            criteria = criteria.get(task, ())
        data = training_part(store, held_out, criteria, preset.agent.cost_discount, self.voice)
        if preset.fit.evaluate_every and has_simulator:
            from saformer.envs.costed import try_out

            try_out(store.environment, data.criteria)  # now, not when much has been trained
        return data, {
            "task": locator(task),
            "criteria": tuple(criterion.name for criterion in data.criteria),
            "data_steps": wanted.data_steps,
            "data_seed": wanted.data_seed,
            "data_fingerprint": store.fingerprint,
            "held_out": held_out,
        }

    def _agent(
        self, data: RelabelledStore, seed: int, limit: SomeLimit | None
    ) -> tuple[Agent, str | None]:
        """A fresh agent, and the name of the one limit that it is trained for."""
        config, name = self.preset.agent, None
        if limit is not None:
            name = str(limit)
            config = replace(config, limit=parse_limit(name, data).values)
        elif find_kind(name_of(config)).has_one_limit:
            name = ",".join(f"{value:g}" for value in config.limit)
        return create_agent(data, config, seed=seed), name

    def _run(self, agent: Agent, ranks: Ranks, locks: ExitStack, **facts: Any) -> Run:
        """The run's folder: begun by the first rank, which keeps it, then seen by the others."""
        facts |= {"agent_config": asdict(agent.config), "fit_config": asdict(self.preset.fit)}
        spec = RunSpec(agent=agent.name, dimensions=agent.dimensions, **facts)
        path = Path(self.out or "runs")
        if self.several or self.out is None:
            path /= spec.name
        with ranks.first_alone():
            run = Run(path)
            if not ranks.is_first:
                return run.begun_with(spec)
            resume = run.spec_path.exists() if self.several else self.resume
            locks.enter_context(run.writing(spec, resume=resume))
            attached = typed(self.data.environment) if self.data.environment else None
            remember(run.path, run.spec.digest, spec.criteria, attached)  # as it is read
            return run

    def _observer(self, run: Run, task: str, data: RelabelledStore) -> Observer:
        """Reports; rolls out under the watched limits where there is a simulator."""
        voice, updates = self.voice, self.preset.fit.updates
        limits = WATCHED_LIMITS if self.watch is None else self.watch.get(task, ())
        is_watched = bool(limits) and data.store.environment.identifier is not None

        def evaluate(agent: Agent) -> dict[str, Any]:
            from saformer.evaluation.evaluate import evaluate_policy

            watched = limits_of(run.spec, data, usual=limits)
            options = agent.with_may_end(agent.options(), data.environment.may_end)
            seen = evaluate_policy(agent.policy(options), data, watched, episodes=WATCHED_EPISODES)
            pairs = [(verdict, verdict.limit) for verdict in seen.verdicts]
            return {
                limit.name: {"return": v.mean_return, "cost": v.mean_cost, "limit": limit.values}
                for v, limit in pairs
            }

        return Observer(
            progress=lambda update, metrics: voice.training(update, updates, metrics),
            evaluate=evaluate if is_watched else None,
            row=lambda row: voice.row(run.path, row),
            finishing=voice.finishing,
        )


def _check_distinct(what: str, names: Sequence[object]) -> None:
    """Two runs of one task and seed would write to one folder."""
    twice = sorted({str(name) for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{what} {', '.join(twice)} was named more than once; name each once")
