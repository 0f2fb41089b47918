"""The training loop, shared by all agents: progress, rows of metrics, evaluations, checkpoints,
interrupts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from saformer.agents.agent import Agent, Sampler
from saformer.data.relabel import RelabelledStore
from saformer.engine.distributed import Ranks
from saformer.runs.lock import alone_in
from saformer.runs.run import Run
from saformer.training.config import FitConfig
from saformer.training.interrupt import Interrupt
from saformer.training.trainer import Member, Metrics, NonFiniteLossError, Observer, PackTrainer


class InterruptedTrainingError(RuntimeError):
    """The user asked to stop; everything was saved."""


def fit(
    agent: Agent,
    sampler: Sampler,
    config: FitConfig,
    *,
    seed: int = 0,
    run: Run | None = None,
    resume: bool = False,
    observer: Observer | None = None,
    ranks: Ranks | None = None,
    data: RelabelledStore | None = None,
) -> Agent:
    """Train until `config.updates`; with a run, keep checkpoints and metrics in it, and go on from
    there on `resume`.

    Ctrl-C saves first and raises `InterruptedTrainingError`; a loss that is not finite,
    `NonFiniteLossError`.
    """
    member = Member(agent, sampler, seed, run, observer or Observer(), data)
    failed = fit_together([member], config, resume=resume, ranks=ranks)
    if failed:
        raise failed[0]
    return agent


def fit_together(
    members: Sequence[Member],
    config: FitConfig,
    *,
    resume: bool = False,
    interrupt: Interrupt | None = None,
    ranks: Ranks | None = None,
) -> dict[int, NonFiniteLossError]:
    """Train runs of one architecture as one program; each is what it would be alone. Answers which
    failed, and why.

    A run that diverges is saved as it was before and left behind; the others go on. With `resume`,
    all go on from their checkpoints, which must be of the same update. An active `interrupt` of the
    caller's is heeded if given. Several `ranks` share each batch; all of them must call this, and
    the first alone evaluates and writes.
    """
    ranks = ranks or Ranks()
    with ExitStack() as held:
        for run in (member.run for member in members if member.run is not None and ranks.is_first):
            held.enter_context(alone_in(run.path))
        return _fit_alone(members, config, ranks, resume=resume, interrupt=interrupt)


def _fit_alone(
    members: Sequence[Member],
    config: FitConfig,
    ranks: Ranks,
    *,
    resume: bool,
    interrupt: Interrupt | None,
) -> dict[int, NonFiniteLossError]:
    trainer = PackTrainer(members, config, ranks)
    if resume:
        assert all(member.run is not None for member in members), "resuming needs runs"
        trainer.restore([member.run.load() for member in members if member.run is not None])
        for member in members:
            if member.run is not None and ranks.is_first:
                member.run.rewind_metrics(trainer.update)
    else:
        _save(trainer)
    failed: dict[int, NonFiniteLossError] = {}
    numbers = list(range(len(members)))
    with nullcontext(interrupt) if interrupt is not None else Interrupt() as asked:
        while numbers:
            try:
                with in_mode(trainer, training=True):
                    _loop(trainer, asked)
            except NonFiniteLossError as error:
                _save(trainer)
                for number in error.numbers:
                    failed[numbers[number]] = _with_place(error, trainer.members[number].run)
                numbers = [number for number in numbers if number not in failed]
                trainer = _without(trainer, error.numbers)
            else:
                break
    if numbers:
        _finish(trainer)
    for number in numbers:
        run = members[number].run
        if run is not None and ranks.is_first:
            run.mark_done({"updates": trainer.update, "seconds": round(trainer.seconds, 1)})
    ranks.wait()  # so that each finds it finished
    return failed


def _finish(trainer: PackTrainer) -> None:
    """The last stage of training: what a way of acting needs besides the trained weights."""
    if all(member.data is None for member in trainer.members):
        return
    trainer.unpack()
    for member in trainer.members:
        if member.data is not None:
            member.agent.finish(member.data)
    _save(trainer)


def _without(trainer: PackTrainer, numbers: Sequence[int]) -> PackTrainer:
    """The same training with the others alone."""
    left = [number for number in range(len(trainer.members)) if number not in numbers]
    if not left:
        return trainer
    checkpoints = [trainer.checkpoint({}, number) for number in left]
    rest = PackTrainer([trainer.members[number] for number in left], trainer.config, trainer.ranks)
    rest.restore(checkpoints)
    return rest


def _with_place(error: NonFiniteLossError, run: Run | None) -> NonFiniteLossError:
    where = f". The state before it is saved in {run.path}" if run is not None else ""
    return NonFiniteLossError(f"{error}{where}")


def _loop(trainer: PackTrainer, interrupt: Interrupt) -> None:
    config = trainer.config
    reports = [_Report(trainer.update) for _ in trainer.members]
    while trainer.update < config.updates:
        began = time.perf_counter()
        count, metrics = trainer.advance(_until_next_event(trainer.update, config))
        trainer.seconds += time.perf_counter() - began
        last = trainer.update == config.updates
        for member, report, values in zip(trainer.members, reports, metrics, strict=True):
            report.add(values, count)
            member.observer.progress(trainer.update, values)
            if last or trainer.update % config.report_every == 0:
                _write(trainer, member, report.row(trainer.update, trainer.seconds))
        if config.evaluate_every and (last or trainer.update % config.evaluate_every == 0):
            _evaluate(trainer)
        stopping = trainer.ranks.any(interrupt.requested) and not last
        if last or stopping or trainer.update % config.checkpoint_every == 0:
            _save(trainer)
        if stopping:
            paths = [str(member.run.path) for member in trainer.members if member.run is not None]
            where = f"; saved in {', '.join(paths)}" if paths else ""
            raise InterruptedTrainingError(
                f"stopped after update {trainer.update} of {config.updates}{where}"
            )


def _evaluate(trainer: PackTrainer) -> None:
    trainer.unpack()
    for member in trainer.members:
        if member.observer.evaluate is not None and trainer.ranks.is_first:
            with in_mode(trainer, training=False):
                found = member.observer.evaluate(member.agent)
            _write(trainer, member, {"update": trainer.update, "evaluation": found})


def _until_next_event(update: int, config: FitConfig) -> int:
    """Updates until something is to be reported, evaluated or saved, or training ends."""
    periods = (config.report_every, config.checkpoint_every, config.evaluate_every)
    return min(
        [config.updates - update, *(period - update % period for period in periods if period)]
    )


class _Report:
    """Means of the metrics since the last row."""

    def __init__(self, update: int) -> None:
        self._since, self._sums = update, dict[str, float]()

    def add(self, metrics: Metrics, count: int) -> None:
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + count * value

    def row(self, update: int, seconds: float) -> dict[str, Any]:
        count = update - self._since
        means = {name: total / count for name, total in self._sums.items()}
        self._since, self._sums = update, {}
        return {"update": update, "seconds": round(seconds, 3), **means}


def _write(trainer: PackTrainer, member: Member, row: dict[str, Any]) -> None:
    if member.run is not None and trainer.ranks.is_first:
        member.run.append_metrics(row)
    member.observer.row(row)


def _save(trainer: PackTrainer) -> None:
    for number, member in enumerate(trainer.members):
        if member.run is not None:
            checkpoint = trainer.checkpoint({"spec": member.run.spec.digest}, number)
            if trainer.ranks.is_first:
                member.run.save(checkpoint)
    # a rank that ends may take the others with it, so none does before all is saved
    trainer.ranks.wait()


@contextmanager
def in_mode(trainer: PackTrainer, *, training: bool) -> Iterator[None]:
    """Dropout on while training and off while evaluating; a caller's random state is not disturbed
    by evaluating."""
    models = [member.agent.model for member in trainer.members]
    before, state = [model.training for model in models], torch.get_rng_state()
    for model in models:
        model.train(training)
    try:
        yield
    finally:
        for model, was in zip(models, before, strict=True):
            model.train(was)
        if not training:
            torch.set_rng_state(state)
