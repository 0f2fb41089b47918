"""Functions of tensors that a GPU replays as one CUDA graph, not operation by operation."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from saformer.core.policy import over_tensors

Function = Callable[..., Any]
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
        """The results of two independent functions; on a GPU the first runs on a stream of its
        own."""
        if self._device.type != "cuda":
            return first(), second()
        stream, main = _second_stream(self._device), torch.cuda.current_stream(self._device)
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            results = first()
        others = second()
        main.wait_stream(stream)
        return results, others

    def _record(self, play: Function) -> Function:
        """A function that replays it, with results in one place; if recording fails, `play`."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        # libraries set themselves up when first called, which cannot be recorded
        with torch.cuda.stream(aside):
            play()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.stream(torch.cuda.current_stream())  # to come back to
        capture = torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local")
        try:
            with stream, capture:
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


def _room_for(num_lanes: int, capacity: int) -> int:
    """The smallest of capacity, capacity / 2, capacity / 4, ... (rounded up) that holds so many
    lanes."""
    while capacity > 1 and (capacity + 1) // 2 >= num_lanes:
        capacity = (capacity + 1) // 2
    return capacity
