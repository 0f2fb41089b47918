"""Worker processes that step environments.

They are programs of their own rather than forks, so they can be started beside CUDA and never run
the caller's script again. Values travel in an unnamed block of memory that they inherit, which is
gone with the last process that holds it.
"""

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
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from saformer.envs.block import LaneRows, lane_dtype
from saformer.envs.worker import DONE, STEP

POSSIBLE = os.name == "posix"  # whether processes can inherit what they are to share
PATIENCE = 2.0  # seconds that a worker has to end by itself


class WorkerError(RuntimeError):
    """A worker process died, or its environment failed."""


class Pool:
    """Some worker processes. They serve one rollout after the other, whatever the environment."""

    lanes: LaneRows

    def __init__(self, num_workers: int) -> None:
        self._memory = _unnamed_memory()
        self._workers: list[tuple[subprocess.Popen[bytes], Connection]] = []
        self._stepping: list[int] = []
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
        return all(process.poll() is None for process, _ in self._workers)

    def begin(self, maker: str, seeds: Sequence[int]) -> None:
        """Have environments made and reset, one for each seed; workers get lanes in turn."""
        common = {"maker": maker, "folder": os.getcwd(), "path": sys.path}
        parts = [list(range(worker, len(seeds), len(self))) for worker in range(len(self))]
        shares = [{"lanes": part, "seeds": [seeds[lane] for lane in part]} for part in parts]
        answers = self._request({"make": {**common, **share}} for share in shares)
        dtype, size = lane_dtype(*json.loads(answers[0])["widths"]), len(seeds)
        num_bytes = size * dtype.itemsize
        os.ftruncate(self._memory, max(num_bytes, os.fstat(self._memory).st_size))
        self.lanes = np.ndarray(size, dtype, mmap.mmap(self._memory, num_bytes))
        self._request([{"begin": {"size": size}}] * len(self))

    def start_step(self) -> None:
        """Have active lanes stepped; returns at once, and leaves workers without any alone."""
        self._stepping = np.unique(np.flatnonzero(self.lanes["active"]) % len(self)).tolist()
        for worker in self._stepping:
            self._send(worker, STEP)

    def finish_step(self) -> None:
        self._receive(self._stepping)

    def end(self) -> None:
        """Have the environments closed; the workers wait for others."""
        self._request([{"end": {}}] * len(self))

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

    def _request(self, requests: Iterable[dict[str, Any]]) -> list[bytes]:
        """One request for each worker, and their answers."""
        for worker, request in enumerate(requests):
            self._send(worker, json.dumps(request).encode())
        return self._receive(range(len(self)))

    def _send(self, worker: int, message: bytes) -> None:
        try:
            self._workers[worker][1].send_bytes(message)
        except ConnectionError:
            raise self._death(worker) from None

    def _receive(self, workers: Iterable[int]) -> list[bytes]:
        answers = []
        for worker in workers:
            try:
                answer = self._workers[worker][1].recv_bytes()
            except (EOFError, ConnectionError):
                raise self._death(worker) from None
            if answer != DONE and "failed" in (content := json.loads(answer)):
                raise _failure(**content["failed"])
            answers.append(answer)
        return answers

    def _death(self, worker: int) -> WorkerError:
        try:
            code = self._workers[worker][0].wait(PATIENCE)
        except subprocess.TimeoutExpired:
            code = 0
        killed = f"was killed by {signal.Signals(-code).name}" if code < 0 else ""
        return WorkerError(
            f"a process that steps environments (worker {worker} of {len(self)}) "
            f"{killed or f'ended with exit code {code}'}. If memory ran out, take fewer workers; "
            "workers=0 takes none"
        )


def _failure(kind: str, message: str, traceback: str) -> Exception:
    remedy = "(workers=0 steps environments in this process)"
    error: Exception = WorkerError(f"an environment raised {kind}: {message} {remedy}")
    if kind == "ValueError":  # as it was raised over there
        error = ValueError(message)
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
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
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


_idle_pools: list[Pool] = []
_idle_pools_lock = threading.Lock()


@contextmanager
def borrowed(num_workers: int) -> Iterator[Pool]:
    """A pool of this size: an idle one, or a new one in place of all that are idle. After a failure
    it is not used again."""
    with _idle_pools_lock:
        fitting = [pool for pool in _idle_pools if len(pool) == num_workers and pool.is_alive]
        if fitting:
            _idle_pools.remove(fitting[0])
        else:
            close_idle()
    pool = fitting[0] if fitting else Pool(num_workers)
    try:
        yield pool
    except BaseException:
        pool.kill()
        raise
    _idle_pools.append(pool)


@atexit.register
def close_idle() -> None:
    """End the workers that wait for another rollout."""
    while _idle_pools:
        _idle_pools.pop().close()


if POSSIBLE:  # pools belong to the process that started them
    os.register_at_fork(after_in_child=_idle_pools.clear)
