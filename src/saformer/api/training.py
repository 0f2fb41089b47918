"""Train a policy, or many of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from saformer.agents.agent import Agent
from saformer.agents.registry import create_agent
from saformer.api.listener import Listener
from saformer.api.run_data import locator, open_data, training_part, with_costs
from saformer.api.runs import begun_run, open_run
from saformer.api.settings import check_limit, for_limit, preset_for
from saformer.api.watching import observer_of
from saformer.data.relabel import RelabelledStore
from saformer.data.transitions import TransitionSampler
from saformer.engine.device import pick_device
from saformer.engine.distributed import Ranks, joined_ranks
from saformer.engine.torchrun import is_first
from saformer.envs.tasks import find_task
from saformer.runs.run import Run
from saformer.runs.spec import RunSpec
from saformer.training.loop.fit import InterruptedTrainingError, fit
from saformer.training.loop.interrupt import Interrupt
from saformer.training.loop.presets import Preset
from saformer.training.loop.trainer import Member
from saformer.training.packs.grouping import grouped

WATCHED_LIMITS = ("p10", "p50", "p90")
HELD_OUT_WITHOUT_SIMULATOR = 0.1


def train(
    task: str,
    *,
    agent: str | None = None,
    limit: str | float | None = None,
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

    `agent` is one of those that `saformer agents` lists, by default saformer or what the preset is
    for. Those that are trained for one limit need `limit`: a cost, or a percentile of the training
    data's costs ("p20"). `criteria` says what a step costs, one for each constraint; by default
    those that the data came with. `held_out` is the share of trajectories kept for an offline
    evaluation: by default a tenth where there is no simulator, else none. An interrupted run is
    continued with `resume=True`, exactly where its last checkpoint left it. Processes that torchrun
    started share every batch; the first alone speaks and writes.
    """
    settings = _Settings(
        preset_for(preset, agent),
        (limit,),
        tuple(criteria),
        held_out,
        data_steps,
        data_seed,
        _heard(listener),
    )
    processor = _checked(settings, device)
    runs, failed = _train(
        [task],
        [seed],
        settings,
        processor,
        place=lambda spec: Path(out or _usual(spec)),
        resumed=lambda _: resume,
    )
    if failed:
        raise next(iter(failed.values()))
    return runs[0]


def train_together(
    tasks: Sequence[str],
    *,
    seeds: Sequence[int] = (0,),
    agent: str | None = None,
    limit: str | float | Sequence[str | float] | Mapping[str, str | float] | None = None,
    preset: Literal["small", "paper"] | Preset = "small",
    criteria: Sequence[str] | Mapping[str, Sequence[str]] = (),
    held_out: float | None = None,
    data_steps: int | None = None,
    data_seed: int = 0,
    out: str | Path = "runs",
    device: str = "auto",
    watch: Mapping[str, Sequence[str]] | None = None,
    listener: Listener | None = None,
) -> list[Run]:
    """A run for every task, seed and limit, each in a folder of its own under `out`; see `train`
    for the rest.

    On a GPU, runs of one architecture are trained as one program; each is what it would be alone.
    Runs that have finished are not redone and interrupted ones go on, so that the same call can be
    made again. One that diverges is left behind, which is said (and its `is_done` is False), and
    the others go on. `watch` says under which limits each task is looked at every `evaluate_every`
    updates, and leaves the tasks alone that it does not name. `limit` and `criteria` may be given
    by task too: one limit each.
    """
    settings = _Settings(
        *(
            preset_for(preset, agent),
            limit if isinstance(limit, Mapping) else _several(limit),
            criteria,
        ),
        *(held_out, data_steps, data_seed),
        _heard(listener),
        watch,
    )
    processor = _checked(settings, device)
    _check_distinct("task", [locator(task) for task in tasks])
    _check_distinct("seed", seeds)
    for task in tasks:
        _check_distinct("limit", settings.limits_of(task))
        find_task(task)  # before the data of others is made
    runs, failed = _train(
        tasks,
        seeds,
        settings,
        processor,
        place=lambda spec: Path(out) / _usual(spec).name,
        resumed=lambda path: Run(path).spec_path.exists(),
    )
    for run in (run for run in runs if run.path in failed):
        run.failure = str(failed[run.path])
        settings.listener.say(f"{run.path} failed: {run.failure}")
    return runs


@dataclass(frozen=True)
class _Settings:
    """What all runs of a call share."""

    preset: Preset
    limits: tuple[str | float | None, ...] | Mapping[str, str | float]
    criteria: Sequence[str] | Mapping[str, Sequence[str]]
    held_out: float | None
    data_steps: int | None
    data_seed: int
    listener: Listener
    watch: Mapping[str, Sequence[str]] | None = None

    def limits_of(self, task: str) -> tuple[str | float | None, ...]:
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

    def costs(self, task: str) -> Sequence[str]:
        """What a step of a task costs; as the data has it, if nothing is said."""
        return (
            self.criteria.get(task, ())
            if isinstance(self.criteria, Mapping)
            else tuple(self.criteria)
        )

    def watched(self, task: str) -> Sequence[str]:
        """The limits that a task is watched under, unless its runs are trained for one."""
        return WATCHED_LIMITS if self.watch is None else self.watch.get(task, ())


@dataclass(frozen=True)
class _Source:
    """What a task's runs are trained on."""

    data: RelabelledStore
    fingerprint: str
    """of the whole store"""
    held_out: float
    """the share that is kept from training"""


def _heard(listener: Listener | None) -> Listener:
    """Of several ranks, the first alone speaks."""
    return listener if listener is not None and is_first() else Listener()


def _checked(settings: _Settings, device: str) -> torch.device:
    """First, so that a wrong name costs nothing."""
    for limit in (
        settings.limits.values() if isinstance(settings.limits, Mapping) else settings.limits
    ):
        check_limit(settings.preset.agent, limit)
    return pick_device(device)


def _several(limit: str | float | Sequence[str | float] | None) -> tuple[str | float | None, ...]:
    """One limit, or none, is a sequence of one."""
    return (limit,) if limit is None or isinstance(limit, str | float | int) else tuple(limit)


def _check_distinct(what: str, given: Sequence[object]) -> None:
    """Two runs of one task and seed would write to one folder."""
    twice = sorted({str(one) for one in given if given.count(one) > 1})
    if twice:
        raise ValueError(f"{what} {', '.join(twice)} was named more than once; name each once")


def _train(
    tasks: Sequence[str],
    seeds: Sequence[int],
    settings: _Settings,
    device: torch.device,
    *,
    place: Callable[[RunSpec], Path],
    resumed: Callable[[Path], bool],
) -> tuple[list[Run], dict[Path, Exception]]:
    """All runs, and which failed and why."""
    with joined_ranks(device) as (ranks, own):
        runs, members = _opened(tasks, seeds, settings, own, ranks, place=place, resumed=resumed)
        return runs, _fit(members, settings, own, ranks)


def _opened(
    tasks: Sequence[str],
    seeds: Sequence[int],
    settings: _Settings,
    device: torch.device,
    ranks: Ranks,
    *,
    place: Callable[[RunSpec], Path],
    resumed: Callable[[Path], bool],
) -> tuple[list[Run], list[Member]]:
    """All runs, and what is to be trained."""
    runs: list[Run] = []
    members: list[Member] = []
    for task in tasks:
        with ranks.first_alone():  # it may make the data
            source = _source(task, settings)
        samplers: dict[Any, Any] = {}  # of all seeds, for each limit
        limits = settings.limits_of(task)
        for limit, seed in itertools.product(limits, seeds):
            agent, spec = _agent(task, source, seed, limit, settings)
            path = place(spec)
            with ranks.first_alone():
                run = (
                    open_run(path, spec, resume=resumed(path))
                    if ranks.is_first
                    else begun_run(path, spec)
                )
            runs.append(run)
            if ranks.as_first(run.is_done):
                settings.listener.say(f"{run.path} has already finished; nothing to do")
                continue
            agent.model.to(device)
            if limit not in samplers:
                sampler = agent.sampler(source.data, device)
                # single steps are drawn from all trajectories, whatever the limit
                samplers |= dict.fromkeys(
                    limits if isinstance(sampler, TransitionSampler) else [limit], sampler
                )
            updates = settings.preset.fit.updates
            observer = observer_of(
                run, settings.listener, updates, source.data, settings.watched(task)
            )
            members.append(Member(agent, samplers[limit], seed, run, observer, source.data))
    return runs, members


def _fit(
    members: Sequence[Member], settings: _Settings, device: torch.device, ranks: Ranks
) -> dict[Path, Exception]:
    failed: dict[Path, Exception] = {}
    groups = grouped(members, device)
    with (
        Interrupt() as interrupt
    ):  # one for all, so that Ctrl-C at the end of a run is not lost on the next
        for place, group in enumerate(groups):
            if ranks.any(interrupt.requested):
                raise InterruptedTrainingError(
                    f"stopped after {sum(map(len, groups[:place]))} of {len(members)} runs"
                )
            if len(group) > 1:
                settings.listener.say(f"training {len(group)} runs as one program")
            begun = group[0].run is not None and ranks.as_first(
                group[0].run.checkpoint_path.exists()
            )
            found = fit(group, settings.preset.fit, resume=begun, interrupt=interrupt, ranks=ranks)
            for number, member in enumerate(group):
                assert member.run is not None
                if number in found:
                    failed[member.run.path] = found[number]
                else:
                    updates = settings.preset.fit.updates
                    settings.listener.say(
                        f"trained for {updates} updates; the run is in {member.run.path}"
                    )
    return failed


def _source(task: str, settings: _Settings) -> _Source:
    store = open_data(task, settings.listener, steps=settings.data_steps, seed=settings.data_seed)
    held_out = settings.held_out
    if held_out is None:
        held_out = HELD_OUT_WITHOUT_SIMULATOR if store.environment.identifier is None else 0.0
    discount = settings.preset.agent.cost_discount
    data = with_costs(
        training_part(store, held_out), settings.costs(task), discount, settings.listener
    )
    if settings.preset.fit.evaluate_every and store.environment.identifier is not None:
        from saformer.envs.costed import try_out

        try_out(store.environment, data.criteria)  # now, not when much has been trained already
    return _Source(data, store.fingerprint, held_out)


def _agent(
    task: str, source: _Source, seed: int, limit: str | float | None, settings: _Settings
) -> tuple[Agent, RunSpec]:
    config, limit_name = for_limit(settings.preset.agent, limit, source.data)
    agent = create_agent(source.data, config, seed=seed)
    spec = RunSpec(
        task=locator(task),
        agent=agent.name,
        agent_config=asdict(agent.config),
        fit_config=asdict(settings.preset.fit),
        seed=seed,
        criteria=tuple(c.name for c in source.data.criteria),
        data_steps=settings.data_steps,
        data_seed=settings.data_seed,
        data_fingerprint=source.fingerprint,
        held_out=source.held_out,
        dimensions=agent.dimensions,
        limit=limit_name,
    )
    return agent, spec


def _usual(spec: RunSpec) -> Path:
    return Path("runs") / spec.name
