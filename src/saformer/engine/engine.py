"""Many independent jobs, wherever they are run."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")
GRACE_SECONDS = 30  # what a job has to save its work in when its caller is gone


@dataclass(frozen=True)
class JobOutcome(Generic[Job, Result]):
    """What became of one job: a result, or why there is none."""

    job: Job
    result: Result | None = None
    error: str | None = None


class Engine(Protocol):
    """Runs jobs. Other processes can import the function; jobs and results are plain values."""

    name: str
    jobs_at_once: int  # for people to read
    threads: int | None  # of a job; None for as many as it likes

    def map(
        self, function: Callable[[Job], Result], jobs: Sequence[Job]
    ) -> Iterator[JobOutcome[Job, Result]]:
        """Every job's outcome, as they come; a job that fails is one outcome among the others."""


class LocalEngine:
    """This machine: one job after the other in this process, or several processes side by side.

    A process that dies takes no other job with it: those that it left undone are tried again, each
    in a process of its own, and fail only if they do so there. Ctrl-C, or the end of this process,
    ends the others by SIGTERM, on which training saves what it has.
    """

    name = "local"

    def __init__(self, processes: int = 0) -> None:
        if processes < 0:
            raise ValueError(f"at least 0 processes (this one alone) are needed, got {processes}")
        self.processes = processes
        self.jobs_at_once = max(1, processes)
        self.threads = None if processes <= 1 else max(1, (os.cpu_count() or 1) // processes)

    def map(
        self, function: Callable[[Job], Result], jobs: Sequence[Job]
    ) -> Iterator[JobOutcome[Job, Result]]:
        if self.processes == 0:
            for job in jobs:
                yield outcome_of(job, partial(function, job))
            return
        lost: list[Job] = []
        for job, outcome in _side_by_side(function, jobs, self.processes):
            if outcome is None:
                lost.append(job)
            else:
                yield outcome
        for job in lost:
            for _, outcome in _side_by_side(function, [job], 1):
                yield outcome or JobOutcome(job, error="its process died, twice")


def _side_by_side(
    function: Callable[[Job], Result], jobs: Sequence[Job], processes: int
) -> Iterator[tuple[Job, JobOutcome[Job, Result] | None]]:
    """Jobs and their outcomes; None for one whose process, or whose neighbour's, died."""
    context, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    with ProcessPoolExecutor(min(processes, max(1, len(jobs))), context, _settle_in) as pool:
        futures: dict[Future[Result], Job] = {pool.submit(function, job): job for job in jobs}
        try:
            for future in as_completed(futures):
                job = futures[future]
                is_lost = isinstance(future.exception(), BrokenProcessPool)
                yield job, None if is_lost else outcome_of(job, future.result)
        except BaseException:  # Ctrl-C, or the caller wants no more
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
            pool.shutdown(cancel_futures=True)
            raise


def outcome_of(job: Job, run: Callable[[], Result]) -> JobOutcome[Job, Result]:
    """Its result, or the error that it raised, in words."""
    try:
        return JobOutcome(job, run())
    except Exception as error:
        return JobOutcome(job, error=f"{type(error).__name__}: {error}")


def _settle_in() -> None:
    """In a fresh process: Ctrl-C is for the parent, who ends it; without a parent it ends too."""

    def end_with_parent() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(GRACE_SECONDS)
            os._exit(1)

    os.setpgrp()
    threading.Thread(target=end_with_parent, daemon=True).start()
