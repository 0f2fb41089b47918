"""The trajectories that no other beats in return and in cost at once, and prompts beyond them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from saformer.data.relabel import RelabelledStore


def pareto_front(data: RelabelledStore) -> NDArray[np.int64]:
    """Numbers of the trajectories that nobody undercuts in every cost and equals in return; the
    highest return first.

    Of several that are alike, the first is kept.
    """
    front: list[int] = []
    for number in np.lexsort((*data.episode_cost.T, -data.episode_return)):
        cheaper = (data.episode_cost[front] <= data.episode_cost[number]).all(-1)
        if not cheaper.any():
            front.append(int(number))
    return np.array(front, dtype=np.int64)


def augment(data: RelabelledStore, share: float, *, seed: int = 0) -> RelabelledStore:
    """Add copies of the front's trajectories that were asked for more than they gave: `share` of
    what there is.

    A limit is drawn within the data's range, and a return from what the front earns within it to
    the highest stored. No trajectory does that, so the best within the limit answers: its to-go
    columns are shifted to what was asked.
    """
    rng, front, num_stored = np.random.default_rng(seed), pareto_front(data), len(data.store)
    cheapest, dearest = data.episode_cost.min(0), data.episode_cost.max(0)
    limit = rng.uniform(cheapest, dearest, (round(share * num_stored), len(dearest)))
    within = np.all(
        data.episode_cost[front] <= limit[:, None], axis=-1
    )  # [n, front], the highest return first
    possible = np.any(within, axis=1)  # with several constraints, nothing may keep them all
    limit, donors = limit[possible], front[within.argmax(1)[possible]]

    whole = data.filter(np.concatenate([np.arange(num_stored), donors]))
    more_cost, more_return = np.zeros_like(whole.episode_cost), np.zeros_like(whole.episode_return)
    more_cost[num_stored:] = limit - data.episode_cost[donors]
    more_return[num_stored:] = rng.uniform(
        0, data.episode_return.max() - data.episode_return[donors]
    )
    lengths = whole.store.lengths
    return replace(
        whole,
        cost_to_go=whole.cost_to_go + np.repeat(more_cost, lengths, axis=0).astype(np.float32),
        return_to_go=whole.return_to_go + np.repeat(more_return, lengths).astype(np.float32),
        episode_cost=whole.episode_cost + more_cost,
        episode_return=whole.episode_return + more_return,
    )
