"""Episodes towards limits that the data never showed, ended where they cost too much."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from saformer.core.policy import Policy
from saformer.data.relabel import RelabelledStore
from saformer.envs.lanes import Maker
from saformer.envs.rollout import Episode, Hooks, rollout
from saformer.envs.stepping import Workers, pick_workers
from saformer.training.finetune.experience import Target
from saformer.training.loop.interrupt import Interrupt

FIRST_SEED = 2_000_000  # exploration starts from seeds that neither data nor evaluations use


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
    on_end: Callable[[Target, Episode, bool], None],
    interrupt: Interrupt,
    workers: Workers = "auto",
) -> None:
    """An episode for each target, all at once; `first` is the index of the first of them.

    `on_end` is given each episode as soon as it is over, and whether it broke the ceiling.
    """
    environment, lengths = data.store.environment, data.store.lengths
    # where no stored episode was cut off at the horizon, the environment must end them by then
    truncated = np.asarray(data.store.episodes["truncated"])
    times_out = bool(((lengths >= environment.horizon) & truncated).any())
    watch = _Watch(len(targets), ceiling, data.cost_discount, interrupt)
    rollout(
        policy,
        Maker(environment, tuple(data.criteria)),
        [np.array(target.prompt) for target in targets],
        [FIRST_SEED + 10_000 * seed + first + lane for lane in range(len(targets))],
        horizon=environment.horizon if times_out else environment.horizon + 1,
        hooks=Hooks(
            stop=watch,
            ended=lambda lane, episode: on_end(targets[lane], episode, bool(watch.broke[lane])),
        ),
        workers=workers,
    )


def shared_workers(workers: Workers, *, num_lanes: Sequence[int], num_steps: int) -> Workers:
    """As many for every rollout of a run, of these numbers of lanes in turn and `num_steps` in all.

    One rollout alone may be too short for workers; but they wait for the next one, if that wants as
    many.
    """
    if workers != "auto":
        return workers
    return min(pick_workers("auto", num_lanes=max(num_lanes), num_steps=num_steps), *num_lanes)


class _Watch:
    """Ends episodes that have spent more than the ceiling, and all of them after Ctrl-C."""

    def __init__(
        self,
        num_lanes: int,
        ceiling: tuple[float, ...] | None,
        discount: float,
        interrupt: Interrupt,
    ) -> None:
        self._ceiling, self._discount, self._interrupt = ceiling, discount, interrupt
        self._spent: NDArray[np.float64] | None = None
        self._num_steps = 0
        self.broke = np.zeros(num_lanes, dtype=np.bool_)

    def __call__(self, lanes: NDArray[np.int64], cost: NDArray[np.float64]) -> NDArray[np.bool_]:
        if self._interrupt.requested:
            raise StoppedExploringError
        if self._ceiling is not None:
            if self._spent is None:
                self._spent = np.zeros_like(cost)  # all lanes make the first step
            self._spent[lanes] += self._discount**self._num_steps * cost
            self._num_steps += 1
            self.broke[lanes] = (self._spent[lanes] > np.array(self._ceiling)).any(1)
        return self.broke[lanes]
