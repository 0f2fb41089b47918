"""All calls into the Python interface: make data, train, fine-tune and judge."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from saformer.api import Listener, build_data, finetune, train_together
from saformer.api.datasets import open_data
from saformer.api.run_data import relabelled
from saformer.api.runs import judge
from saformer.data.relabel import RelabelledStore
from saformer.data.store import TrajectoryStore
from saformer.experiments.jobs import DataJob, RunJob
from saformer.experiments.plan import WITHOUT_CHEAPEST, Judging, Setting, Training
from saformer.experiments.ways import execution
from saformer.runs.run import Run
from saformer.training.fit import InterruptedTrainingError
from saformer.training.presets import Preset


@contextmanager
def interruptible() -> Iterator[None]:
    """Training that Ctrl-C interrupts raises KeyboardInterrupt, and is no failure."""
    try:
        yield
    except InterruptedTrainingError as error:
        raise KeyboardInterrupt(str(error)) from None


@contextmanager
def opened(task: str, listener: Listener | None = None) -> Iterator[TrajectoryStore]:
    with open_data(task, listener=listener) as store:
        yield store


def with_own_costs(store: TrajectoryStore) -> RelabelledStore:
    """The costs that the data came with."""
    return relabelled(store, ())


def build_task(job: DataJob, listener: Listener | None) -> None:
    """Build the data of a task of this machine's own."""
    build_data(job.setting.task(job.dataset), workers=job.workers, listener=listener)


def train_runs(job: RunJob, listener: Listener) -> Iterator[tuple[Training, Run]]:
    """Every run of a job, trained as far as it came: a run that is not done has a `failure`."""
    first, setting = job.trainings[0], job.setting
    datasets = list(dict.fromkeys(training.dataset for training in job.trainings))
    seeds = list(dict.fromkeys(training.seed for training in job.trainings))
    tasks = {dataset: setting.task(dataset) for dataset in datasets}
    watch: dict[str, tuple[str, ...]] = {}
    for dataset in [] if first.criteria else datasets:  # the paper's limits are of its cost
        watch |= setting.watched(dataset, first.cost_discount)
    limits = {tasks[each.dataset]: each.limit for each in job.trainings if each.limit}
    with interruptible():
        runs = train_together(
            list(tasks.values()),
            seeds=seeds,
            limit=limits or None,
            preset=_preset(first, setting),
            criteria={tasks[each.dataset]: each.criteria for each in job.trainings},
            out=job.runs,
            device=job.device,
            watch=watch,
            listener=replace(listener, say=_say_nothing),
        )
    trainings = {(training.dataset, training.seed): training for training in job.trainings}
    pairs = [(dataset, seed) for dataset in datasets for seed in seeds]
    for pair, run in zip(pairs, runs, strict=True):
        yield trainings[pair], run


def finetune_run(
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


def judge_run(
    run: Run, judging: Judging, episodes: int, job: RunJob, listener: Listener
) -> dict[str, Any]:
    """Roll a run's policy out under the limits; the evaluation as plain values."""
    with warnings.catch_warnings():
        if judging.training.dataset.endswith(WITHOUT_CHEAPEST):  # on purpose
            warnings.filterwarnings("ignore", message="limit .* lies outside the data")
        judged = judge(
            run.path,
            limits=judging.limits,
            episodes=episodes,
            execution=execution(judging.training.agent, judging.options),
            cost_discount=judging.cost_discount,
            shield=judging.shield,
            reference=judging.shield,
            device=job.device,
            workers=job.workers,
            listener=replace(listener, say=_say_nothing),
        )
    return judged.evaluation.plain()


def _preset(training: Training, setting: Setting) -> Preset:
    preset = setting.scale.preset(training.agent)
    updates = training.updates or preset.fit.updates
    agent = replace(preset.agent, cost_discount=training.cost_discount)
    return Preset(agent, replace(preset.fit, updates=updates))


def _say_nothing(message: str) -> None:
    pass
