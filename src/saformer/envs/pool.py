"""Worker processes that step environments, and who steps how many.

They are programs of their own rather than forks, so they can be started beside CUDA and never run the caller's script
again. Values travel in an unnamed block of memory that they inherit, which is gone with the last process that holds it.
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
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Literal, Protocol

import gymnasium

from saformer.envs.costed import Costed
from saformer.envs.lanes import Columns, Shape, Share, Source
from saformer.envs.worker import DONE, STEP

Workers = int | Literal["auto"]
FEWEST_STEPS = 20_000
"""Below that many steps in all, starting processes takes longer than it saves."""
FEWEST_LANES = 2
"""Of a worker: with one each, waking it up costs about as much as it saves."""
PATIENCE = 2.0
"""Seconds that a worker has to end by itself."""


class WorkerError(RuntimeError):
    """A worker process died, or its environment failed."""


class Stepper(Protocol):
    """Steps the active lanes: their actions lie in `columns`, and so does what came of them."""

    columns: Columns

    def start_step(self) -> None:
        """Have active lanes stepped; may return before they are."""

    def finish_step(self) -> None:
        """Wait until they are."""


class Here:
    """Steps environments in this process."""

    def __init__(self, environments: Sequence[Costed], seeds: Sequence[int]) -> None:
        self._share = Share(environments, range(len(seeds)), seeds)
        shape = Shape(len(seeds), *self._share.widths)
        self.columns = Columns.over(bytearray(shape.num_bytes), shape)
        self._share.begin(self.columns)

    def start_step(self) -> None:
        """Step active lanes."""
        self._share.step()

    def finish_step(self) -> None:
        """They are stepped already."""


class Pool:
    """Some worker processes. They are kept between rollouts, whatever the environment."""

    columns: Columns

    def __init__(self, num_workers: int) -> None:
        self._memory = _unnamed_memory()
        self._workers: list[tuple[subprocess.Popen[bytes], Connection]] = []
        try:
            for _ in range(num_workers):
                self._workers.append(_start(self._memory))
        except BaseException:
            self.kill()
            raise

    def __len__(self) -> int:
        return len(self._workers)

    def make(self, source: str, seeds: Sequence[int]) -> Shape:
        """Have environments made, one for each seed; lanes are dealt out in turn."""
        lanes = [list(range(worker, len(seeds), len(self))) for worker in range(len(self))]
        common = {"source": source, "folder": os.getcwd()}
        for worker, mine in enumerate(lanes):
            part = {**common, "lanes": mine, "seeds": [seeds[lane] for lane in mine]}
            self._send(worker, json.dumps({"make": part}).encode())
        return Shape(len(seeds), *json.loads(self._receive()[0])["widths"])

    def begin(self, shape: Shape) -> None:
        """Reset the environments."""
        os.ftruncate(self._memory, max(shape.num_bytes, os.fstat(self._memory).st_size))
        self.columns = Columns.over(mmap.mmap(self._memory, shape.num_bytes), shape)
        for worker in range(len(self)):
            self._send(worker, json.dumps({"begin": asdict(shape)}).encode())
        self._receive()

    def start_step(self) -> None:
        """Have active lanes stepped; returns at once."""
        for worker in range(len(self)):
            self._send(worker, STEP)

    def finish_step(self) -> None:
        """Wait until they are."""
        self._receive()

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

    def _send(self, worker: int, message: bytes) -> None:
        try:
            self._workers[worker][1].send_bytes(message)
        except ConnectionError:
            raise self._death(worker) from None

    def _receive(self) -> list[bytes]:
        """The answer of every worker."""
        answers = []
        for worker, (_, connection) in enumerate(self._workers):
            try:
                answer = connection.recv_bytes()
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
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return WorkerError(
            f"process {worker} of {len(self)} that step environments {how}; if memory ran out, take fewer, and "
            "workers=0 steps environments in this process"
        )


def _failure(kind: str, message: str, traceback: str) -> Exception:
    """As it was raised over there."""
    error = ValueError(message) if kind == "ValueError" else WorkerError(f"an environment raised {kind}: {message}")
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


@contextmanager
def borrowed(num_workers: int) -> Iterator[Pool]:
    """A pool of this size: one that was used before, if there is one. After a failure it is not used again."""
    pool = next((pool for pool in _idle if len(pool) == num_workers), None)
    if pool is None:
        pool = Pool(num_workers)
    else:
        _idle.remove(pool)
    try:
        yield pool
    except BaseException:
        pool.kill()
        raise
    _idle.append(pool)


@atexit.register
def close_idle() -> None:
    """End the workers that wait for another rollout."""
    while _idle:
        _idle.pop().close()


os.register_at_fork(after_in_child=_idle.clear)


def pick_workers(workers: Workers, *, num_lanes: int, num_steps: int) -> int:
    """How many processes step this many lanes, `num_steps` in all; 0 means this one."""
    if workers == "auto":
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        enough = cores > 1 and num_steps >= FEWEST_STEPS and hasattr(os, "fork")
        return min(cores, num_lanes // FEWEST_LANES) if enough else 0
    if not isinstance(workers, int) or workers < 0:
        raise ValueError(f'workers must be "auto" or a number of processes, 0 for none beside this, got {workers!r}')
    return min(workers, num_lanes)


@contextmanager
def environments(make: Callable[[], Costed], seeds: Sequence[int], num_workers: int) -> Iterator[Stepper]:
    """Environments that have been reset with these seeds, one a lane, and who steps them."""
    text = _told(make) if num_workers else None
    if text is None:
        here = [make() for _ in seeds]
        try:
            yield Here(here, seeds)
        finally:
            for environment in here:
                environment.close()
        return
    with borrowed(num_workers) as pool:
        pool.begin(pool.make(text, seeds))
        yield pool


def _told(make: Callable[[], Costed]) -> str | None:
    """What workers are told to make, or None and a line where it cannot be told."""
    try:
        if not isinstance(make, Source):
            raise ValueError("they were given as a function")
        return make.text()
    except (ValueError, TypeError, gymnasium.error.Error) as error:
        warnings.warn(f"environments are stepped in this process: {error}; workers=0 says nothing", stacklevel=2)
        return None
