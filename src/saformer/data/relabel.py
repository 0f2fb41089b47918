"""Hindsight: give recorded trajectories a cost, and every step what was still to come after it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from saformer.criteria import CostCriterion, Step, criterion
from saformer.data.folder import REMEDY
from saformer.data.store import EnvironmentSpec, TrajectoryStore, offsets_of
from saformer.data.trajectory import Floats

Doubles = NDArray[np.float64]
Result = TypeVar("Result")
STEP_ARRAYS = ("cost", "cost_to_go", "return_to_go")
EPISODE_ARRAYS = ("episode_cost", "episode_return")


@dataclass(frozen=True, eq=False)
class RelabelledStore:
    """Finished trajectories with their costs, ready to learn from. Costs carry a constraint axis.

    Step arrays hold the trajectories of `store` end to end, in float32, but summed in float64.
    """

    store: TrajectoryStore
    criteria: tuple[CostCriterion, ...]
    cost_discount: float
    cost: Floats  # [steps, C] of each step, undiscounted
    cost_to_go: Floats  # [steps, C] still to come, this step included, discounted from the start
    return_to_go: Floats  # [steps] reward still to come, this step included
    episode_cost: Doubles  # [N, C] what each trajectory cost: the limit token D it is trained with
    episode_return: Doubles  # [N] what each trajectory earned, undiscounted
    num_left_out: int  # unfinished trajectories: what was still to come is unknown
    cache: dict[str, Any] = field(default_factory=dict, init=False, repr=False)
    """results of functions that are `cached_on_data`"""

    @property
    def environment(self) -> EnvironmentSpec:
        return self.store.environment

    @property
    def ended_early(self) -> NDArray[np.bool_]:
        """[N] whether the trajectory terminated before the horizon."""
        return self.store.ended_early

    def with_environment(self, **changes: Any) -> RelabelledStore:
        """The same data, of a machine with these changes."""
        return replace(self, store=self.store.with_environment(**changes))

    def filter(self, keep: NDArray[np.bool_] | NDArray[np.integer]) -> RelabelledStore:
        """The trajectories where `keep` [N] is True, or at these indices, which may repeat."""
        store, indices = self.store.filter(keep), np.arange(len(self.store))[keep]
        # A step's row here is its row in the view, shifted as far as its trajectory's start was.
        shifts = self.store.starts[indices] - store.starts
        rows = np.repeat(shifts, store.lengths) + np.arange(store.num_steps)
        steps = {name: getattr(self, name)[rows] for name in STEP_ARRAYS}
        episodes = {name: getattr(self, name)[indices] for name in EPISODE_ARRAYS}
        return replace(self, store=store, **steps, **episodes)


OfData = Callable[[RelabelledStore], Result]


def cached_on_data(function: OfData[Result]) -> OfData[Result]:
    """Keep results in the data's own cache: runs share them, and nobody may write to them."""
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

    Step t counts cost_discount**t times its cost, as in the paper's section 5.1.
    """
    if not criteria:
        raise ValueError("at least one cost criterion is needed")
    if not 0 < cost_discount <= 1:
        raise ValueError(f"cost_discount must lie in (0, 1], got {cost_discount}")
    num_left_out = int((~store.finished).sum())
    if num_left_out == len(store):
        raise ValueError(
            "no trajectory is finished (terminated or truncated): no cost-to-go is known"
        )
    if num_left_out:
        store = store.filter(store.finished)
    cost = np.empty((store.num_steps, len(criteria)), dtype=np.float32)
    cost_to_go, return_to_go = np.empty_like(cost), np.empty(store.num_steps, dtype=np.float32)
    episode_cost, episode_return = np.empty((len(store), len(criteria))), np.empty(len(store))
    begin = 0
    for first, stop in store.blocks():  # float64 sums never need memory for more than a block
        _refuse_damage(store, first, stop)
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
    steps, episodes = (cost, cost_to_go, return_to_go), (episode_cost, episode_return)
    return RelabelledStore(
        store, tuple(criteria), cost_discount, *steps, *episodes, num_left_out=num_left_out
    )


def relabelled(
    store: TrajectoryStore, criteria: Sequence[Any], cost_discount: float = 1.0
) -> RelabelledStore:
    """The store's finished trajectories with costs by these criteria, or by those that the store
    names."""
    names, trusted = (criteria, True) if criteria else (store.criteria, False)
    known = [criterion(name, trusted=trusted, columns=store.column_names) for name in names]
    return relabel(store, known, cost_discount=cost_discount)


def cost_of_action(data: RelabelledStore, action: NDArray[Any]) -> Doubles:
    """[steps, C] what recorded steps would have cost with this action [A]; NaN by criteria that
    read more than the present state and the action."""
    state = data.store.gather("state")
    step = Step(np.broadcast_to(np.asarray(action, np.float32), (len(state), len(action))), state)
    unknown = np.full(len(state), np.nan)
    known = (each.reads <= {"state", "action"} for each in data.criteria)
    pairs = zip(data.criteria, known, strict=True)
    return np.stack([each(step) if is_known else unknown for each, is_known in pairs], axis=-1)


def to_go(values: NDArray[np.floating], lengths: NDArray[np.int64]) -> Doubles:
    """Sums from each step [steps, ...] to the end of its trajectory."""
    # One running sum per trajectory: a single one over all would lose small values to rounding.
    sums = np.empty(values.shape, dtype=np.float64)
    stop = 0
    for length in lengths:
        start, stop = stop, stop + length
        sums[start:stop] = np.cumsum(values[start:stop][::-1], axis=0, dtype=np.float64)[::-1]
    return sums


def _refuse_damage(store: TrajectoryStore, first: int, stop: int) -> None:
    """Nothing that is not a number was stored."""
    for name in ("state", "action", "reward"):
        if not np.isfinite(store.gather(name, first, stop)).all():
            where = store.path or "data in memory"
            raise ValueError(f"{where} is damaged: {name} holds NaN or infinities; {REMEDY}")


def _costs(store: TrajectoryStore, criterion: CostCriterion, first: int, stop: int) -> Doubles:
    """[steps] of trajectories `first` to `stop`."""
    low, high = store.environment.action_low, store.environment.action_high
    names = ("action",) if criterion.reads_action_alone else tuple(store.steps)
    parts = {name: store.gather(name, first, stop) for name in names}
    action = np.clip(parts.pop("action"), low, high, dtype=np.float32)
    state, next_state, reward = parts.pop("state", None), None, parts.pop("reward", None)
    # a criterion that will be refused for want of a column is to hear of all that is on offer
    if state is not None and ("next_state" in criterion.reads or criterion.missing(parts)):
        next_state = np.roll(state, -1, axis=0)
        final_states = store.episodes["final_state"][first:stop]
        next_state[np.cumsum(store.lengths[first:stop]) - 1] = final_states
    return criterion(Step(action, state, next_state, reward, columns=parts))
