"""One recorded episode, checked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Trajectory:
    """T steps of one episode. `terminated` and `truncated` are both False if the recording broke off."""

    state: Floats
    """[T, S] before each action"""
    action: Floats
    """[T, A]"""
    reward: Floats
    """[T]"""
    final_state: Floats
    """[S] after the last action"""
    terminated: bool
    truncated: bool

    @classmethod
    def of(
        cls,
        state: ArrayLike,
        action: ArrayLike,
        reward: ArrayLike,
        final_state: ArrayLike,
        *,
        terminated: bool,
        truncated: bool,
    ) -> Trajectory:
        """Build from anything array-like; refuses what could not be learnt from."""
        columns = {"state": _matrix("state", state), "action": _matrix("action", action)}
        columns["reward"] = np.asarray(reward, dtype=np.float32)
        columns["final_state"] = np.asarray(final_state, dtype=np.float32)
        _check_shapes(columns)
        for name, values in columns.items():
            _check_finite(name, values)
        return cls(**columns, terminated=bool(terminated), truncated=bool(truncated))

    def __len__(self) -> int:
        return len(self.action)


def _matrix(name: str, values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float32)
    if array.ndim != 2:
        raise ValueError(f"{name} must be [steps, columns], got shape {array.shape}")
    return array


def _check_shapes(columns: dict[str, Floats]) -> None:
    state, action = columns["state"], columns["action"]
    if len(state) == 0:
        raise ValueError("a trajectory needs at least one step, got none")
    expected = {
        "action": (len(state), action.shape[1]),
        "reward": (len(state),),
        "final_state": (state.shape[1],),
    }
    for name, shape in expected.items():
        if columns[name].shape != shape:
            raise ValueError(f"{name} has shape {columns[name].shape}, expected {shape} to match {len(state)} states")


def _check_finite(name: str, values: Floats) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"{name} holds {int(bad.sum())} NaN or infinite values, the first at {where}; remove them first"
        )
