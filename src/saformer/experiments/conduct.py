"""Carry out several experiments at once: what they share is done once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from saformer.api.listener import Listener
from saformer.engine.device import pick_device
from saformer.engine.engine import Engine, LocalEngine
from saformer.experiments.elsewhere import Brought, carry_out_elsewhere, receive, sent
from saformer.experiments.experiment import Experiment, Result
from saformer.experiments.plan import WITHOUT_CHEAPEST, Needs, Setting, Training
from saformer.experiments.provenance import how_it_was_made, time_spent
from saformer.experiments.work import DataJob, Gathered, Row, RunJob, carry_out, prepare

NO_ENVIRONMENT = "it names no environment to roll out in; `saformer train` and `evaluate` judge such data offline"


@dataclass(frozen=True)
class Place:
    """Where things are kept and where they are computed."""

    runs: Path = Path("runs")
    device: str = "auto"
    packed: bool | None = None
    """whether runs of one kind are trained together; None: if the device of this machine is a
    GPU"""
    elsewhere: bool = False
    """whether other machines make the runs"""
    node_runs: Path | None = None
    """the folder in which each of them makes its own, to be brought back; None: they share
    `runs`"""

    @property
    def packs(self) -> bool:
        """The answer."""
        return pick_device(self.device).type == "cuda" if self.packed is None else self.packed


def conduct(
    experiments: Sequence[Experiment],
    setting: Setting,
    *,
    engine: Engine | None = None,
    place: Place | None = None,
    command: str = "",
    listener: Listener | None = None,
) -> Iterator[Result]:
    """Carry out experiments, with what they share done once; their results come when all is done.

    Datasets first, then runs. What fails is noted in the results that miss it.
    """
    place, listener, began = place or Place(), listener or Listener(), time.perf_counter()
    needs = [experiment.needs(setting) for experiment in experiments]
    whole = Needs()
    for one in needs:
        whole |= one
    engine = engine or usual_engine(place.device)
    found = _gather(whole, setting, engine, place, listener)
    made = how_it_was_made(setting, command, engine, time.perf_counter() - began)
    for experiment, needed in zip(experiments, needs, strict=True):
        rows = {**_selected(found.rows, needed), "settings": experiment.settings(setting)}
        failed = [failure for failure in found.failed if _concerns(failure, needed)]
        yield Result(experiment.name, rows, {**made, **time_spent(rows["verdicts"])}, failed)


def usual_engine(device: str) -> LocalEngine:
    """A GPU packs what fits together, in this process; without one, runs are shared among the
    cores."""
    if pick_device(device).type == "cuda":
        return LocalEngine()
    return LocalEngine(os.cpu_count() or 1)


def jobs_for(
    needs: Needs, setting: Setting, place: Place, *, threads: int | None = None
) -> list[RunJob]:
    """Runs of one kind together where they are packed, else each alone; those that take longest
    first."""
    groups: dict[Any, list[Training]] = {}
    for training in needs.trainings:
        groups.setdefault(training.pack if place.packs else training, []).append(training)
    jobs = [
        RunJob(
            setting,
            tuple(group),
            tuple(judging for judging in needs.judgings if judging.training in group),
            tuple(training for training in needs.curves if training in group),
            str(place.runs),
            device=place.device,
            workers="auto" if threads is None else 0,
            threads=threads,
        )
        for group in groups.values()
    ]
    return sorted(jobs, key=lambda job: -len(job.judgings))


def _gather(
    needs: Needs, setting: Setting, engine: Engine, place: Place, listener: Listener
) -> Gathered:
    found = Gathered()
    datasets = [*needs.datasets, *(training.dataset for training in needs.trainings)]
    whole = dict.fromkeys(dataset.removesuffix(WITHOUT_CHEAPEST) for dataset in datasets)
    derived = dict.fromkeys(dataset for dataset in datasets if dataset not in whole)
    for part in (whole, derived):
        _map(
            engine,
            prepare,
            [DataJob(setting, dataset, engine.threads) for dataset in part],
            found,
            listener,
        )
    data = found.rows.get("data", [])
    there = {row["dataset"] for row in data if row["environment"] is not None}
    for row in (row for row in data if needs.trainings and row["environment"] is None):
        found.failed.extend(DataJob(setting, row["dataset"]).failures(NO_ENVIRONMENT))
    possible = replace(
        needs,
        judgings=tuple(judging for judging in needs.judgings if judging.training.dataset in there),
        curves=tuple(training for training in needs.curves if training.dataset in there),
    )
    jobs = jobs_for(possible, setting, place, threads=engine.threads)
    if not place.elsewhere:
        _map(engine, carry_out, jobs, found, listener)
        return found
    with sent(jobs, place.runs, place.node_runs) as travelling:
        _map(engine, carry_out_elsewhere, travelling, found, listener, runs=place.runs)
    return found


def _map(
    engine: Engine,
    function: Callable[..., Gathered | Brought],
    jobs: Sequence[Any],
    found: Gathered,
    listener: Listener,
    *,
    runs: Path = Path(),
) -> None:
    if isinstance(engine, LocalEngine) and not engine.processes:
        function = partial(function, listener=listener)  # nobody else could be told how far it is
    for number, outcome in enumerate(engine.map(function, jobs), start=1):
        brought = outcome.result
        if isinstance(brought, Brought):
            receive(brought.files, runs)
            brought = brought.gathered
        if brought is None:
            brought = Gathered(
                failed=outcome.job.failures(outcome.error or "for an unknown reason")
            )
        found.add(brought)
        listener.say(f"{number} of {len(jobs)}: {outcome.job.name}")
        for failure in brought.failed:
            listener.say(f"failed: {failure['what']}: {failure['why']}")


def _selected(rows: dict[str, list[Row]], needs: Needs) -> dict[str, list[Row]]:
    """Those that an experiment asked for, in the order in which it did."""
    judged = [
        (*_key(vars(judging.training)), judging.cost_discount, variant)
        for judging in needs.judgings
        for variant in judging.variants
    ]
    curves = [(*_key(vars(training)), training.cost_discount) for training in needs.curves]
    return {
        "data": _ordered(rows.get("data", []), needs.datasets, lambda row: row["dataset"]),
        "verdicts": _ordered(
            rows.get("verdicts", []),
            judged,
            lambda row: (*_key(row), row["cost_discount"], row["variant"]),
        ),
        "curves": _ordered(
            rows.get("curves", []), curves, lambda row: (*_key(row), row["cost_discount"])
        ),
    }


def _ordered(rows: Sequence[Row], wanted: Sequence[Any], key: Callable[[Row], Any]) -> list[Row]:
    places = {one: place for place, one in enumerate(wanted)}
    return sorted((row for row in rows if key(row) in places), key=lambda row: places[key(row)])


def _concerns(failure: dict[str, str], needs: Needs) -> bool:
    """Whether an experiment misses what failed."""
    if not failure["agent"]:
        return failure["dataset"] in {
            *needs.datasets,
            *(training.dataset for training in needs.trainings),
        }
    if "variant" not in failure:
        return any(
            (failure["dataset"], failure["agent"]) == (t.dataset, t.agent) for t in needs.trainings
        )
    asked = {
        (judging.training.dataset, judging.training.agent, judging.variant)
        for judging in needs.judgings
    }
    return (failure["dataset"], failure["agent"], failure["variant"]) in asked


def _key(row: Row) -> tuple[Any, ...]:
    return row["dataset"], row["agent"], row["seed"], tuple(row["criteria"])
