"""The training loop, shared by all agents: it owns backward, clipping, the step, checkpoints and metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saformer.agents.agent import Agent, Phase, Sampler
from saformer.runs.checkpoint import Checkpoint
from saformer.runs.run import Run
from saformer.training.config import FitConfig
from saformer.training.interrupt import Interrupt
from saformer.training.update import Update, set_training_dtype

Metrics = dict[str, float]
AHEAD = 50
"""Updates that a GPU is given at once; Ctrl-C is heard after them."""


class NonFiniteLossError(RuntimeError):
    """Training diverged; the state before the bad update was saved."""


class InterruptedTrainingError(RuntimeError):
    """The user asked to stop; everything was saved."""


@dataclass(frozen=True)
class Observer:
    """What a caller may want to hear of while training goes on."""

    progress: Callable[[int, Metrics], None] = lambda update, metrics: None
    """called after every update with the latest metrics"""
    evaluate: Callable[[Agent], dict[str, Any]] | None = None
    """called every `evaluate_every` updates; its answer becomes a row of metrics"""
    row: Callable[[dict[str, Any]], None] = lambda row: None
    """called with each row of metrics, as it is written"""


class Trainer:
    """All that changes while training: weights, optimisers, random states, and how far it has come.

    Implements: Algorithm 2
    """

    def __init__(self, agent: Agent, sampler: Sampler, config: FitConfig, *, seed: int) -> None:
        self.agent, self.sampler, self.config = agent, sampler, config
        self.update = 0
        self.seconds = 0.0
        self.device = next(agent.model.parameters()).device
        self.generator = torch.Generator(self.device).manual_seed(seed)
        # Two streams from one seed: windows have a generator of their own, dropout uses torch's.
        torch.manual_seed(seed)
        set_training_dtype(agent.model, config.precision, self.device)
        self.optimizers = {phase.name: optimizer_of(phase, config, self.device) for phase in agent.phases}
        self._ahead = AHEAD if self.device.type == "cuda" else 1
        self._updates_: Update | None = None

    @property
    def _updates(self) -> Update:
        """Made when it is first needed: on a GPU it records where everything lies."""
        if self._updates_ is None:
            self._updates_ = Update(
                self.agent,
                self.optimizers,
                lambda: self.sampler.sample(self.config.batch_size, self.generator),
                [self.generator],
                gradient_clip=self.config.gradient_clip,
                compiled=self.config.compile == "auto",
            )
        return self._updates_

    def step(self) -> Metrics:
        """One update of every phase. Raises NonFiniteLossError before anything is changed."""
        return self.advance(1)[1]

    def advance(self, most: int) -> tuple[int, Metrics]:
        """Some updates, at most `most`: how many there were, and the means of what they measured.

        A GPU is given several at once, so that it never waits. Raises NonFiniteLossError; the state is then what it
        was before the bad update.
        """
        rates = [self.config.learning_rate_at(self.update + ahead) for ahead in range(min(most, self._ahead))]
        found = self._updates.run(rates)
        self.update += found.num_updates
        if found.bad:
            raise NonFiniteLossError(f"training is not finite at update {self.update}: {', '.join(found.bad)}")
        means = {name: values[0] for name, values in found.means.items()}
        return found.num_updates, {"learning_rate": sum(rates) / len(rates), **means}

    def checkpoint(self, facts: dict[str, Any]) -> Checkpoint:
        """Everything needed to go on as if nothing had happened."""
        groups = {"model": dict(self.agent.model.state_dict())}
        for name, optimizer in self.optimizers.items():
            groups[f"optimizer.{name}"] = _optimizer_tensors(optimizer)
        groups["random"] = {"windows": self.generator.get_state(), "torch": torch.get_rng_state()}
        if self.device.type == "cuda":
            groups["random"]["cuda"] = torch.cuda.get_rng_state(self.device)
        return Checkpoint(groups, {**facts, "update": self.update, "seconds": self.seconds})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        self.agent.model.load_state_dict(checkpoint.groups["model"])
        for name, optimizer in self.optimizers.items():
            # before the first update there is no state, and so no group of that name
            _restore_optimizer(optimizer, checkpoint.groups.get(f"optimizer.{name}", {}))
        random = checkpoint.groups["random"]
        self.generator.set_state(random["windows"])
        torch.set_rng_state(random["torch"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(random["cuda"], self.device)
        self.update, self.seconds = checkpoint.facts["update"], checkpoint.facts["seconds"]
        self._updates_ = None


def optimizer_of(phase: Phase, config: FitConfig, device: torch.device) -> torch.optim.AdamW:
    """AdamW; on a GPU in one kernel, with a learning rate that a recorded update can read."""
    on_gpu, rate = device.type == "cuda", phase.learning_rate or config.learning_rate
    return torch.optim.AdamW(
        phase.parameters,
        lr=torch.tensor(rate, device=device) if on_gpu else rate,
        weight_decay=config.weight_decay if phase.weight_decay is None else phase.weight_decay,
        betas=(0.9, 0.999),
        fused=on_gpu,
        capturable=on_gpu,
    )


def fit(
    agent: Agent,
    sampler: Sampler,
    config: FitConfig,
    *,
    seed: int = 0,
    run: Run | None = None,
    resume: bool = False,
    observer: Observer | None = None,
) -> Agent:
    """Train until `config.updates`; with a run, keep checkpoints and metrics in it, and go on from there on `resume`.

    Ctrl-C saves first and raises `InterruptedTrainingError`; a loss that is not finite, `NonFiniteLossError`.
    """
    trainer = Trainer(agent, sampler, config, seed=seed)
    if resume:
        assert run is not None, "resuming needs a run"
        trainer.restore(run.load())
        run.rewind_metrics(trainer.update)
    elif run is not None:
        _save(trainer, run)
    with Interrupt() as interrupt, _mode(agent, training=True):
        try:
            _loop(trainer, run, observer or Observer(), interrupt)
        except NonFiniteLossError as error:
            if run is not None:
                _save(trainer, run)
                raise NonFiniteLossError(f"{error}. The state before it is saved in {run.path}") from None
            raise
    if run is not None:
        run.mark_done({"updates": trainer.update, "seconds": round(trainer.seconds, 1)})
    return agent


def _loop(trainer: Trainer, run: Run | None, observer: Observer, interrupt: Interrupt) -> None:
    config, report = trainer.config, _Report(trainer.update)
    while trainer.update < config.updates:
        began = time.perf_counter()
        count, metrics = trainer.advance(_until_next_event(trainer.update, config))
        trainer.seconds += time.perf_counter() - began
        report.add(metrics, count)
        observer.progress(trainer.update, metrics)
        last = trainer.update == config.updates
        if last or trainer.update % config.report_every == 0:
            _write(run, observer, report.row(trainer.update, trainer.seconds))
        if observer.evaluate and config.evaluate_every and (last or trainer.update % config.evaluate_every == 0):
            with _mode(trainer.agent, training=False):
                found = observer.evaluate(trainer.agent)
            _write(run, observer, {"update": trainer.update, "evaluation": found})
        stopping = interrupt.requested and not last
        if run is not None and (last or stopping or trainer.update % config.checkpoint_every == 0):
            _save(trainer, run)
        if stopping:
            where = f"; saved in {run.path}" if run is not None else ""
            raise InterruptedTrainingError(f"stopped after update {trainer.update} of {config.updates}{where}")


def _until_next_event(update: int, config: FitConfig) -> int:
    """Updates until something is to be reported, evaluated or saved, or training ends."""
    periods = (config.report_every, config.checkpoint_every, config.evaluate_every)
    return min([config.updates - update, *(period - update % period for period in periods if period)])


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


def _write(run: Run | None, observer: Observer, row: dict[str, Any]) -> None:
    if run is not None:
        run.append_metrics(row)
    observer.row(row)


def _save(trainer: Trainer, run: Run) -> None:
    run.save(trainer.checkpoint({"spec": run.spec.digest}))


@contextmanager
def _mode(agent: Agent, *, training: bool) -> Iterator[None]:
    """Dropout on while training and off while evaluating; a caller's random state is not disturbed by evaluating."""
    before, state = agent.model.training, torch.get_rng_state()
    agent.model.train(training)
    try:
        yield
    finally:
        agent.model.train(before)
        if not training:
            torch.set_rng_state(state)


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimizer.state_dict()["state"]
    return {f"{index}.{name}": value for index, entry in state.items() for name, value in entry.items()}


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
