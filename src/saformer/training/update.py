"""One update of every phase, of one model or of a pack, on a CPU or without leaving a GPU."""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from saformer.agents.agent import MovingAverage, Phase
from saformer.engine.distributed import Ranks
from saformer.runs.metrics import GRADIENT_NORM, WATCHED
from saformer.training.losses import losses_of, over_ranks, shares_of
from saformer.training.optimizers import Optimizer, have_triton
from saformer.training.snapshot import Snapshot

WARMUP_UPDATES = 3
MOST_PHASES = 200
"""Compiled by one process; the compiler's own limit is 8 for any one function."""


class Learner(Protocol):
    """What an update needs of an agent, or of a pack of them."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What is optimised, in order."""

    @property
    def averages(self) -> tuple[MovingAverage, ...]:
        """What follows it."""

    @property
    def model(self) -> nn.Module:
        """Everything that changes."""

    @property
    def num_models(self) -> int:
        """M: windows of all models lie in one batch, parameters of several have a leading axis
        M."""


@dataclass(frozen=True)
class Batches:
    """What updates learn from, in two steps."""

    gather: Callable[..., Any]
    """the batch of what was drawn"""
    draw: Callable[[], tuple[Tensor, ...]] = tuple
    """which samples: on a GPU beside the update before, and no part of what is recorded; nothing if
    `gather` draws"""


@dataclass(frozen=True)
class Findings:
    """What some updates measured."""

    num_updates: int
    """good ones"""
    means: dict[str, list[float]]
    """per model"""
    bad: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """what was not finite in the update after the last good one, by the number of the model"""


class Update:
    """Losses, gradients, clipping and the optimisers' steps; what was measured is added up where it
    was computed.

    From the first loss or gradient that is not finite on, no update changes anything. On a GPU
    whole updates are replayed, phases run beside each other, and the host waits for nothing but
    `run`'s answer. Several ranks each have a share of the batch, and find the losses and gradients
    of all of it.
    """

    def __init__(
        self,
        learner: Learner,
        optimizers: Mapping[str, Optimizer],
        batches: Batches,
        generators: Sequence[torch.Generator],
        *,
        compile: Literal["auto", "record", "off"],
        ranks: Ranks | None = None,
    ) -> None:
        self._ranks = ranks or Ranks()
        self._learner, self._phases, self._optimizers = learner, learner.phases, optimizers
        self._batches, self._generators = batches, tuple(generators)
        self._device = self._generators[0].device
        self._on_gpu, self._has_kernels = self._device.type == "cuda", have_triton(self._device)
        self._streams = (
            [torch.cuda.Stream(self._device) for _ in self._phases[1:]] if self._on_gpu else []
        )
        self._losses = {
            phase.name: losses_of(phase, learner.num_models, counted=self._ranks.are_several)
            for phase in self._phases
        }
        self._held: tuple[Tensor, ...] = ()  # where a recorded update looks for what was drawn
        self._rates: dict[str, float] = {}
        self._names: list[str] = []
        self._sums, self._odd = (
            torch.zeros(0, device=self._device),
            torch.zeros(0, device=self._device),
        )
        self._num_good, self._bad = (torch.zeros((), device=self._device) for _ in range(2))
        self._replay: Callable[[], None] = self._once
        if self._on_gpu:
            for optimizer in optimizers.values():
                optimizer.found_inf = self._bad
            if compile != "off":
                # every phase of every agent is the same function to the compiler, which would give
                # up at the ninth
                with torch._dynamo.config.patch(recompile_limit=MOST_PHASES):
                    self._replay = self._captured(compiled=compile == "auto")

    def run(self, learning_rates: Sequence[float]) -> Findings:
        """One update for each learning rate."""
        for rate in learning_rates:
            for phase in self._phases:
                self._set_learning_rate(phase.name, phase.learning_rate or rate)
            self._replay()
        found = torch.stack(
            [self._sums, self._odd]
        ).tolist()  # the only time that the host waits for a GPU
        count, bad = round(self._num_good.item()), self._bad.item() > 0
        means = {
            name: [total / max(1, count) for total in row]
            for name, row in zip(self._names, found[0], strict=True)
        }
        self._forget()
        return Findings(count, means, _not_finite(self._names, found[1]) if bad else {})

    def _set_learning_rate(self, name: str, rate: float) -> None:
        if self._rates.get(name) == rate:
            return
        self._rates[name] = rate
        for group in self._optimizers[name].param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _once(self) -> None:
        batch = self._batches.gather(*(self._held or self._batches.draw()))
        metrics: dict[str, Tensor] = {}
        for phase, stream in self._side_by_side():
            with stream:
                metrics |= {
                    f"{phase.name}/{name}": value
                    for name, value in self._differentiate(phase, batch).items()
                }
        self._book(metrics)
        if self._on_gpu or not self._bad:
            for phase, stream in self._side_by_side():
                with stream:
                    self._optimizers[phase.name].step()
            for rate, averages in _by_rate(self._learner.averages).items():
                _follow(*averages, rate * (1 - self._bad) if self._on_gpu else rate)

    def _side_by_side(self) -> Iterator[tuple[Phase, AbstractContextManager[Any]]]:
        """Phases and where to run them: on a GPU each but the first has a stream of its own, and
        all begin together."""
        if self._on_gpu:
            for stream in self._streams:  # before anything of the first phase is queued
                stream.wait_stream(torch.cuda.current_stream())
        yield self._phases[0], nullcontext()
        for place, phase in enumerate(self._phases[1:]):
            yield phase, torch.cuda.stream(self._streams[place]) if self._on_gpu else nullcontext()
        for stream in self._streams:
            torch.cuda.current_stream().wait_stream(stream)

    def _differentiate(self, phase: Phase, batch: Any) -> dict[str, Tensor]:
        """Give the phase's optimiser its gradients; losses and the norm before clipping, each
        [M]."""
        losses, watched, counts = self._losses[phase.name](type(batch), dict(vars(batch)))
        if self._ranks.are_several:
            shares = shares_of(counts, self._ranks)
            losses, watched = (
                {k: v * shares[k].to(v.dtype) for k, v in part.items()}
                for part in (losses, watched)
            )
        gradients = torch.autograd.grad(torch.stack(list(losses.values())).sum(), phase.parameters)
        if self._ranks.are_several:
            losses, watched, gradients = over_ranks(losses, watched, gradients, self._ranks)
        norm = self._optimizers[phase.name].take(gradients)
        seen = {WATCHED + name: value for name, value in watched.items()}
        found = {**losses, **seen, GRADIENT_NORM: norm}
        return {name: value.detach() for name, value in found.items()}

    @torch.no_grad()
    def _book(self, metrics: dict[str, Tensor]) -> None:
        values = torch.stack(list(metrics.values()))  # [metrics, M]
        if not self._names:
            self._names, self._sums, self._odd = (
                list(metrics),
                torch.zeros_like(values),
                torch.zeros_like(values),
            )
        if self._has_kernels:
            from saformer.kernels.metrics import add_metrics  # one launch, not seventeen

            add_metrics(values, self._sums, self._odd, self._num_good, self._bad)
            return
        was_bad = self._bad.clone()
        self._bad.copy_(torch.maximum(was_bad, (~torch.isfinite(values)).any().float()))
        self._sums.add_(torch.where(self._bad > 0, 0.0, values))
        self._odd.copy_(torch.where(was_bad > 0, self._odd, values))
        self._num_good.add_(1 - self._bad)

    def _forget(self) -> None:
        for kept in (self._sums, self._odd, self._num_good, self._bad):
            kept.zero_()

    def _captured(self, *, compiled: bool) -> Callable[[], None]:
        """Compile the losses, if asked to, and record the whole update; training goes on from where
        it was."""
        before = Snapshot(self._learner.model, self._optimizers, self._generators)
        self._held = tuple(part.clone() for part in self._batches.draw())
        if compiled:
            self._compile(self._batches.gather(*self._held))
        self._warm_up()
        graph = torch.cuda.CUDAGraph()
        if (
            not self._held
        ):  # a generator that is used within is set before every replay, one launch after the other
            for generator in self._generators:
                graph.register_generator_state(generator)
        # older recordings among garbage: to give them back while one is made would spoil it
        gc.collect()
        with torch.cuda.graph(graph):
            self._once()
        for optimizer in self._optimizers.values():
            optimizer.settle()
        before.restore()
        self._forget()
        aside = torch.cuda.Stream(self._device)

        def replay() -> None:
            self._deal(aside)
            graph.replay()

        return replay

    def _deal(self, aside: torch.cuda.Stream) -> None:
        """Draw for the next update while the one before it is computed, and put it where a recorded
        one looks."""
        with torch.cuda.stream(aside):
            drawn = self._batches.draw()
        now = torch.cuda.current_stream()
        now.wait_stream(aside)
        for place, part in zip(self._held, drawn, strict=True):
            place.copy_(part)
            part.record_stream(now)

    def _compile(self, batch: Any) -> None:
        """Compile the losses of every phase that can be: some versions of the compiler fail on some
        of them."""
        for phase in self._phases:
            plain = self._losses[phase.name]
            self._losses[phase.name] = torch.compile(plain, dynamic=False)
            try:
                with (
                    warnings.catch_warnings()
                ):  # tokens, heads and likelihoods are float32 on purpose
                    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
                    self._differentiate(phase, batch)
            except Exception as error:  # whatever a compiler raises, training can do without it
                self._losses[phase.name] = plain
                what = f"losses of {phase.name} are not compiled ({type(error).__name__}: {_reason(error)})"
                warnings.warn(f"{what}: training is slower", stacklevel=6)

    def _warm_up(self) -> None:
        aside = torch.cuda.Stream(self._device)
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARMUP_UPDATES):
                self._once()
        torch.cuda.current_stream().wait_stream(aside)


def _not_finite(names: Sequence[str], rows: list[list[float]]) -> dict[int, tuple[str, ...]]:
    """For each model that has any, the names of its values that are not finite."""
    found: dict[int, tuple[str, ...]] = {}
    for name, row in zip(names, rows, strict=True):
        for number, value in enumerate(row):
            if not math.isfinite(value):
                found[number] = (*found.get(number, ()), name)
    return found


def _reason(error: Exception) -> str:
    """The line of a compiler's report that says most: the last one that names an error, or else the
    first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next(
        (line for line in reversed(lines) if "Error" in line), next(iter(lines), "no reason given")
    )


def _by_rate(averages: Sequence[MovingAverage]) -> dict[float, tuple[list[Tensor], list[Tensor]]]:
    """All averages of a rate, and what they follow."""
    found: dict[float, tuple[list[Tensor], list[Tensor]]] = {}
    for part in averages:
        mine, followed = found.setdefault(part.rate, ([], []))
        mine += part.average
        followed += part.followed
    return found


@torch.no_grad()
def _follow(average: list[Tensor], followed: list[Tensor], rate: float | Tensor) -> None:
    if isinstance(rate, Tensor):  # which has no such function, on a GPU
        gaps = torch._foreach_sub(followed, average)
        torch._foreach_mul_(gaps, rate)
        torch._foreach_add_(average, gaps)
    else:
        torch._foreach_lerp_(average, followed, rate)
