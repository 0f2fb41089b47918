"""How far a policy leaves the logs: its steps against the logged ones that are nearest to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saformer.data.relabel import RelabelledStore
from saformer.data.store import ACTION_NAMES
from saformer.data.trajectory import Trajectory
from saformer.evaluation.offline.reader import Doubles, evenly

MAX_LOGGED, MAX_COMPARED, MAX_DRAWN = 40_000, 2_000, 300
USUAL = 0.95
"""Logged steps lie this often nearer to those of other trajectories than what counts as far."""
NUM_DIRECTIONS = 3


@dataclass(frozen=True)
class Nearest:
    """Of n steps: how far the nearest logged one is, and which trajectory it belongs to."""

    rows: NDArray[np.floating]  # [n, S + A] the steps
    distance: NDArray[np.float32]  # [n]
    trajectory: NDArray[np.int64]  # [n]


class LoggedSteps:
    """States and actions of logged steps, in units of their deviation. Every other trajectory is
    there to compare with; the rest say how near steps of one machine usually are."""

    def __init__(self, data: RelabelledStore) -> None:
        store = data.store
        both = np.concatenate([store.gather("state"), store.gather("action")], 1)
        trajectory = np.repeat(np.arange(len(store)), store.lengths)
        self._centre, deviation = both.mean(0, dtype=np.float64), both.std(0, dtype=np.float64)
        self._scale: Doubles = np.where(deviation > 0, deviation, 1.0)
        actions = store.provenance.get(ACTION_NAMES) or range(store.steps["action"].shape[1])
        self._names = [f"state[{i}]" for i in range(store.steps["state"].shape[1])]
        self._names += [name if isinstance(name, str) else f"action[{name}]" for name in actions]
        is_reference = trajectory % 2 == 0
        kept, rest = np.flatnonzero(is_reference), np.flatnonzero(~is_reference)
        kept = kept[evenly(len(kept), MAX_LOGGED)]
        self._units, self._trajectory = self.in_units(both[kept]), trajectory[kept]
        compared = both[rest[evenly(len(rest), MAX_COMPARED)]] if len(rest) else both[kept]
        self.far = float(np.quantile(self.nearest(compared).distance, USUAL))
        """the distance within which logged steps usually have a neighbour"""

    def in_units(self, rows: NDArray[np.floating]) -> Tensor:
        """Steps [n, S + A] in deviations from the mean of the logged ones."""
        return torch.from_numpy(((rows - self._centre) / self._scale).astype(np.float32))

    def nearest(self, rows: NDArray[np.floating]) -> Nearest:
        """To steps [n, S + A]."""
        parts = [torch.cdist(part, self._units).min(1) for part in self.in_units(rows).split(256)]
        index = torch.cat([part.indices for part in parts]).numpy()
        distance = torch.cat([part.values for part in parts]).numpy()
        return Nearest(rows, distance, self._trajectory[index])

    def of_episodes(self, episodes: Sequence[Trajectory]) -> Nearest:
        """To what episodes did, an even choice of their steps."""
        rows = np.concatenate([np.concatenate([each.state, each.action], 1) for each in episodes])
        return self.nearest(rows[evenly(len(rows), MAX_COMPARED)])

    def drawn(self, visited: dict[str, Nearest]) -> dict[str, Any]:
        """Points of logged and of visited steps, by limit, in the directions in which logged ones
        differ most, and the column that each direction is mostly of."""
        _, _, directions = torch.linalg.svd(self._units[evenly(len(self._units), 5000)])
        directions = directions[:NUM_DIRECTIONS]

        def points(units: Tensor) -> list[list[float]]:
            return [[round(v, 3) for v in row] for row in (units @ directions.T).tolist()]

        logged, by_limit = self._units[evenly(len(self._units), 2 * MAX_DRAWN)], {}
        for name, nearest in visited.items():
            some = evenly(len(nearest.rows), MAX_DRAWN)
            by_limit[name] = {
                "points": points(self.in_units(nearest.rows[some])),
                "far": (nearest.distance[some] > self.far).tolist(),
            }
        columns = [self._names[index] for index in directions.abs().argmax(1).tolist()]
        return {"columns": columns, "logged": points(logged), "visited": by_limit}
