"""Carry out what experiments ask for; finished parts are found again and not redone."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from saformer import Listener, build_data, finetune, load, train_together
from saformer.api.data import open_data
from saformer.api.run_data import relabelled
from saformer.data.inspection import inspect
from saformer.data.store import TrajectoryStore
from saformer.envs.tasks import data_path, find_task
from saformer.experiments.derived import make_scraps, make_upper
from saformer.experiments.plan import WITHOUT_CHEAPEST, Judging, Setting, Training
from saformer.runs.provenance import commit
from saformer.runs.run import Run
from saformer.training.loop.fit import InterruptedTrainingError
from saformer.training.loop.presets import Preset

SHOWN_TRAJECTORIES = 300
Row = dict[str, Any]


@dataclass(frozen=True)
class Gathered:
    """Rows by kind ("data", "verdicts", "curves"), and what could not be had."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    failed: list[dict[str, str]] = field(default_factory=list)

    def add(self, other: Gathered) -> None:
        """Take what another job brought."""
        for kind, rows in other.rows.items():
            self.rows.setdefault(kind, []).extend(rows)
        self.failed.extend(other.failed)


@dataclass(frozen=True)
class DataJob:
    """A dataset to be made, if it is not there yet, and described."""

    setting: Setting
    dataset: str
    workers: int | None = None

    @property
    def name(self) -> str:
        """For a person to read."""
        return f"data of {self.dataset}"

    def failures(self, why: str) -> list[dict[str, str]]:
        """If nothing came of it."""
        return [{"what": self.name, "why": why, "dataset": self.dataset, "agent": ""}]


@dataclass(frozen=True)
class RunJob:
    """Runs to be trained in one call, and all that is asked of each."""

    setting: Setting
    trainings: tuple[Training, ...]
    """of one pack"""
    judgings: tuple[Judging, ...]
    curves: tuple[Training, ...]
    runs: str
    """the folder of their folders"""
    device: str = "auto"
    workers: int | Literal["auto"] = "auto"
    """that step environments"""
    threads: int | None = None
    """that compute; None: as many as torch likes"""

    @property
    def name(self) -> str:
        """For a person to read."""
        first, more = self.trainings[0], len(self.trainings) - 1
        return first.name + (f" and {more} more" if more else "")

    def failures(self, why: str) -> list[dict[str, str]]:
        """If nothing came of it."""
        return [failure(training, why) for training in self.trainings]


def failure(training: Training, why: str, judging: Judging | None = None) -> dict[str, str]:
    """What is missing: a whole run, or one way to judge it."""
    about = {"dataset": training.dataset, "agent": training.agent}
    if judging is None:
        return {"what": training.name, "why": why, **about}
    what = f"evaluation{f' ({judging.variant})' if judging.variant else ''} of {training.name}"
    return {"what": what, "why": why, **about, "variant": judging.variant}


def prepare(job: DataJob, listener: Listener | None = None) -> Gathered:
    """Make the dataset, and describe it. What it is derived from must be there."""
    make_data_of(job, listener)
    task = job.setting.task(job.dataset)
    with open_data(task, listener=listener) as store:
        found, environment = inspect(relabelled(store, ())).plain(), store.environment.identifier
    constraint, sample = found["constraints"][0], found["sample"]
    shown = slice(None, None, -(-len(sample["episode_return"]) // SHOWN_TRAJECTORIES))
    row = {
        "dataset": job.dataset,
        "environment": environment,
        **{name: found[name] for name in ("fingerprint", "num_trajectories", "num_steps")},
        "thresholds": constraint["thresholds"],
        "correlation": constraint["correlation"],
        "mean_return": found["episode_return"]["mean"],
        "cost": [cost[0] for cost in sample["episode_cost"][shown]],
        "return": sample["episode_return"][shown],
    }
    return Gathered({"data": [row]})


def make_data_of(job: DataJob, listener: Listener | None = None) -> None:
    """Make the dataset if it is not there. What it is derived from must be."""
    setting, horizon, task = job.setting, job.setting.scale.horizon, job.setting.task(job.dataset)
    if job.dataset.endswith(WITHOUT_CHEAPEST):
        with open_data(
            setting.task(job.dataset.removesuffix(WITHOUT_CHEAPEST)), listener=listener
        ) as whole:
            make_upper(whole, Path(task))
    elif horizon is not None:
        make_scraps(job.dataset, Path(task), horizon)
    elif setting.source == "behaviours" and not data_path(find_task(task)).exists():
        build_data(task, workers=job.workers, listener=listener)


def carry_out(job: RunJob, listener: Listener | None = None) -> Gathered:
    """Train what is not trained yet, judge what is not judged yet, and gather the rows of all of
    it.

    A run or a judgement that fails is noted, and the others go on; Ctrl-C is not a failure.
    """
    found, listener = Gathered(), listener or Listener()
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    for training, run in _trained(job, found, listener):
        if training in job.curves:
            found.add(Gathered({"curves": list(_curve(training, run))}))
        for judging in (judging for judging in job.judgings if judging.training == training):
            try:
                found.add(Gathered({"verdicts": _verdicts(judging, run, job, listener)}))
            except InterruptedTrainingError as error:
                raise KeyboardInterrupt(str(error)) from None
            except (ValueError, OSError, RuntimeError) as error:
                found.failed.append(failure(training, str(error), judging))
    return found


def _trained(job: RunJob, found: Gathered, listener: Listener) -> Iterator[tuple[Training, Run]]:
    """The runs that finished."""
    first, setting, said = job.trainings[0], job.setting, list[str]()
    preset = _preset(first, setting)
    datasets = list(dict.fromkeys(training.dataset for training in job.trainings))
    seeds = list(dict.fromkeys(training.seed for training in job.trainings))
    watched = datasets if not first.criteria else []  # the paper's limits are of the paper's cost
    watch = {
        k: v
        for dataset in watched
        for k, v in setting.watched(dataset, first.cost_discount).items()
    }
    by_task = {
        setting.task(training.dataset): training.limit
        for training in job.trainings
        if training.limit
    }
    try:
        runs = train_together(
            [setting.task(dataset) for dataset in datasets],
            seeds=seeds,
            limit=by_task or None,
            preset=preset,
            criteria={
                setting.task(training.dataset): training.criteria for training in job.trainings
            },
            out=job.runs,
            device=job.device,
            watch=watch,
            listener=replace(listener, say=said.append),
        )
    except InterruptedTrainingError as error:
        raise KeyboardInterrupt(str(error)) from None
    wanted = {(training.dataset, training.seed): training for training in job.trainings}
    pairs = [(dataset, seed) for dataset in datasets for seed in seeds]
    for (dataset, seed), run in zip(pairs, runs, strict=True):
        training = wanted[dataset, seed]
        if run.is_done:
            yield training, run
        else:
            why = [line for line in said if line.startswith(str(run.path))]
            found.failed.append(failure(training, why[-1] if why else "training did not finish"))


def _preset(training: Training, setting: Setting) -> Preset:
    """How a run is trained."""
    preset = setting.scale.preset(training.agent)
    updates = training.updates or preset.fit.updates
    return Preset(
        replace(preset.agent, cost_discount=training.cost_discount),
        replace(preset.fit, updates=updates),
    )


def _verdicts(judging: Judging, run: Run, job: RunJob, listener: Listener) -> list[Row]:
    """A row for each limit."""
    limits = _in_numbers(judging, job.setting)
    if judging.finetuned:
        run = _finetuned(run, limits, judging.training, job, listener)
    kept, done = (
        _judgement(replace(judging, limits=limits), run, job, listener),
        run.read_json("done.json"),
    )
    about = {
        **_about(judging.training),
        "cost_discount": judging.cost_discount,
        "run": run.path.name,
        "updates": done["updates"],
        "training_seconds": done["seconds"],
        "evaluation_seconds": kept["seconds"],
        "commit": kept["commit"],
    }
    return [
        {**about, "variant": variant, **_verdict(verdict, found["episodes"])}
        for variant, found in zip(judging.variants, [kept, *kept["beside"]], strict=True)
        for verdict in found["verdicts"]
    ]


def _judgement(judging: Judging, run: Run, job: RunJob, listener: Listener) -> Row:
    """What was kept beside the run if it was judged in this way before; else it is judged now."""
    how: Row = {
        "limits": list(judging.limits),
        "options": dict(judging.options),
        "cost_discount": judging.cost_discount,
        "num_episodes": judging.episodes or job.setting.scale.episodes,
        "seed": 0,
        **({"shield": True} if judging.shield else {}),
    }
    name = f"evaluation-{hashlib.sha256(json.dumps(how, sort_keys=True).encode()).hexdigest()[:8]}.json"
    if not (run.path / name).exists():
        began = time.perf_counter()
        with warnings.catch_warnings():
            if judging.training.dataset.endswith(
                WITHOUT_CHEAPEST
            ):  # limits lie below the data on purpose
                warnings.filterwarnings("ignore", message="limit .* lies outside the data")
            acting = _acting(judging)
            trained = load(
                run.path,
                cost_discount=judging.cost_discount,
                device=job.device,
                workers=job.workers,
                listener=replace(listener, say=lambda message: None),
            )
            found = trained.judge(
                judging.limits,
                episodes=how["num_episodes"],
                rule=acting.pop("rule", None),
                options=acting,
                shield=judging.shield,
                reference=judging.shield,
            )
        facts = {"seconds": round(time.perf_counter() - began, 1), "commit": commit()}
        run.write_json(name, {**how, **facts, **found.evaluation.plain()})
    kept: Row = run.read_json(name)
    return kept


def _acting(judging: Judging) -> dict[str, Any]:
    """How its policy acts: SaFormer's tables are of the paper's rule unless they say otherwise."""
    usual = {"rule": "paper"} if judging.training.agent == "saformer" else {}
    return {**usual, **dict(judging.options)}


def _in_numbers(judging: Judging, setting: Setting) -> tuple[str, ...]:
    """The limits, as costs where they are percentiles, or percents of p10, of data that is there no
    more."""
    if not judging.training.dataset.endswith(WITHOUT_CHEAPEST):
        return judging.limits
    before = TrajectoryStore.open(setting.task(judging.training.dataset)).provenance[
        "thresholds before"
    ]
    costs = (
        before[name] if name in before else before["p10"] * float(name) / 100
        for name in judging.limits
    )
    return tuple(f"{cost:.6g}" for cost in costs)


def _finetuned(
    run: Run, limits: Sequence[str], training: Training, job: RunJob, listener: Listener
) -> Run:
    """The run that fine-tuning makes of this one, to the end."""
    out = Path(job.runs) / f"{run.path.name}-finetuned"
    return finetune(
        run.path,
        limits,
        episodes=job.setting.scale.exploration,
        out=out,
        seed=training.seed,
        resume=Run(out).spec_path.exists(),
        device=job.device,
        workers=job.workers,
        listener=listener,
    ).run


def _about(training: Training) -> Row:
    """What rows say of their run."""
    said = asdict(training)
    return {
        **{name: said[name] for name in ("dataset", "agent", "cost_discount", "seed")},
        "criteria": said["criteria"],
    }


def _verdict(verdict: Row, episodes: Sequence[Row]) -> Row:
    own = [row for row in episodes if row["limit_name"] == verdict["limit"]["name"]]
    copied = (
        "met",
        "mean_return",
        "frontier",
        "frontier_share",
        "safe_share",
        "within",
        "resampled",
        "fell_back",
        "shielded",
    )
    return {
        "limit_name": verdict["limit"]["name"],
        "limit": verdict["limit"]["values"][0],
        "mean_cost": verdict["mean_cost"][0],
        **{name: verdict[name] for name in copied},
        "costs": [row["cost"][0] for row in own],
        "returns": [row["episode_return"] for row in own],
    }


def _curve(training: Training, run: Run) -> Iterator[Row]:
    about = _about(training)
    for row in run.metrics():
        for name, seen in row.get("evaluation", {}).items():
            yield {
                **about,
                "update": row["update"],
                "limit_name": name,
                "limit": seen["limit"][0],
                "cost": seen["cost"][0],
                "return": seen["return"],
            }
