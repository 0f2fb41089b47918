"""One recorded episode, checked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float32]
RESERVED = frozenset({"state", "action", "reward", "next_state"})
"""Names that no other column may have: criteria know them as parts of a step."""
DIGEST_BYTES = 16


@dataclass(frozen=True)
class Trajectory:
    """T steps of one episode. `terminated` and `truncated` are both False if the recording broke
    off."""

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
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """whatever else was recorded at each step, by name: [T] or [T, k]; NaN where nothing was"""

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
        columns: Mapping[str, ArrayLike] | None = None,
    ) -> Trajectory:
        """Build from anything array-like; refuses what could not be learnt from."""
        parts = {"state": _matrix("state", state), "action": _matrix("action", action)}
        parts["reward"] = np.asarray(reward, dtype=np.float32)
        parts["final_state"] = np.asarray(final_state, dtype=np.float32)
        _check_shapes(parts)
        for name, values in parts.items():
            _check_finite(name, values)
        named = {
            name: _named(name, values, len(parts["state"]))
            for name, values in (columns or {}).items()
        }
        return cls(**parts, terminated=bool(terminated), truncated=bool(truncated), columns=named)

    def __len__(self) -> int:
        return len(self.action)

    @property
    def finished(self) -> bool:
        """Whether the episode was recorded to its end."""
        return self.terminated or self.truncated

    def step_columns(self) -> dict[str, NDArray[Any]]:
        """Everything that has a row per step, by name."""
        return {"state": self.state, "action": self.action, "reward": self.reward, **self.columns}

    def digest(self) -> NDArray[np.uint8]:
        """[16] bytes that no other content has."""
        digest = hashlib.blake2b(
            f"{self.terminated} {self.truncated}".encode(), digest_size=DIGEST_BYTES
        )
        for name, values in sorted(
            {**self.step_columns(), "final_state": self.final_state}.items()
        ):
            digest.update(f"{name} {values.dtype} {values.shape}".encode())
            digest.update(np.ascontiguousarray(values).data)
        return np.frombuffer(digest.digest(), dtype=np.uint8)


def _matrix(name: str, values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float32)
    if array.ndim != 2:
        raise ValueError(f"{name} must be [steps, columns], got shape {array.shape}")
    if array.shape[1] == 0:
        raise ValueError(f"{name} has shape {array.shape}: at least one column is needed")
    return array


def _named(name: str, values: ArrayLike, steps: int) -> NDArray[Any]:
    array = np.asarray(values)
    if name in RESERVED or not name:
        raise ValueError(
            f"a column may not be called {name!r}: choose a name other than "
            f"{', '.join(sorted(RESERVED))}"
        )
    if array.dtype.kind not in "fiub":
        raise ValueError(f"column {name!r} holds {array.dtype}, expected numbers")
    if array.ndim not in (1, 2) or len(array) != steps or 0 in array.shape[1:]:
        raise ValueError(
            f"column {name!r} has shape {array.shape}, expected ({steps},) or ({steps}, k)"
        )
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


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
            raise ValueError(
                f"{name} has shape {columns[name].shape}, expected {shape} to match {len(state)} "
                "states"
            )


def _check_finite(name: str, values: Floats) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"{name} holds {int(bad.sum())} NaN or infinite values, the first at {where}; remove "
            "them first"
        )
