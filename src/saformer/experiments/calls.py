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


def judge_run(
    run: Run, judging: Judging, episodes: int, job: RunJob, listener: Listener
) -> dict[str, Any]:
    """Roll a run's policy out under the limits; the evaluation as plain values."""
    quiet, shield = replace(listener, say=lambda message: None), judging.shield
    where: Any = {"device": job.device, "workers": job.workers, "listener": quiet}
    options = dict(judging.options)
    how: Any = {"rule": options.pop("rule", None), "options": options}
    how |= {"shield": shield, "reference": shield}
    how["may_end"] = judging.training.may_end
    with warnings.catch_warnings():
        if FROM in judging.training.dataset:  # on purpose
            warnings.filterwarnings("ignore", message="limit .* lies outside the data")
        trained = load(run.path, cost_discount=judging.cost_discount, **where)
        evaluation, _ = trained.judge(judging.limits, episodes=episodes, **how)
        plain = evaluation.plain()
        if judging.estimated:
            acting = {name: how[name] for name in ("rule", "options", "may_end")}
            settings = JudgeSettings(judging.limits, episodes, **acting)
            plain["estimate"] = estimate_rows(trained, settings)
    return plain
