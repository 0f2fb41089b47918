"""Which limit the actor is best told, when an episode may be over before that much is spent.

An actor that is told a low limit acts as the cheap part of the data did, which may be the poor
part. Where dear stored trajectories had earned more by the time that they had spent the limit, they
are what to follow until then.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from saformer.data.relabel import RelabelledStore
from saformer.reserve import NUM_LEVELS

Doubles = NDArray[np.float64]
MOST_GROUPS, FEWEST, NEAREST = 10, 50, 0.1
"""Dearer trajectories are compared in at most so many groups of at least so many, lest chance
decides; this share of all is taken to be like the limit."""
ALIKE, TINY = 0.02, 1e-6
"""Groups that had earned but so much less than the best are as good: the cheapest of them is
followed."""
FAR = 1.75
"""Followed are those that went on to spend so many times the limit, if there are enough: told the
cost of those that ended soon after, the actor ends before."""


def told_limits(data: RelabelledStore) -> dict[str, Doubles]:
    """Limits over the data's range, what earns most under each, and how much more than the limit
    itself: [G, C] each.

    "levels", "told" and "gain", a share of what is earned if the actor is told the limit. With
    several constraints or discounted costs there is nothing to be told.
    """
    costs = data.episode_cost
    levels = np.quantile(costs, np.linspace(0, 1, NUM_LEVELS), axis=0)
    found = np.zeros((*levels.shape, 2))
    if costs.shape[1] == 1 and data.cost_discount == 1:
        earned = earned_by(data, levels[:, 0])
        found[:, 0] = [
            _told(level, costs[:, 0], earned[:, place]) for place, level in enumerate(levels[:, 0])
        ]
    return {"levels": levels, "told": found[..., 0], "gain": found[..., 1]}


def earned_by(data: RelabelledStore, levels: Doubles) -> Doubles:
    """[trajectories, G] what each had earned when it had spent so much, or at its end."""
    store, cost = data.store, np.asarray(data.cost)[:, 0]
    found = np.empty((len(store.lengths), len(levels)))
    for number, (start, length) in enumerate(zip(store.starts, store.lengths, strict=True)):
        steps = slice(start, start + length)
        earned = np.concatenate([[0.0], np.cumsum(store.steps["reward"][steps], dtype=np.float64)])
        found[number] = earned[
            np.searchsorted(np.cumsum(cost[steps], dtype=np.float64), levels, side="right")
        ]
    return found


def _told(level: float, costs: Doubles, earned: Doubles) -> tuple[float, float]:
    """The cost of those that had earned most by then, among those that went on, and how much more
    that is."""
    distance = np.abs(costs - level)
    own = float(earned[distance <= np.quantile(distance, NEAREST)].mean())
    dearest_last = np.argsort(costs, kind="stable")
    dearer, far = (dearest_last[costs[dearest_last] >= least] for least in (level, FAR * level))
    followed = far if len(far) >= FEWEST else dearer
    if len(followed) < FEWEST:
        return 0.0, 0.0
    groups = np.array_split(followed, min(MOST_GROUPS, len(followed) // FEWEST))
    means = np.array([earned[group].mean() for group in groups])
    cheapest = int(np.argmax(means >= means.max() - ALIKE * abs(means.max())))
    return float(np.median(costs[groups[cheapest]])), float(
        (means[cheapest] - own) / max(abs(own), TINY)
    )
