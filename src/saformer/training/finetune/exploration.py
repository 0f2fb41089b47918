"""Episodes towards limits that the data never showed, ended where they cost too much."""

from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
from numpy.typing import NDArray

from saformer.core.policy import Policy
from saformer.data.interrupt import Interrupt
from saformer.data.relabel import RelabelledStore
from saformer.envs.episodes import Episode, Hooks
from saformer.envs.lanes import Maker
from saformer.envs.rollout import rollout
from saformer.envs.stepping import Workers, pick_workers
from saformer.training.finetune.experience import Target

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
    discounts = (data.cost_discount**step for step in count())
    spent = np.zeros((len(targets), len(data.criteria)))
    highest = np.full(len(data.criteria), np.inf) if ceiling is None else np.array(ceiling)

    def stop(lanes: NDArray[np.int64], cost: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Those that have spent more than the ceiling, and all of them after Ctrl-C."""
        if interrupt.requested:
            raise StoppedExploringError
        spent[lanes] += next(discounts) * cost
        return np.any(spent[lanes] > highest, axis=1)

    def ended(lane: int, episode: Episode) -> None:
        on_end(targets[lane], episode, bool((spent[lane] > highest).any()))

    maker, hooks = Maker(environment, tuple(data.criteria)), Hooks(stop=stop, ended=ended)
    prompts = [np.array(target.prompt) for target in targets]
    seeds = [FIRST_SEED + 10_000 * seed + first + lane for lane in range(len(targets))]
    horizon = environment.horizon if times_out else environment.horizon + 1
    rollout(policy, maker, prompts, seeds, horizon=horizon, hooks=hooks, workers=workers)


def shared_workers(workers: Workers, *, num_lanes: Sequence[int], num_steps: int) -> Workers:
    """As many for every rollout of a run, of these numbers of lanes in turn and `num_steps` in all:
    one may be too short for workers, but they wait for the next, if that wants as many."""
    if workers != "auto":
        return workers
    return min(pick_workers("auto", num_lanes=max(num_lanes), num_steps=num_steps), *num_lanes)
