"""All calls that train, fine-tune and judge."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from saformer import Listener, finetune, load, train_together
from saformer.evaluation.settings import JudgeSettings
from saformer.experiments.estimates import estimate_rows
from saformer.experiments.plan import FROM, Judging, RunJob, Training
from saformer.runs.run import Run
from saformer.trained import Trained
from saformer.training.loop.fit import InterruptedTrainingError
from saformer.training.loop.presets import Preset


@contextmanager
def interruptible() -> Iterator[None]:
    """Training that Ctrl-C interrupts raises KeyboardInterrupt, and is no failure."""
    try:
        yield
    except InterruptedTrainingError as error:
        raise KeyboardInterrupt(str(error)) from None


def train_runs(job: RunJob, listener: Listener) -> Iterator[tuple[Training, Run]]:
    """Every run of a job, trained as far as it came: a run that is not done has a `failure`."""
    first, setting = job.trainings[0], job.setting
    datasets = list(dict.fromkeys(training.dataset for training in job.trainings))
    seeds = list(dict.fromkeys(training.seed for training in job.trainings))
    tasks = {dataset: setting.task(dataset) for dataset in datasets}
    preset = setting.scale.preset(first.agent, published=first.published)
    agent = replace(preset.agent, cost_discount=first.cost_discount)
    fit = replace(preset.fit, updates=first.updates or setting.updates or preset.fit.updates)
    limits = {tasks[each.dataset]: each.limit for each in job.trainings if each.limit}
    with interruptible():
        runs = train_together(
            list(tasks.values()),
            seeds=seeds,
            limit=limits or None,
            preset=Preset(agent, fit),
            criteria={tasks[each.dataset]: each.criteria for each in job.trainings},
            out=job.runs,
            device=job.device,
            watch=setting.watched(job.trainings),
            listener=replace(listener, say=lambda message: None),
        )
    trainings = {(training.dataset, training.seed): training for training in job.trainings}
    for pair, run in zip(product(datasets, seeds), runs, strict=True):
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
        may_end=training.may_end,
        out=out,
        seed=training.seed,
        resume=Run(out).spec_path.exists(),
        device=job.device,
        workers=job.workers,
        listener=listener,
        **dict(job.setting.scale.tuning),
    ).run


def judge_run(run: Run, judging: Judging, job: RunJob, listener: Listener) -> dict[str, Any]:
    """Roll a run's policy out under the limits; the evaluation as plain values."""
    how = {**_acting(judging), "shield": judging.shield, "reference": judging.shield}
    with warnings.catch_warnings():
        if FROM in judging.training.dataset:  # on purpose
            warnings.filterwarnings("ignore", message="limit .* lies outside the data")
        trained = _loaded(run, judging, job, listener)
        return trained.judge(judging.limits, episodes=episodes_of(judging, job), **how)[0].plain()


def estimate_run(run: Run, judging: Judging, job: RunJob, listener: Listener) -> dict[str, Any]:
    """What a run's data alone says of its policy under the limits, as plain values."""
    trained = _loaded(run, judging, job, listener)
    settings = JudgeSettings(judging.limits, episodes_of(judging, job), **_acting(judging))
    return estimate_rows(trained, settings)


def episodes_of(judging: Judging, job: RunJob) -> int:
    """Under each limit."""
    return judging.episodes or job.setting.scale.episodes


def _acting(judging: Judging) -> dict[str, Any]:
    options = dict(judging.options)
    rule = options.pop("rule", None)
    return {"rule": rule, "options": options, "may_end": judging.training.may_end}


def _loaded(run: Run, judging: Judging, job: RunJob, listener: Listener) -> Trained:
    quiet = replace(listener, say=lambda message: None)
    where: Any = {"device": job.device, "workers": job.workers, "listener": quiet}
    return load(run.path, cost_discount=judging.cost_discount, **where)
