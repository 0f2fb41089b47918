"""Doing nothing: which action that is, what it costs, and whether data shows it to be a way.

Where criteria tell what an action costs, nothing is the action of least cost. A recorded cost says
nothing of other actions: there it is what was done in the cheapest stretches of trajectories.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.data.limits import Totals, idle_action
from saformer.data.relabel import RelabelledStore, cost_of_action

RARE = 0.05
"""One in twenty. An action is still if it lies within this share of half the actions' range from
doing nothing. Doing nothing is a way if this share of episodes shows it; the cheapest stretches are
this share of all, and this share of an episode long. Of the courses that data takes from a state
the cheapest is this expectile: low, but not as low as a single one."""
LONG = 0.2  # share of an episode over which doing nothing has to have been kept up
SURE = 0.999  # how strictly steps are checked that ought to cost the same
TINY = 1e-6


@dataclass(frozen=True)
class Idling:
    """Doing nothing, as data shows it."""

    action: NDArray[np.float32]  # [A]
    cost: NDArray[np.float64]  # [C] of a step of it; NaN where nothing tells
    is_a_way: bool  # to keep a limit from any step on


def nothing_of(data: Totals) -> NDArray[np.float32]:
    """[A] doing nothing: what data shows to be a way, else the action of least cost."""
    if not isinstance(data, RelabelledStore):
        return idle_action(data) if data.idle is None else data.idle
    idling = idling_of(data)
    return idling.action if idling.is_a_way else idle_action(data)


def idling_of(data: RelabelledStore) -> Idling:
    """Doing nothing is a way where episodes did nothing for long, or nothing that costs more by a
    cost of the action; and mostly to the digit, as a switch does: what balances a machine is slight
    too, and differs. A recorded cost has to have been the same whenever it was done."""
    idle, dearest = idle_action(data), np.maximum(dearest_rate(data), TINY)
    known, share = cost_of_action(data, idle), np.asarray(data.cost, dtype=np.float64) / dearest
    free = np.zeros(len(idle), dtype=bool)
    if not _is_told(data):
        idle, free = _cheapest_action(data, share.max(1))
        known = cost_of_action(data, idle)
    distance = (_distances(data, idle) * ~free).max(1)
    exact = distance <= RARE**2
    if all("action" in criterion.reads for criterion in data.criteria):
        excess = np.nan_to_num(share - known / dearest, nan=np.inf).max(1)
        distance, exact = np.minimum(distance, excess), exact | (excess <= TINY)
    cost, still = known.mean(0), distance <= RARE
    is_a_way = (_stillest(data, distance) <= RARE).mean() >= RARE and exact[still].mean() > 0.5
    if is_a_way and not _is_told(data):
        recorded = share[still]
        usual = np.median(recorded, axis=0)
        is_a_way = not free.all() and (np.quantile(recorded, SURE, axis=0) - usual <= RARE).all()
        cost = np.where(np.isnan(cost) & is_a_way, usual * dearest, cost)
    return Idling(idle, cost, bool(is_a_way))


def _is_told(data: RelabelledStore) -> bool:
    """Whether every criterion says what any action costs in a recorded state."""
    return all(criterion.reads <= {"state", "action"} for criterion in data.criteria)


def dearest_rate(data: RelabelledStore) -> NDArray[np.float64]:
    """[C] what a step of the dearest episode cost, on average."""
    counts = np.cumsum(data.cost_discount ** np.arange(data.store.lengths.max()))
    rates = data.episode_cost / counts[data.store.lengths - 1][:, None]
    return np.asarray(rates.max(0))


def share_of(share: float, horizon: int) -> int:
    """So many steps; at least one."""
    return max(1, round(share * horizon))


def _stillest(data: RelabelledStore, values: NDArray[Any]) -> NDArray[Any]:
    """[episodes] the least mean of values [steps] over a long stretch of each."""
    length = share_of(LONG, data.environment.horizon)
    means, pairs = _means(values, length), zip(data.store.starts, data.store.lengths, strict=True)
    return np.array([means[s : s + max(n - length + 1, 0)].min(initial=np.inf) for s, n in pairs])


def _cheapest_action(
    data: RelabelledStore, cost: NDArray[Any]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """[A] what is done in the stretches of least cost [steps], and which of its entries are free:
    they differ there."""
    length = share_of(RARE, data.environment.horizon)
    pairs = zip(data.store.starts, data.store.lengths, strict=True)
    first = np.concatenate([np.arange(s, s + n - length + 1) for s, n in pairs])
    if not len(first):
        idle = idle_action(data)
        return idle, np.ones(len(idle), dtype=bool)
    means = _means(cost, length)[first]
    first = first[means <= np.quantile(means, RARE)]
    covered = np.zeros(len(cost) + 1, dtype=np.int64)
    np.add.at(covered, first, 1)
    np.add.at(covered, first + length, -1)
    cheap = np.cumsum(covered)[:-1] > 0
    idle = np.median(np.asarray(data.store.gather("action"))[cheap], axis=0).astype(np.float32)
    return idle, _distances(data, idle)[cheap].mean(0) > RARE


def _distances(data: RelabelledStore, action: NDArray[Any]) -> NDArray[Any]:
    """[steps, A] of recorded actions, as a share of half their range."""
    low, high = np.array(data.environment.action_low), np.array(data.environment.action_high)
    distance = np.abs(np.asarray(data.store.gather("action")) - action)
    shares: NDArray[Any] = distance / np.maximum(high - low, TINY) * 2
    return shares


def _means(values: NDArray[Any], length: int) -> NDArray[Any]:
    """Over as many steps, by the first of them."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    means: NDArray[Any] = (sums[length:] - sums[:-length]) / length
    return means
