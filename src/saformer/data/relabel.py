"""Hindsight: give recorded trajectories a cost, and every step what was still to come after it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from saformer.criteria import CostCriterion, Step, criterion
from saformer.criteria.step import PARTS
from saformer.data.store import EnvironmentSpec, TrajectoryStore, offsets_of
from saformer.data.trajectory import Floats

Doubles = NDArray[np.float64]
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class RelabelledStore:
    """Finished trajectories with their costs, ready to learn from. Costs carry a constraint axis.

    Step arrays hold the trajectories of `store` laid end to end. They are float32, but summed in
    float64.
    """

    store: TrajectoryStore
    criteria: tuple[CostCriterion, ...]
    cost_discount: float
    cost: Floats  # [steps, C] of each step, undiscounted
    cost_to_go: Floats
    """[steps, C] still to come, this step included, counted from the start of the episode"""
    return_to_go: Floats  # [steps] reward still to come, this step included
    episode_cost: Doubles  # [N, C] what each trajectory cost: the limit token D it is trained with
    episode_return: Doubles  # [N] what each trajectory earned, undiscounted
    num_left_out: int
    """unfinished trajectories that were left out: what was still to come is unknown"""
    cache: dict[str, Any] = field(default_factory=dict, init=False, repr=False)
    """results of functions that are `cached_on_data`"""

    @property
    def environment(self) -> EnvironmentSpec:
        return self.store.environment

    def filter(self, keep: NDArray[np.bool_] | NDArray[np.integer]) -> RelabelledStore:
        """The trajectories where `keep` [N] is True, or at these indices, which may repeat."""
        store, indices = self.store.filter(keep), np.arange(len(self.store))[keep]
        # A step's row here is its row in the view, shifted as far as its trajectory's start was.
        shifts = self.store.starts[indices] - store.starts
        rows = np.repeat(shifts, store.lengths) + np.arange(store.num_steps)
        return replace(
            self,
            store=store,
            cost=self.cost[rows],
            cost_to_go=self.cost_to_go[rows],
            return_to_go=self.return_to_go[rows],
            episode_cost=self.episode_cost[indices],
            episode_return=self.episode_return[indices],
        )


def cached_on_data(
    function: Callable[[RelabelledStore], Result],
) -> Callable[[RelabelledStore], Result]:
    """Keep results in the data's own cache: runs of several seeds and limits share them, and nobody
    may write to them."""
    key = f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def cached(data: RelabelledStore) -> Result:
        if key not in data.cache:
            data.cache[key] = function(data)
        result: Result = data.cache[key]
        return result

    return cached


def relabel(
    store: TrajectoryStore, criteria: Sequence[CostCriterion], *, cost_discount: float = 1.0
) -> RelabelledStore:
    """Apply cost criteria to every step; several criteria give several constraints.

    With `cost_discount` below 1, step t counts cost_discount**t times its cost, as in the paper's
    section 5.1.
    """
    if not criteria:
        raise ValueError("at least one cost criterion is needed")
    if not 0 < cost_discount <= 1:
        raise ValueError(f"cost_discount must lie in (0, 1], got {cost_discount}")
    num_left_out = int((~store.finished).sum())
    if num_left_out == len(store):
        message = "no trajectory is finished (terminated or truncated), so no cost-to-go is known"
        raise ValueError(message)
    if num_left_out:
        store = store.filter(store.finished)
    cost = np.empty((store.num_steps, len(criteria)), dtype=np.float32)
    cost_to_go, return_to_go = np.empty_like(cost), np.empty(store.num_steps, dtype=np.float32)
    episode_cost, episode_return = np.empty((len(store), len(criteria))), np.empty(len(store))
    begin = 0
    for first, stop in store.blocks():  # float64 sums never need memory for more than a block
        lengths = store.lengths[first:stop]
        starts = offsets_of(lengths)
        timestep = np.arange(lengths.sum()) - np.repeat(starts, lengths)
        costs = np.stack([_costs(store, criterion, first, stop) for criterion in criteria], axis=-1)
        costs_to_go = to_go(costs * cost_discount ** timestep[:, None], lengths)
        returns_to_go = to_go(store.gather("reward", first, stop), lengths)
        block = slice(begin, begin + len(timestep))
        cost[block], cost_to_go[block], return_to_go[block] = costs, costs_to_go, returns_to_go
        episode_cost[first:stop] = costs_to_go[starts]
        episode_return[first:stop] = returns_to_go[starts]
        begin = block.stop
    return RelabelledStore(
        store,
        tuple(criteria),
        cost_discount,
        cost,
        cost_to_go,
        return_to_go,
        episode_cost,
        episode_return,
        num_left_out,
    )


def relabelled(
    store: TrajectoryStore, criteria: Sequence[str], cost_discount: float = 1.0
) -> RelabelledStore:
    """The store's finished trajectories with costs by criteria of these names, or by those that the
    store names."""
    # a store may come from elsewhere: code that it names is never imported
    names, trusted = (criteria, True) if criteria else (store.criteria, False)
    known = [criterion(name, trusted=trusted) for name in names]
    return relabel(store, known, cost_discount=cost_discount)


def to_go(values: NDArray[np.floating], lengths: NDArray[np.int64]) -> Doubles:
    """Sums from each step [steps, ...] to the end of its trajectory."""
    # One running sum per trajectory: a single one over all would lose small values to rounding.
    sums = np.empty(values.shape, dtype=np.float64)
    stop = 0
    for length in lengths:
        start, stop = stop, stop + length
        sums[start:stop] = np.cumsum(values[start:stop][::-1], axis=0, dtype=np.float64)[::-1]
    return sums


def _costs(store: TrajectoryStore, criterion: CostCriterion, first: int, stop: int) -> Doubles:
    """[steps] of trajectories `first` to `stop`."""
    low, high = store.environment.action_low, store.environment.action_high
    # a criterion that will be refused for want of a column is to hear of all that is on offer
    reads = criterion.reads if not criterion.missing(store.column_names) else frozenset(PARTS)
    step = Step(
        action=np.clip(store.gather("action", first, stop), low, high, dtype=np.float32),
        state=store.gather("state", first, stop) if "state" in reads else None,
        next_state=_next_states(store, first, stop) if "next_state" in reads else None,
        reward=store.gather("reward", first, stop) if "reward" in reads else None,
        columns=_LazyColumns(store, first, stop),
    )
    return criterion(step)


class _LazyColumns(Mapping[str, NDArray[Any]]):
    """The named columns of trajectories `first` to `stop`, gathered on access."""

    def __init__(self, store: TrajectoryStore, first: int, stop: int) -> None:
        self._store, self._range = store, (first, stop)

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._store.column_names:
            raise KeyError(name)
        return self._store.gather(name, *self._range)

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.column_names)

    def __len__(self) -> int:
        return len(self._store.column_names)


def _next_states(store: TrajectoryStore, first: int, stop: int) -> Floats:
    following: Floats = np.roll(store.gather("state", first, stop), -1, axis=0)
    following[np.cumsum(store.lengths[first:stop]) - 1] = store.episodes["final_state"][first:stop]
    return following
