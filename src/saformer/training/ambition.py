"""Which limit the actor is best told, when an episode may be over before that much is spent.

An actor that is told a low limit acts as the cheap part of the data did, which may be the poor part. Where dear stored
trajectories had earned more by the time that they had spent the limit, they are what to follow until then.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from saformer.data.relabel import RelabelledStore
from saformer.reserve import NUM_LEVELS

Doubles = NDArray[np.float64]
NUM_GROUPS, NEAREST = 10, 0.1
"""Dearer trajectories are compared in so many groups; this share of all is taken to be like the limit."""
FEWEST = 5
"""Trajectories that a group must have to be believed."""
GAIN = 0.2
"""So much more must have been earned."""


def told_limits(data: RelabelledStore) -> tuple[Doubles, Doubles]:
    """Limits [G, C] over the data's range, and what the actor is told under each: [G, C], 0 for the limit itself.

    With several constraints or discounted costs it is always the limit itself.
    """
    costs = data.episode_cost
    levels = np.quantile(costs, np.linspace(0, 1, NUM_LEVELS), axis=0)
    told = np.zeros_like(levels)
    if costs.shape[1] == 1 and data.cost_discount == 1:
        earned = earned_by(data, levels[:, 0])
        told[:, 0] = [_told(level, costs[:, 0], earned[:, place]) for place, level in enumerate(levels[:, 0])]
    return levels, told


def earned_by(data: RelabelledStore, levels: Doubles) -> Doubles:
    """[trajectories, G] what each had earned when it had spent so much, or at its end."""
    store, cost = data.store, np.asarray(data.cost)[:, 0]
    found = np.empty((len(store.lengths), len(levels)))
    for number, (start, length) in enumerate(zip(store.starts, store.lengths, strict=True)):
        steps = slice(start, start + length)
        earned = np.concatenate([[0.0], np.cumsum(store.steps["reward"][steps], dtype=np.float64)])
        found[number] = earned[np.searchsorted(np.cumsum(cost[steps], dtype=np.float64), levels, side="right")]
    return found


def _told(level: float, costs: Doubles, earned: Doubles) -> float:
    """The cost of those that had earned most by then, among those that went on; 0 if the limit's own like earn so."""
    distance = np.abs(costs - level)
    own = float(earned[distance <= np.quantile(distance, NEAREST)].mean())
    dearer = np.flatnonzero(costs >= level)
    groups = np.array_split(dearer[np.argsort(costs[dearer], kind="stable")], NUM_GROUPS)
    means = [earned[group].mean() if len(group) >= FEWEST else -np.inf for group in groups]
    best = int(np.argmax(means))
    return float(np.median(costs[groups[best]])) if means[best] > own + GAIN * abs(own) else 0.0
