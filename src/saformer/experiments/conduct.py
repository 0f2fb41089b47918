"""Carry out several experiments at once: shared runs are made once."""

import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, reduce
from importlib.metadata import PackageNotFoundError, version
from operator import or_
from pathlib import Path
from typing import Any

import torch

from saformer import Listener, __version__
from saformer.engine.device import pick_device
from saformer.engine.engine import Engine, LocalEngine
from saformer.experiments import plan
from saformer.experiments.datasets import prepare
from saformer.experiments.elsewhere import carry_out_elsewhere, receive, sent
from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.plan import DataJob, Gathered, Needs, Row, RunJob, Setting, Training
from saformer.experiments.work import carry_out
from saformer.runs.provenance import commit

OFFLINE = "`saformer train` and `evaluate` judge such data offline"
NO_ENVIRONMENT = f"it names no environment to roll out in; {OFFLINE}"


@dataclass(frozen=True)
class Site:
    """Where runs are made."""

    runs: Path = Path("runs")
    device: str = "auto"
    packed: bool | None = None  # runs of one kind are one job; None: if this machine has a GPU
    elsewhere: bool = False  # whether other machines make the runs
    node_runs: Path | None = None  # a folder of each of them, to bring runs back from

    @property
    def packs(self) -> bool:
        return pick_device(self.device).type == "cuda" if self.packed is None else self.packed


def conduct(
    experiments: Sequence[Experiment],
    setting: Setting,
    *,
    engine: Engine,
    site: Site,
    command: str = "",
    listener: Listener | None = None,
) -> Iterator[Results]:
    """Carry out experiments: datasets first, then runs, shared ones once. Results come when all is
    done. A failure is noted in the results that miss its rows."""
    listener, began = listener or Listener(), time.perf_counter()
    needs = [experiment.needs(setting) for experiment in experiments]
    gathered = _gather(reduce(or_, needs, Needs()), setting, engine, site, listener)
    made = _provenance(setting, command, engine, time.perf_counter() - began)
    for experiment, own in zip(experiments, needs, strict=True):
        rows = {**_selected(gathered.rows, own), "settings": experiment.settings(setting)}
        failed = [failure for failure in gathered.failed if _concerns(failure, own)]
        yield Results(experiment.name, rows, {**made, **_durations(rows["verdicts"])}, failed)


def usual_engine(device: str) -> LocalEngine:
    """On a GPU this process, which packs runs; without one, the cores share the runs."""
    on_gpu = pick_device(device).type == "cuda"
    return LocalEngine() if on_gpu else LocalEngine(os.cpu_count() or 1)


def jobs_for(
    needs: Needs, setting: Setting, site: Site, *, threads: int | None = None
) -> list[RunJob]:
    """Packed runs of one kind together, of each dataset and seed one; else each alone. Those that
    take longest first."""
    groups, jobs, seen = dict[Hashable, list[Training]](), list[RunJob](), Counter[Hashable]()
    for training in needs.trainings:
        alike = (training.pack, training.dataset, training.seed)  # but for their limits
        key: Hashable = (training.pack, seen[alike]) if site.packs else training
        groups.setdefault(key, []).append(training)
        seen[alike] += 1
    workers: Any = "auto" if threads is None else 0
    for group in groups.values():
        judgings = tuple(judging for judging in needs.judgings if judging.training in group)
        curves = tuple(training for training in needs.curves if training in group)
        own = (setting, tuple(group), judgings, curves)
        jobs.append(RunJob(*own, str(site.runs), site.device, workers, threads))
    return sorted(jobs, key=lambda job: -len(job.judgings))


def _gather(
    needs: Needs, setting: Setting, engine: Engine, site: Site, listener: Listener
) -> Gathered:
    gathered = Gathered()
    datasets = [*needs.datasets, *(training.dataset for training in needs.trainings)]
    whole = dict.fromkeys(plan.whole_of(dataset) for dataset in datasets)
    derived = dict.fromkeys(dataset for dataset in datasets if dataset not in whole)
    for part in (whole, derived):
        data_jobs = [DataJob(setting, dataset, engine.threads) for dataset in part]
        _map(engine, prepare, data_jobs, gathered, listener)
    data = gathered.rows.get("data", [])
    there = {row["dataset"] for row in data if row["environment"] is not None}
    for row in (row for row in data if needs.trainings and row["environment"] is None):
        gathered.failed.extend(DataJob(setting, row["dataset"]).failures(NO_ENVIRONMENT))
    judgings = tuple(each for each in needs.judgings if each.training.dataset in there)
    curves = tuple(training for training in needs.curves if training.dataset in there)
    jobs = jobs_for(Needs((), judgings, curves), setting, site, threads=engine.threads)
    if site.elsewhere:
        with sent(jobs, site.runs, site.node_runs) as travelling:
            _map(engine, carry_out_elsewhere, travelling, gathered, listener, runs=site.runs)
    else:
        _map(engine, carry_out, jobs, gathered, listener)
    return gathered


def _map(
    engine: Engine,
    function: Callable[..., Gathered],
    jobs: Sequence[Any],
    gathered: Gathered,
    listener: Listener,
    *,
    runs: Path = Path(),
) -> None:
    if isinstance(engine, LocalEngine) and not engine.processes:
        function = partial(function, listener=listener)  # other processes cannot report progress
    for count, outcome in enumerate(engine.map(function, jobs), start=1):
        why = outcome.error or "for an unknown reason"
        result = outcome.result or Gathered(failed=outcome.job.failures(why))
        receive(result.files, runs)
        gathered.add(result)
        listener.say(f"{count} of {len(jobs)}: {outcome.job.name}")
        for failure in result.failed:
            listener.say(f"failed: {failure['what']}: {failure['why']}")


def _selected(rows: dict[str, list[Row]], needs: Needs) -> dict[str, list[Row]]:
    """The rows of an experiment, in the order of its needs."""
    wanted: list[Row] = [{"dataset": dataset} for dataset in needs.datasets]
    wanted += [vars(training) for training in needs.curves]
    for judging in needs.judgings:
        about = {**vars(judging.training), "cost_discount": judging.cost_discount}
        wanted += [{**about, "variant": variant} for variant in judging.variants]
    order = {_key(row): index for index, row in enumerate(wanted)}
    selected = {}
    for kind in ("data", "verdicts", "curves"):
        own = [row for row in rows.get(kind, []) if _key(row) in order]
        selected[kind] = sorted(own, key=lambda row: order[_key(row)])
    return selected


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in plan.KEY)


def _concerns(failure: dict[str, str], needs: Needs) -> bool:
    dataset, agent = failure["dataset"], failure["agent"]
    if not agent:
        return dataset in {*needs.datasets, *(training.dataset for training in needs.trainings)}
    if "variant" not in failure:
        return (dataset, agent) in {(each.dataset, each.agent) for each in needs.trainings}
    judged = {(each.training.dataset, each.training.agent, each.variant) for each in needs.judgings}
    return (dataset, agent, failure["variant"]) in judged


def _provenance(setting: Setting, command: str, engine: Engine, seconds: float) -> dict[str, Any]:
    """For the foot of a page: command, commit, seeds, hardware and duration."""
    versions = dict.fromkeys(("torch", "numpy", "gymnasium", "mujoco"), "absent")
    for name in versions:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    gpu = f"{torch.cuda.get_device_name()}, " if torch.cuda.is_available() else ""
    return {
        "command": command,
        "scale": setting.scale.name,
        "data": setting.source,
        "seeds": list(setting.seeds),
        "episodes": setting.scale.episodes,
        "commit": commit(),
        "saformer": __version__,
        "versions": versions,
        "hardware": f"{gpu}{os.cpu_count()} CPU cores ({platform.machine()})",
        "engine": f"{engine.name}, {engine.jobs_at_once} at once",
        "this command": f"{seconds:.0f} s, what was found finished aside",
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _durations(verdicts: Sequence[Row]) -> dict[str, str]:
    """Of training and rolling out, which may have been done earlier."""
    if not verdicts:
        return {}
    trained, judged = dict[str, float](), dict[tuple[Any, ...], float]()
    for row in verdicts:
        trained[row["run"]] = row["training_seconds"]
        judged[row["run"], row["variant"], row["cost_discount"]] = row["evaluation_seconds"]
    training = f"{sum(trained.values()):.0f} s, the sum over {len(trained)} runs"
    evaluation = f"{sum(judged.values()):.0f} s, the sum over {len(judged)} rollouts"
    commits = ", ".join(sorted({row["commit"] for row in verdicts}))
    return {
        "updates": ", ".join(map(str, sorted({row["updates"] for row in verdicts}))),
        "training": f"{training} (each of a pack counts it all)",
        "evaluation": f"{evaluation}, at commit {commits}",
    }
