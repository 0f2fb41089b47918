"""The training loop of all agents: progress, metrics, evaluations, checkpoints, interrupts."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from saformer.data.interrupt import Interrupt
from saformer.engine.distributed import Ranks
from saformer.training.loop.config import FitConfig
from saformer.training.loop.trainer import Member, NonFiniteLossError, PackTrainer


class InterruptedTrainingError(RuntimeError):
    """The user asked to stop; everything was saved."""


def fit(
    members: Sequence[Member],
    config: FitConfig,
    *,
    resume: bool = False,
    interrupt: Interrupt | None = None,
    ranks: Ranks | None = None,
) -> dict[int, NonFiniteLossError]:
    """Train runs of one architecture as one program until `config.updates`; each is what it would
    be alone. The result says which failed, by their index, and why.

    Implements: Algorithm 2

    Members with a run keep checkpoints and metrics in it. With `resume`, all go on from their
    checkpoints, which must be of the same update. A run that diverges is saved as it was before and
    left behind; the others go on. Ctrl-C saves first and raises `InterruptedTrainingError`; an
    active `interrupt` of the caller's is heeded if there is one. Several `ranks` share each batch;
    all of them must call this, and the first alone evaluates and writes.
    """
    ranks, indices = ranks or Ranks(), list(range(len(members)))
    failed: dict[int, NonFiniteLossError] = {}
    with ExitStack() as locks:
        for member in members:
            if member.run is not None and ranks.is_first:
                locks.enter_context(member.run.alone())
        trainer = _begun(members, config, ranks, resume=resume)
        with nullcontext(interrupt) if interrupt is not None else Interrupt() as heeded:
            while indices:
                try:
                    with in_mode(trainer, training=True):
                        _loop(trainer, heeded)
                    break
                except NonFiniteLossError as error:
                    _save(trainer)
                    for index in error.indices:
                        run = trainer.members[index].run
                        where = f". The state before it is saved in {run.path}" if run else ""
                        failed[indices[index]] = NonFiniteLossError(f"{error}{where}")
                    indices = [index for index in indices if index not in failed]
                    trainer = _without(trainer, error.indices)
        if indices:
            _finish(trainer)
        for index in indices:
            run = members[index].run
            if run is not None and ranks.is_first:
                run.mark_done({"updates": trainer.update, "seconds": round(trainer.seconds, 1)})
        ranks.wait()  # so that each finds it finished
    return failed


def _begun(
    members: Sequence[Member], config: FitConfig, ranks: Ranks, *, resume: bool
) -> PackTrainer:
    trainer = PackTrainer(members, config, ranks)
    if not resume:
        _save(trainer)
        return trainer
    runs = [member.run for member in members if member.run is not None]
    assert len(runs) == len(members), "resuming needs runs"
    trainer.restore([run.load() for run in runs])
    for run in runs if ranks.is_first else ():
        run.rewind_metrics(trainer.update)
    return trainer


def _without(trainer: PackTrainer, indices: Sequence[int]) -> PackTrainer:
    """The same training, with the other members alone."""
    left = [index for index in range(len(trainer.members)) if index not in indices]
    if not left:
        return trainer
    checkpoints = [trainer.checkpoint({}, index) for index in left]
    rest = PackTrainer([trainer.members[index] for index in left], trainer.config, trainer.ranks)
    rest.restore(checkpoints)
    return rest


def _loop(trainer: PackTrainer, interrupt: Interrupt) -> None:
    config = trainer.config
    since, totals = trainer.update, [defaultdict[str, float](float) for _ in trainer.members]
    while trainer.update < config.updates:
        began = time.perf_counter()
        count, metrics = trainer.advance(_until_next_event(trainer.update, config))
        trainer.seconds += time.perf_counter() - began
        last = trainer.update == config.updates
        for member, sums, values in zip(trainer.members, totals, metrics, strict=True):
            for name, value in values.items():
                sums[name] += count * value
            member.observer.progress(trainer.update, values)
        if last or trainer.update % config.report_every == 0:
            facts = {"update": trainer.update, "seconds": round(trainer.seconds, 3)}
            for member, sums in zip(trainer.members, totals, strict=True):
                means = {name: total / (trainer.update - since) for name, total in sums.items()}
                _write(trainer, member, facts | means)
                sums.clear()
            since = trainer.update
        if config.evaluate_every and (last or trainer.update % config.evaluate_every == 0):
            _evaluate(trainer)
        stopping = trainer.ranks.any(interrupt.requested) and not last
        if last or stopping or trainer.update % config.checkpoint_every == 0:
            _save(trainer)
        if stopping:
            paths = ", ".join(str(member.run.path) for member in trainer.members if member.run)
            done = f"stopped after update {trainer.update} of {config.updates}"
            raise InterruptedTrainingError(f"{done}; saved in {paths}" if paths else done)


def _finish(trainer: PackTrainer) -> None:
    """The last stage of training: what a way of acting needs besides the trained weights."""
    if any(member.data is not None for member in trainer.members):
        trainer.unpack()
        for member in trainer.members:
            if member.data is not None:
                member.agent.finish(member.data, member.observer.finishing)
        _save(trainer)


def _evaluate(trainer: PackTrainer) -> None:
    trainer.unpack()
    for member in trainer.members:
        if member.observer.evaluate is not None and trainer.ranks.is_first:
            with in_mode(trainer, training=False):
                evaluation = member.observer.evaluate(member.agent)
            _write(trainer, member, {"update": trainer.update, "evaluation": evaluation})


def _until_next_event(update: int, config: FitConfig) -> int:
    """Updates until something is to be reported, evaluated or saved, or training ends."""
    periods = (config.report_every, config.checkpoint_every, config.evaluate_every)
    until_each = [period - update % period for period in periods if period]
    return min(config.updates - update, *until_each)


def _write(trainer: PackTrainer, member: Member, row: dict[str, Any]) -> None:
    if member.run is not None and trainer.ranks.is_first:
        member.run.append_metrics(row)
    member.observer.row(row)


def _save(trainer: PackTrainer) -> None:
    for index, member in enumerate(trainer.members):
        if member.run is not None:
            checkpoint = trainer.checkpoint({"spec": member.run.spec.digest}, index)
            if trainer.ranks.is_first:
                member.run.save(checkpoint)
    # a rank that ends may take the others with it, so none does before all is saved
    trainer.ranks.wait()


@contextmanager
def in_mode(trainer: PackTrainer, *, training: bool) -> Iterator[None]:
    """Dropout on while training, off while evaluating, which leaves the random state as it was."""
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
