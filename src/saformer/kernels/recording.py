"""Decisions and whole updates that a GPU replays as one CUDA graph, not operation by operation."""

import gc
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from saformer.core.policy import over_tensors

Function = Callable[..., Any]
Generators = Sequence[torch.Generator]
Optimizers = Mapping[str, Any]
WARMUP_UPDATES = 3
MOST_PHASES = 200  # compiled by one process; the compiler's own limit is 8 for any one function
_second_stream = cache(torch.cuda.Stream)


class Recorder:
    """Records functions `f(fixed, *rows)` when they are first called on a GPU, and replays them; a
    CPU calls them.

    `rows` are tensors with a row for each lane; `fixed` holds tensors that stay where they are and
    are read there. Recordings are made for `capacity` lanes and its halves and serve fewer lanes
    too, so that few are needed. Functions must change nothing and never wait for the GPU: where one
    does, all are called plainly, with a warning.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._capacity, self._device = capacity, device
        self._records = device.type == "cuda"
        # one pool for all recordings: replays take turns
        self._pool = torch.cuda.graph_pool_handle() if self._records else None
        if self._records:
            # older recordings among garbage: to give them back while one is made would spoil it
            gc.collect()

    def recorded(self, function: Function, *, trimmed: bool = True) -> Function:
        """The same function. A GPU's next call overwrites its results; untrimmed, they have the
        recording's rows."""
        recordings: dict[tuple[int, int], tuple[tuple[Tensor, ...], Function]] = {}

        def call(fixed: Any, *rows: Tensor) -> Any:
            if not self._records:
                return function(fixed, *rows)
            num_rows = len(rows[0])
            key = (id(fixed), _room_for(num_rows, self._capacity))
            if key not in recordings:
                inputs = tuple(row.new_zeros(key[1], *row.shape[1:]) for row in rows)
                recordings[key] = inputs, self._record(lambda: function(fixed, *inputs))
            (inputs, replay), is_full = recordings[key], num_rows == key[1]
            for buffer, row in zip(inputs, rows, strict=True):
                (buffer if is_full else buffer[:num_rows]).copy_(row)
            results = replay()
            if is_full or not trimmed:
                return results
            return over_tensors(lambda result: result[:num_rows], results)

        return call

    def both(self, first: Function, second: Function) -> tuple[Any, Any]:
        """The results of two independent functions; a GPU runs the first on its own stream."""
        if self._device.type != "cuda":
            return first(), second()
        stream, main = _second_stream(self._device), torch.cuda.current_stream(self._device)
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            results = first()
        others = second()
        main.wait_stream(stream)
        return results, others

    @staticmethod
    def second(first: Function, second: Function) -> tuple[Any, Any]:
        """As `both`, without the first."""
        return (None, None), second()

    def _record(self, play: Function) -> Function:
        """A function that replays it, with results in one place; if recording fails, `play`."""
        _warm_up(play, self._device)
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.stream(torch.cuda.current_stream())  # to come back to
        capture = torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local")
        try:
            with stream, capture:
                results = play()
        except RuntimeError as error:
            why = next(iter(str(error).splitlines()), "no reason given")
            message = f"decisions are not recorded ({type(error).__name__}: {why}): they are slower"
            warnings.warn(message, stacklevel=6)
            self._records = False
            return play

        def replay() -> Any:
            graph.replay()
            return results

        return replay


def _room_for(num_lanes: int, capacity: int) -> int:
    """The smallest of capacity, its half, quarter, ... (rounded up) that holds so many lanes."""
    while capacity > 1 and (capacity + 1) // 2 >= num_lanes:
        capacity = (capacity + 1) // 2
    return capacity


class RecordedUpdate:
    """An update (`training.loop.update.Update`) that a GPU replays as a whole.
    Recording leaves model, optimisers, generators and metrics as they were. Samples are drawn
    outside of the recording, beside the update before, and copied to where it reads them."""

    def __init__(self, update: Any, model: nn.Module, generators: Generators, *,
                 compiled: bool) -> None:  # fmt: skip
        self._batches, self._device = update.batches, generators[0].device
        # to the compiler all phases are one function, which it would give up on at the ninth
        limit = torch._dynamo.config.patch(recompile_limit=MOST_PHASES)
        with _unchanged(model, update.optimizers, generators), limit:
            self._drawn = tuple(part.clone() for part in update.batches.draw())
            if compiled:
                compile_losses(update, update.batches.gather(*self._drawn))
            _warm_up(lambda: update(*self._drawn), self._device, WARMUP_UPDATES)
            self._graph = torch.cuda.CUDAGraph()
            # a generator that is used within is set before every replay
            for generator in () if self._drawn else generators:
                self._graph.register_generator_state(generator)
            gc.collect()  # as in `Recorder`
            with torch.cuda.graph(self._graph):
                update(*self._drawn)
            for optimizer in update.optimizers.values():
                optimizer.settle()
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


def replayed(play: Function, generator: torch.Generator) -> Function:
    """A function that does the same again with numbers drawn anew: on a GPU, as one recording,
    which begins with the warm-up's plays."""
    if generator.device.type != "cuda":
        return play
    _warm_up(play, generator.device, WARMUP_UPDATES)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        play()
    return graph.replay


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
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            named = [line for line in lines if "Error" in line]  # the last of them says most
            line = (named or lines[:1] or ["no reason given"])[-1]
            reason = f"{type(error).__name__}: {line}"
            message = f"losses of {phase.name} are not compiled ({reason}): training is slower"
            warnings.warn(message, stacklevel=5)


def _warm_up(play: Function, device: torch.device, times: int = 1) -> None:
    """Aside: libraries set themselves up when first called, which cannot be recorded."""
    aside, main = torch.cuda.Stream(device), torch.cuda.current_stream()
    aside.wait_stream(main)
    with torch.cuda.stream(aside):
        for _ in range(times):
            play()
    main.wait_stream(aside)


@contextmanager
def _unchanged(model: nn.Module, optimizers: Optimizers, generators: Generators) -> Iterator[None]:
    """Bring weights, averages and random states back, in place: a graph knows where all lies."""

    def tensors() -> Iterator[Tensor]:
        states = [state for each in optimizers.values() for state in each.state.values()]
        return itertools.chain(model.parameters(), model.buffers(), *map(dict.values, states))

    before = {tensor: tensor.detach().clone() for tensor in tensors()}
    random = [generator.get_state() for generator in generators]
    dropout = torch.cuda.get_rng_state(generators[0].device)
    yield
    with torch.no_grad():
        for tensor in tensors():  # an optimiser may have had none before its first step
            tensor.copy_(before[tensor]) if tensor in before else tensor.zero_()
    for generator, state in zip(generators, random, strict=True):
        generator.set_state(state)
    torch.cuda.set_rng_state(dropout, generators[0].device)
