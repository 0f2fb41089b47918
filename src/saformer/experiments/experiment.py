"""An experiment, as it is declared; and the carrying out of several at once."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from saformer import __version__
from saformer.api import Listener
from saformer.data.statistics import without_nan
from saformer.engine.device import pick_device
from saformer.engine.engine import Engine, LocalEngine
from saformer.experiments.plan import Needs, Setting
from saformer.experiments.work import DataJob, Gathered, Row, RunJob, carry_out, prepare
from saformer.report.sheet import Part
from saformer.runs.checkpoint import write_atomically

VERSION = 1


@dataclass(frozen=True)
class Result:
    """The rows of one experiment and how they came to be: all that its page is made from."""

    experiment: str
    rows: dict[str, list[Row]]
    made: dict[str, Any]
    failed: list[dict[str, str]]

    def write(self, folder: Path) -> Path:
        """Keep it as JSON."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.experiment}.json"
        plain = {"version": VERSION, **without_nan(vars(self))}
        write_atomically(path, json.dumps(plain, indent=1))
        return path

    @classmethod
    def read(cls, folder: Path, experiment: str) -> Result:
        """As it was kept."""
        path = folder / f"{experiment}.json"
        if not path.exists():
            raise FileNotFoundError(f"there are no rows at {path}; make them with `saformer experiment {experiment}`")
        plain = json.loads(path.read_text())
        if plain.pop("version", None) != VERSION:
            raise ValueError(f"{path} was written by another version of saformer; make it again")
        return cls(**plain)


@dataclass(frozen=True)
class Experiment:
    """A declaration: what is needed, and how its rows are shown."""

    name: str
    shows: str
    """which tables and figures of the paper"""
    title: str
    description: str
    """a sentence or two on what is done"""
    needs: Callable[[Setting], Needs]
    present: Callable[[Result], Sequence[Part]]
    """tables and figures, from nothing but the rows"""
    settings: Callable[[Setting], list[Row]] = lambda setting: []
    """rows that need no run"""
    missing: Callable[[], str | None] = lambda: None
    """why it cannot be carried out, if so"""


@dataclass(frozen=True)
class Place:
    """Where things are kept and where they are computed."""

    runs: Path = Path("runs")
    device: str = "auto"


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
        yield Result(experiment.name, rows, {**made, **_spent(rows["verdicts"])}, failed)


def usual_engine(device: str) -> LocalEngine:
    """A GPU packs what fits together, in this process; without one, runs are shared among the cores."""
    if pick_device(device).type == "cuda":
        return LocalEngine()
    return LocalEngine(os.cpu_count() or 1)


def jobs_for(needs: Needs, setting: Setting, place: Place, *, packed: bool) -> list[RunJob]:
    """Runs of one kind together where they are packed, else each alone; those that take longest first."""
    groups: dict[Any, list[Any]] = {}
    for training in needs.trainings:
        groups.setdefault(training.pack if packed else training, []).append(training)
    jobs = [
        RunJob(
            setting,
            tuple(group),
            tuple(judging for judging in needs.judgings if judging.training in group),
            tuple(training for training in needs.curves if training in group),
            str(place.runs),
            device=place.device,
            workers="auto" if packed else 0,
        )
        for group in groups.values()
    ]
    return sorted(jobs, key=lambda job: -len(job.judgings))


def _gather(needs: Needs, setting: Setting, engine: Engine, place: Place, listener: Listener) -> Gathered:
    found, packed = Gathered(), pick_device(place.device).type == "cuda"
    datasets = dict.fromkeys([*needs.datasets, *(training.dataset for training in needs.trainings)])
    workers = None if engine.jobs_at_once == 1 else 1
    _map(engine, prepare, [DataJob(setting, dataset, workers) for dataset in datasets], found, listener)
    there = {row["dataset"] for row in found.rows.get("data", [])}
    possible = replace(
        needs,
        judgings=tuple(judging for judging in needs.judgings if judging.training.dataset in there),
        curves=tuple(training for training in needs.curves if training.dataset in there),
    )
    _map(engine, carry_out, jobs_for(possible, setting, place, packed=packed), found, listener)
    return found


def _map(
    engine: Engine, function: Callable[[Any], Gathered], jobs: Sequence[Any], found: Gathered, listener: Listener
) -> None:
    for number, outcome in enumerate(engine.map(function, jobs), start=1):
        brought = outcome.result or Gathered(failed=outcome.job.failures(outcome.error or "for an unknown reason"))
        found.add(brought)
        listener.say(f"{number} of {len(jobs)}: {outcome.job.name}")
        for failure in brought.failed:
            listener.say(f"failed: {failure['what']}: {failure['why']}")


def _selected(rows: dict[str, list[Row]], needs: Needs) -> dict[str, list[Row]]:
    """Those that an experiment asked for, in the order in which it did."""
    judged = [(*_key(vars(judging.training)), judging.cost_discount, judging.variant) for judging in needs.judgings]
    curves = [(*_key(vars(training)), training.cost_discount) for training in needs.curves]
    return {
        "data": _ordered(rows.get("data", []), needs.datasets, lambda row: row["dataset"]),
        "verdicts": _ordered(
            rows.get("verdicts", []), judged, lambda row: (*_key(row), row["cost_discount"], row["variant"])
        ),
        "curves": _ordered(rows.get("curves", []), curves, lambda row: (*_key(row), row["cost_discount"])),
    }


def _ordered(rows: Sequence[Row], wanted: Sequence[Any], key: Callable[[Row], Any]) -> list[Row]:
    places = {one: place for place, one in enumerate(wanted)}
    return sorted((row for row in rows if key(row) in places), key=lambda row: places[key(row)])


def _concerns(failure: dict[str, str], needs: Needs) -> bool:
    if not failure["agent"]:
        return failure["dataset"] in {*needs.datasets, *(training.dataset for training in needs.trainings)}
    return any((failure["dataset"], failure["agent"]) == (t.dataset, t.agent) for t in needs.trainings)


def _spent(verdicts: Sequence[Row]) -> dict[str, str]:
    """What training and rolling out took when it was done, which may have been earlier."""
    trained = {row["run"]: row["training_seconds"] for row in verdicts}
    judged = {(row["run"], row["variant"], row["cost_discount"]): row["evaluation_seconds"] for row in verdicts}
    if not trained:
        return {}
    return {
        "updates": ", ".join(str(count) for count in sorted({row["updates"] for row in verdicts})),
        "training": f"{sum(trained.values()):.0f} s, the sum over {len(trained)} runs (each of a pack counts it all)",
        "evaluation": f"{sum(judged.values()):.0f} s, the sum over {len(judged)} rollouts",
    }


def _key(row: Row) -> tuple[Any, ...]:
    return row["dataset"], row["agent"], row["seed"]


def how_it_was_made(setting: Setting, command: str, engine: Engine, seconds: float) -> dict[str, Any]:
    """For the foot of a page."""
    return {
        "command": command,
        "scale": setting.scale.name,
        "data": setting.source,
        "seeds": list(setting.seeds),
        "episodes": setting.scale.episodes,
        "commit": _commit(),
        "saformer": __version__,
        "versions": {name: _version(name) for name in ("torch", "numpy", "gymnasium", "mujoco")},
        "hardware": _hardware(),
        "engine": f"{engine.name}, {engine.jobs_at_once} at once",
        "this command": f"{seconds:.0f} s, what was found finished aside",
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _commit() -> str:
    """Of the checkout that this package lies in, if it does."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + (" with changes" if changed.stdout else "")


def _hardware() -> str:
    gpu = f"{torch.cuda.get_device_name()}, " if torch.cuda.is_available() else ""
    return f"{gpu}{os.cpu_count()} CPU cores ({platform.machine()})"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
