"""Whole updates as CUDA graphs: recorded once, their losses compiled, and then replayed."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Generators = Sequence[torch.Generator]
WARMUP_UPDATES = 3
MOST_PHASES = 200
"""Compiled by one process; the compiler's own limit is 8 for any one function."""


class RecordedUpdate:
    """An update (`training.loop.update.Update`) that a GPU replays as a whole.

    Recording leaves model, optimisers, generators and metrics as they were. Samples are drawn
    outside of the recording, beside the update before, and copied to where it reads them.
    """

    def __init__(
        self, update: Any, model: nn.Module, generators: Generators, *, compiled: bool
    ) -> None:
        self._batches, self._device = update.batches, generators[0].device
        before = _Snapshot(model, update.optimizers, generators)
        self._drawn = tuple(part.clone() for part in update.batches.draw())
        # to the compiler all phases are one function, which it would give up on at the ninth
        with torch._dynamo.config.patch(recompile_limit=MOST_PHASES):
            if compiled:
                compile_losses(update, update.batches.gather(*self._drawn))
            self._warm_up(update)
            self._graph = torch.cuda.CUDAGraph()
            if not self._drawn:
                # a generator that is used within is set before every replay
                for generator in generators:
                    self._graph.register_generator_state(generator)
            # older recordings among garbage: to give them back while one is made would spoil it
            gc.collect()
            with torch.cuda.graph(self._graph):
                update(*self._drawn)
        for optimizer in update.optimizers.values():
            optimizer.settle()
        before.restore()
        update.metrics.reset()
        self._drawing = torch.cuda.Stream(self._device)

    def __call__(self) -> None:
        """Draw while the update before is computed, and replay."""
        with torch.cuda.stream(self._drawing):
            drawn = self._batches.draw()
        now = torch.cuda.current_stream()
        now.wait_stream(self._drawing)
        for target, part in zip(self._drawn, drawn, strict=True):
            target.copy_(part)
            part.record_stream(now)
        self._graph.replay()

    def _warm_up(self, update: Any) -> None:
        aside = torch.cuda.Stream(self._device)
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARMUP_UPDATES):
                update(*self._drawn)
        torch.cuda.current_stream().wait_stream(aside)


def compile_losses(update: Any, batch: Any) -> None:
    """Compile the losses of every phase that can be: some compilers fail on some of them."""
    for phase in update.phases:
        plain = update.losses[phase.name]
        update.losses[phase.name] = compiled = torch.compile(plain, dynamic=False)
        try:
            with warnings.catch_warnings():
                # tokens, heads and likelihoods are float32 on purpose
                warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
                losses, *_ = compiled(type(batch), dict(vars(batch)))
                torch.autograd.grad(torch.stack(list(losses.values())).sum(), phase.parameters)
        except Exception as error:  # whatever a compiler raises, training can do without it
            update.losses[phase.name] = plain
            reason = f"{type(error).__name__}: {_reason(error)}"
            message = f"losses of {phase.name} are not compiled ({reason}): training is slower"
            warnings.warn(message, stacklevel=5)


def _reason(error: Exception) -> str:
    """The line of a report that says most: the last that names an error, or the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line]
    return (named[-1:] or lines[:1] or ["no reason given"])[0]


class _Snapshot:
    """Weights, averages and random states, to be brought back after warming up."""

    def __init__(
        self, model: nn.Module, optimizers: Mapping[str, Any], generators: Generators
    ) -> None:
        self._model, self._optimizers, self._generators = model, optimizers, generators
        self._weights = {name: value.clone() for name, value in model.state_dict().items()}
        self._states = {name: _copied(optimizer.state) for name, optimizer in optimizers.items()}
        self._random = [generator.get_state() for generator in generators]
        self._dropout = torch.cuda.get_rng_state(generators[0].device)

    @torch.no_grad()
    def restore(self) -> None:
        """In place: a graph remembers where everything lies."""
        for name, value in self._model.state_dict().items():
            value.copy_(self._weights[name])
        for name, optimizer in self._optimizers.items():
            for owner, state in optimizer.state.items():
                for key, value in state.items():
                    before = self._states[name].get(owner, {}).get(key)
                    value.zero_() if before is None else value.copy_(before)
        for generator, random in zip(self._generators, self._random, strict=True):
            generator.set_state(random)
        torch.cuda.set_rng_state(self._dropout, self._generators[0].device)


def _copied(states: Mapping[Any, Mapping[str, Tensor]]) -> dict[Any, dict[str, Tensor]]:
    clones = {}
    for parameter, state in states.items():
        clones[parameter] = {key: value.clone() for key, value in state.items()}
    return clones
