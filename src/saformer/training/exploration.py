"""Episodes towards limits that the data never showed, ended where they cost too much."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.core.policy import Policy
from saformer.data.relabel import RelabelledStore
from saformer.envs.lanes import Maker
from saformer.envs.rollout import Episode, rollout
from saformer.envs.stepping import Workers, pick_workers
from saformer.training.experience import Target
from saformer.training.loop.interrupt import Interrupt

FIRST_SEED = 2_000_000
"""Exploration starts from seeds that neither data nor evaluations use."""


class EnvironmentFailedError(RuntimeError):
    """An environment did what none should; everything up to then was saved."""


class StoppedExploringError(Exception):
    """Ctrl-C was pressed: the episodes in flight are given up."""


def explore(
    policy: Policy,
    data: RelabelledStore,
    targets: Sequence[Target],
    *,
    first: int,
    seed: int,
    ceiling: tuple[float, ...] | None,
    keep: Callable[[Target, Episode, bool], None],
    interrupt: Interrupt,
    workers: Workers = "auto",
) -> None:
    """An episode for each target, all at once; `first` is the number of the first of them.

    `keep` is given each episode as soon as it is over, and whether it broke the ceiling.
    """
    environment = data.store.environment
    watch = _Watch(len(targets), ceiling, data.cost_discount, interrupt)
    rollout(
        policy,
        Maker(environment, tuple(data.criteria)),
        [np.array(target.prompt) for target in targets],
        [FIRST_SEED + 10_000 * seed + first + lane for lane in range(len(targets))],
        horizon=environment.horizon if times_out(data) else environment.horizon + 1,
        stop=watch,
        ended=lambda lane, episode: keep(targets[lane], episode, bool(watch.broke[lane])),
        workers=workers,
    )


def shared_workers(workers: Workers, *, num_lanes: Sequence[int], num_steps: int) -> Workers:
    """As many for every rollout of a run, of these numbers of lanes in turn and `num_steps` in all.

    One rollout alone may be too short for workers; but they are kept for the next one, if that
    wants as many.
    """
    if workers != "auto":
        return workers
    return min(pick_workers("auto", num_lanes=max(num_lanes), num_steps=num_steps), *num_lanes)


def times_out(data: RelabelledStore) -> bool:
    """Whether stored episodes were cut off at the horizon; otherwise an environment is expected to
    end them by then."""
    at_horizon = data.store.lengths >= data.store.environment.horizon
    return bool((at_horizon & np.asarray(data.store.episodes["truncated"])).any())


@contextmanager
def blamed_on_the_environment(doing: str, where: str) -> Iterator[None]:
    """Whatever goes wrong while environments are stepped is said with what was being done, and
    where all else is."""
    try:
        yield
    except (StoppedExploringError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise EnvironmentFailedError(
            f"the environment failed while {doing}: {type(error).__name__}: {error}. What came "
            "before is saved in "
            f"{where}; mend the environment and go on with resume (--resume)"
        ) from error


class _Watch:
    """Ends episodes that have spent more than the ceiling, and all of them if asked to stop."""

    def __init__(
        self,
        num_lanes: int,
        ceiling: tuple[float, ...] | None,
        cost_discount: float,
        interrupt: Interrupt,
    ) -> None:
        self._ceiling, self._discount, self._interrupt = ceiling, cost_discount, interrupt
        self._spent: Any = 0.0
        self._num_steps = 0
        self.broke = np.zeros(num_lanes, dtype=np.bool_)

    def __call__(self, lanes: NDArray[np.int64], cost: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Hear what a step cost."""
        if self._interrupt.requested:
            raise StoppedExploringError
        if self._ceiling is not None:
            if not self._num_steps:
                self._spent = np.zeros((len(self.broke), cost.shape[1]))
            self._spent[lanes] += self._discount**self._num_steps * cost
            self._num_steps += 1
            self.broke[lanes] = (self._spent[lanes] > np.array(self._ceiling)).any(1)
        return self.broke[lanes]
