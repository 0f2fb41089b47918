"""Recordings in rows, one step each, cut into trajectories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.data.trajectory import Trajectory

Array = NDArray[Any]
STAND_IN = "the state after an episode's last step is not recorded: the one before it stands in"


@dataclass(frozen=True)
class Rows:
    """Consecutive steps of a recording; episodes may begin and end anywhere among them."""

    state: Array  # [n, S]
    action: Array  # [n, A]
    reward: Array  # [n]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    begins: NDArray[np.bool_]  # where another episode begins, whether or not the last has an end
    next_state: Array | None = None  # [n, S] where it was recorded
    columns: Mapping[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.reward)

    def __getitem__(self, part: slice | NDArray[np.bool_]) -> Rows:
        arrays = {name: values for name, values in vars(self).items() if name != "columns"}
        parts: dict[str, Any] = {n: v[part] for n, v in arrays.items() if v is not None}
        return Rows(**parts, columns={name: column[part] for name, column in self.columns.items()})

    @property
    def is_marked(self) -> bool:
        """Whether the last row is marked as the end of its episode."""
        return bool(self.terminated[-1] or self.truncated[-1])

    def pieces(self) -> Iterator[Rows]:
        """Parts that belong to one episode each."""
        ends = self.terminated | self.truncated
        ends[:-1] |= self.begins[1:]
        start = 0
        for stop in (*(np.flatnonzero(ends) + 1).tolist(), len(self)):
            if stop > start:
                yield self[start:stop]
            start = stop


@dataclass
class Cutter:
    """Cuts rows into trajectories: after a last row, and before one that begins an episode."""

    horizon: int | None = None
    """an episode that was not marked as ended after this many steps was ended by the clock"""
    ends_are_complete: bool = False
    """an episode without any mark at its end was recorded whole (truncated), not broken off"""
    num_cut_at_horizon: int = 0  # episodes that had no mark where the horizon ended them

    def cut(self, blocks: Iterable[Rows]) -> Iterator[Trajectory]:
        """The trajectories in these rows. The last one is unfinished unless it is marked."""
        pending: list[Rows] = []
        for block in blocks:
            for piece in block.pieces():
                if pending and piece.begins[0]:
                    yield _join(pending, truncated=self.ends_are_complete)
                    pending = []
                yield from self._grow(pending, piece)
        if pending:
            yield _join(pending, truncated=self.ends_are_complete)

    def _grow(self, pending: list[Rows], piece: Rows) -> Iterator[Trajectory]:
        """Add a piece to the open trajectory and yield what it completes."""
        while len(piece):
            length = sum(map(len, pending))
            room = len(piece) if self.horizon is None else min(len(piece), self.horizon - length)
            pending.append(piece[:room])
            is_marked = pending[-1].is_marked
            if is_marked or length + room == self.horizon:
                self.num_cut_at_horizon += not is_marked
                yield _join(pending, truncated=not is_marked)
                pending.clear()
            piece = piece[room:]


def _join(pieces: list[Rows], *, truncated: bool) -> Trajectory:
    """One trajectory; `truncated` says how it ended if its last row does not."""
    last = pieces[-1]
    columns = {name: [piece.columns[name] for piece in pieces] for name in last.columns}
    return Trajectory.of(
        np.concatenate([piece.state for piece in pieces]),
        np.concatenate([piece.action for piece in pieces]),
        np.concatenate([piece.reward for piece in pieces]),
        # where the state after the last action was not recorded, the one before it stands in
        last.state[-1] if last.next_state is None else last.next_state[-1],
        terminated=bool(last.terminated[-1]),
        truncated=bool(last.truncated[-1]) if last.is_marked else truncated,
        columns={name: np.concatenate(parts) for name, parts in columns.items()},
    )
