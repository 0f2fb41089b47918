"""Functions of tensors that a GPU replays as one CUDA graph, rather than being told every operation
anew."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Any]
_second_stream = cache(torch.cuda.Stream)


class Recorder:
    """Records functions `f(place, *rows)` when they are first called on a GPU, and replays them; a
    CPU calls them.

    `rows` are tensors with a row for each lane; `place` holds tensors that stay where they are and
    are read there. Recordings are made for `capacity` lanes and its halves and serve fewer lanes
    too, so that few of them do. Functions must change nothing and never wait for the GPU: where one
    does, all are called plainly, with a warning.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._capacity, self._records = capacity, device.type == "cuda"
        self._memory = (
            torch.cuda.graph_pool_handle() if self._records else None
        )  # shared: replays take turns
        if self._records:
            # older recordings among garbage: to give them back while one is made would spoil it
            gc.collect()

    def recorded(self, function: Function, *, trimmed: bool = True) -> Function:
        """The same function. A GPU's next call overwrites its results; untrimmed, they have the
        recording's rows."""
        recordings: dict[tuple[int, int], tuple[tuple[Tensor, ...], Function]] = {}

        def call(place: Any, *rows: Tensor) -> Any:
            if not self._records:
                return function(place, *rows)
            key = (id(place), _room_for(len(rows[0]), self._capacity))
            if key not in recordings:
                inputs = tuple(row.new_zeros(key[1], *row.shape[1:]) for row in rows)
                recordings[key] = inputs, self._record(lambda: function(place, *inputs))
            (inputs, replay), whole = recordings[key], len(rows[0]) == key[1]
            for kept, row in zip(inputs, rows, strict=True):
                (kept if whole else kept[: len(row)]).copy_(row)
            results = replay()
            return (
                results
                if whole or not trimmed
                else over_tensors(lambda kept: kept[: len(rows[0])], results)
            )

        return call

    def _record(self, play: Function) -> Function:
        """What replays it, with results in one place; if that fails, what plays it."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(
            aside
        ):  # libraries set themselves up when first called, which cannot be recorded
            play()
        torch.cuda.current_stream().wait_stream(aside)
        graph, stream = (
            torch.cuda.CUDAGraph(),
            torch.cuda.stream(torch.cuda.current_stream()),
        )  # to come back to
        try:
            with (
                stream,
                torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"),
            ):
                results = play()
        except RuntimeError as error:
            why = next(iter(str(error).splitlines()), "no reason given")
            warnings.warn(
                f"decisions are not recorded ({type(error).__name__}: {why}): they are slower",
                stacklevel=6,
            )
            self._records = False
            return play

        def replay() -> Any:
            graph.replay()
            return results

        return replay


@contextmanager
def beside(device: torch.device) -> Iterator[Callable[[], None]]:
    """What happens within may, on a GPU, happen beside what comes after it, until the yielded
    function is called."""
    if device.type != "cuda":
        yield lambda: None
        return
    stream, main = _second_stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(main)
    with torch.cuda.stream(stream):
        yield lambda: main.wait_stream(stream)


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """The same there. Nobody waits for a GPU: on its way is a copy, which a caller's next state
    cannot overwrite."""
    goes = device.type == "cuda" and not (tensor.is_cuda or tensor.is_pinned())
    return tensor.pin_memory().to(device, non_blocking=True) if goes else tensor.to(device)


def over_tensors(function: Callable[..., Tensor], *parts: Any) -> Any:
    """Apply a function to the tensors of equally built dataclasses and tuples, one of each; None
    stays None."""
    first = parts[0]
    if first is None or isinstance(first, Tensor):
        return None if first is None else function(*parts)
    if isinstance(first, tuple):
        return tuple(over_tensors(function, *members) for members in zip(*parts, strict=True))
    names = [field.name for field in fields(first)]
    return type(first)(
        *(over_tensors(function, *(getattr(part, name) for part in parts)) for name in names)
    )


def _room_for(num_lanes: int, capacity: int) -> int:
    """The smallest of capacity, capacity / 2, capacity / 4, ... (rounded up) that holds so many
    lanes."""
    while capacity > 1 and (capacity + 1) // 2 >= num_lanes:
        capacity = (capacity + 1) // 2
    return capacity
