"""Who steps the environments of a rollout: this process, or several others beside it."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import gymnasium
import numpy as np

from saformer.envs.block import lane_dtype
from saformer.envs.costed import Costed
from saformer.envs.episodes import Stepper
from saformer.envs.lanes import Maker, Share
from saformer.envs.pool import POSSIBLE, borrowed

Workers = int | Literal["auto"]
FEWEST_STEPS = 40_000  # below so many in all, starting processes (0.3 s) may not pay
FEWEST_LANES = 2  # of a worker: with one each, waking it up costs about as much as it saves


def pick_workers(workers: Workers, *, num_lanes: int, num_steps: int) -> int:
    """How many processes step this many lanes, `num_steps` in all; 0 means this one."""
    if workers == "auto":
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        enough = cores > 1 and num_steps >= FEWEST_STEPS and POSSIBLE
        return min(cores, num_lanes // FEWEST_LANES) if enough else 0
    if not isinstance(workers, int) or workers < 0:
        numbers = "a number of processes, 0 for none beside this"
        raise ValueError(f'workers must be "auto" or {numbers}, got {workers!r}')
    if workers and not POSSIBLE:
        trouble = f"no other process can step environments on {sys.platform}"
        raise ValueError(f"workers={workers}: {trouble}; use 0")
    return min(workers, num_lanes)


@contextmanager
def environments(
    make: Callable[[], Costed], seeds: Sequence[int], num_workers: int
) -> Iterator[Stepper]:
    """Environments that have been reset with these seeds, one a lane, and who steps them."""
    text = _text_of(make) if num_workers else None
    if text is None:
        here = Share([make() for _ in seeds], range(len(seeds)), seeds)
        try:
            here.begin(np.zeros(len(seeds), lane_dtype(*here.widths)))
            yield here
        finally:
            here.close()
        return
    with borrowed(num_workers) as pool:
        pool.begin(text, seeds)
        yield pool
        pool.end()


def _text_of(make: Callable[[], Costed]) -> str | None:
    """From which workers make the environments; None and a warning where there is no such text."""
    try:
        if not isinstance(make, Maker):
            raise ValueError("they were given as a function")
        return make.text()
    except (ValueError, TypeError, gymnasium.error.Error) as error:
        reason = f"as no other could make them: {error} (workers=0 asks for it)"
        warnings.warn(f"environments are stepped in this process, {reason}", stacklevel=2)
        return None
