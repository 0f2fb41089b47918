"""Hindsight: give recorded trajectories a cost, and every step what was still to come after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from saformer.criteria import CostCriterion, Step
from saformer.data.store import EPISODE_COLUMNS, STEP_COLUMNS, TrajectoryStore

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class RelabelledStore:
    """Finished trajectories with their costs, ready to learn from. Costs carry a constraint axis."""

    store: TrajectoryStore
    criteria: tuple[CostCriterion, ...]
    cost_discount: float
    cost: Doubles
    """[steps, C] of each step, undiscounted"""
    cost_to_go: Doubles
    """[steps, C] still to come, this step included, counted from the start of the episode"""
    return_to_go: Doubles
    """[steps] reward still to come, this step included"""
    num_left_out: int
    """unfinished trajectories that were left out: what was still to come is unknown"""

    @property
    def episode_cost(self) -> Doubles:
        """[N, C] what each trajectory cost: the limit token D it is trained with."""
        return self.cost_to_go[self.store.starts]

    @property
    def episode_return(self) -> Doubles:
        """[N] what each trajectory earned, undiscounted."""
        return self.return_to_go[self.store.starts]


def relabel(
    store: TrajectoryStore, criteria: Sequence[CostCriterion], *, cost_discount: float = 1.0
) -> RelabelledStore:
    """Apply cost criteria to every step; several criteria give several constraints.

    With `cost_discount` below 1, step t counts cost_discount**t times its cost, as in the paper's section 5.1.
    """
    if not criteria:
        raise ValueError("at least one cost criterion is needed")
    if not 0 < cost_discount <= 1:
        raise ValueError(f"cost_discount must lie in (0, 1], got {cost_discount}")
    num_left_out = int((~store.finished).sum())
    if num_left_out:
        store = _only(store, store.finished)
    cost = np.stack([_costs(store, criterion) for criterion in criteria], axis=-1)
    counted = cost * cost_discount ** timesteps(store)[:, None]
    return RelabelledStore(
        store=store,
        criteria=tuple(criteria),
        cost_discount=cost_discount,
        cost=cost,
        cost_to_go=to_go(counted, store.columns["length"]),
        return_to_go=to_go(store.columns["reward"], store.columns["length"]),
        num_left_out=num_left_out,
    )


def to_go(values: NDArray[np.floating], lengths: NDArray[np.int64]) -> Doubles:
    """Sums from each step to the end of its trajectory: [steps, ...] of trajectories laid end to end."""
    # One running sum per trajectory: a single one over all would lose small values to rounding.
    sums = np.empty(values.shape, dtype=np.float64)
    stop = 0
    for length in lengths:
        start, stop = stop, stop + length
        sums[start:stop] = np.cumsum(values[start:stop][::-1], axis=0, dtype=np.float64)[::-1]
    return sums


def timesteps(store: TrajectoryStore) -> NDArray[np.int64]:
    """[steps] how far into its episode each step lies."""
    counted: NDArray[np.int64] = np.arange(store.num_steps) - np.repeat(store.starts, store.columns["length"])
    return counted


def _costs(store: TrajectoryStore, criterion: CostCriterion) -> Doubles:
    low, high = store.environment.action_low, store.environment.action_high
    action = np.clip(store.columns["action"], low, high, dtype=np.float32)
    step = Step(
        action=action,
        state=store.columns["state"],
        next_state=_next_states(store) if "next_state" in criterion.reads else None,
        reward=store.columns["reward"],
    )
    cost = criterion(step)
    if cost.shape != (store.num_steps,):
        raise ValueError(f"criterion {criterion.name!r} gave shape {cost.shape}, expected one cost per step")
    return cost.astype(np.float64)


def _next_states(store: TrajectoryStore) -> NDArray[np.float32]:
    following = np.roll(store.columns["state"], -1, axis=0)
    following[store.starts + store.columns["length"] - 1] = store.columns["final_state"]
    return following


def _only(store: TrajectoryStore, keep: NDArray[np.bool_]) -> TrajectoryStore:
    if not keep.any():
        raise ValueError("no trajectory is finished (terminated or truncated), so no cost-to-go is known")
    of_step = np.repeat(keep, store.columns["length"])
    columns = {name: store.columns[name][of_step] for name in STEP_COLUMNS}
    columns |= {name: store.columns[name][keep] for name in EPISODE_COLUMNS}
    return replace(store, columns=columns, known_fingerprint=None)
