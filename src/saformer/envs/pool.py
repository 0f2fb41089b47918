"""Worker processes that step environments.

They are programs of their own rather than forks, so they can be started beside CUDA and never run
the caller's script again. Values travel in an unnamed block of memory that they inherit, which is
gone with the last process that holds it.
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from saformer.envs.lanes import Columns, Shape
from saformer.envs.worker import DONE, STEP

POSSIBLE = os.name == "posix"
"""Whether processes can inherit what they are to share."""
PATIENCE = 2.0
"""Seconds that a worker has to end by itself."""


class WorkerError(RuntimeError):
    """A worker process died, or its environment failed."""


class Pool:
    """Some worker processes. They are kept between rollouts, whatever the environment."""

    columns: Columns

    def __init__(self, num_workers: int) -> None:
        self._memory = _unnamed_memory()
        self._workers: list[tuple[subprocess.Popen[bytes], Connection]] = []
        self._asked: list[int] = []
        try:
            for _ in range(num_workers):
                self._workers.append(_start(self._memory))
        except BaseException:
            self.kill()
            raise

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def is_alive(self) -> bool:
        """Whether no worker has died."""
        return all(process.poll() is None for process, _ in self._workers)

    def make(self, maker: str, seeds: Sequence[int]) -> Shape:
        """Have environments made, one for each seed; lanes are dealt out in turn."""
        lanes = [list(range(worker, len(seeds), len(self))) for worker in range(len(self))]
        common = {"maker": maker, "folder": os.getcwd(), "path": sys.path}
        for worker, mine in enumerate(lanes):
            part = {**common, "lanes": mine, "seeds": [seeds[lane] for lane in mine]}
            self._send(worker, json.dumps({"make": part}).encode())
        return Shape(len(seeds), *json.loads(self._receive(self._everybody)[0])["widths"])

    def begin(self, shape: Shape) -> None:
        """Have the environments reset."""
        os.ftruncate(self._memory, max(shape.num_bytes, os.fstat(self._memory).st_size))
        self.columns = Columns.over(mmap.mmap(self._memory, shape.num_bytes), shape)
        self._ask_everybody({"begin": asdict(shape)})

    def start_step(self) -> None:
        """Have active lanes stepped; returns at once. Workers whose lanes have all ended are left
        alone."""
        self._asked = np.unique(np.flatnonzero(self.columns.active) % len(self)).tolist()
        for worker in self._asked:
            self._send(worker, STEP)

    def finish_step(self) -> None:
        """Wait until they are."""
        self._receive(self._asked)

    def end(self) -> None:
        """Have the environments closed; the workers wait for others."""
        self._ask_everybody({"end": {}})

    def close(self) -> None:
        """End the workers in peace."""
        for _, connection in self._workers:
            connection.close()
        for process, _ in self._workers:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                break
        self.kill()

    def kill(self) -> None:
        """End the workers at once, whatever they are doing."""
        for process, connection in self._workers:
            connection.close()
            process.kill()
        for process, _ in self._workers:
            process.wait()
        self._workers = []
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    @property
    def _everybody(self) -> range:
        return range(len(self))

    def _ask_everybody(self, request: dict[str, Any]) -> None:
        for worker in self._everybody:
            self._send(worker, json.dumps(request).encode())
        self._receive(self._everybody)

    def _send(self, worker: int, message: bytes) -> None:
        try:
            self._workers[worker][1].send_bytes(message)
        except ConnectionError:
            raise self._death(worker) from None

    def _receive(self, workers: Iterable[int]) -> list[bytes]:
        """The answers of these workers."""
        answers = []
        for worker in workers:
            try:
                answer = self._workers[worker][1].recv_bytes()
            except (EOFError, ConnectionError):
                raise self._death(worker) from None
            if answer != DONE and "failed" in (found := json.loads(answer)):
                raise _failure(**found["failed"])
            answers.append(answer)
        return answers

    def _death(self, worker: int) -> WorkerError:
        try:
            code = self._workers[worker][0].wait(PATIENCE)
        except subprocess.TimeoutExpired:
            code = 0
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"ended with exit code {code}"
        )
        return WorkerError(
            f"a process that steps environments (worker {worker} of {len(self)}) {how}. If "
            "memory ran out, take fewer "
            "workers; workers=0 takes none"
        )


def _failure(kind: str, message: str, traceback: str) -> Exception:
    """As it was raised over there."""
    shown = (
        f"an environment raised {kind}: {message} (workers=0 steps environments in this process)"
    )
    error = ValueError(message) if kind == "ValueError" else WorkerError(shown)
    error.add_note(f"in a process that steps environments:\n{traceback}")
    return error


def _unnamed_memory() -> int:
    """A file descriptor of memory that has no name, so that nothing has to be cleaned up."""
    if sys.platform == "linux":
        return os.memfd_create("saformer")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _start(memory: int) -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = Pipe()
    path = os.pathsep.join(place or os.getcwd() for place in sys.path)
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "saformer.envs.worker", str(theirs.fileno()), str(memory)],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            pass_fds=(theirs.fileno(), memory),
            process_group=0,  # Ctrl-C is for us, who end them
        )
    finally:
        theirs.close()
    return process, ours


_idle: list[Pool] = []
_taking = threading.Lock()


@contextmanager
def borrowed(num_workers: int) -> Iterator[Pool]:
    """A pool of this size: one that was used before, if there is one. After a failure it is not
    used again."""
    pool = _taken(num_workers) or Pool(num_workers)
    try:
        yield pool
    except BaseException:
        pool.kill()
        raise
    _idle.append(pool)


def _taken(num_workers: int) -> Pool | None:
    """An idle pool of this size; if there is none, the others are ended, so that they do not add
    up."""
    with _taking:
        fitting = [pool for pool in _idle if len(pool) == num_workers and pool.is_alive]
        if fitting:
            _idle.remove(fitting[0])
            return fitting[0]
        close_idle()
        return None


@atexit.register
def close_idle() -> None:
    """End the workers that wait for another rollout."""
    while _idle:
        _idle.pop().close()


if POSSIBLE:
    os.register_at_fork(after_in_child=_idle.clear)  # they belong to the process that started them
