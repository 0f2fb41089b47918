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
    """T steps of one episode. Neither `terminated` nor `truncated`: the recording broke off."""

    state: Floats  # [T, S] before each action
    action: Floats  # [T, A]
    reward: Floats  # [T]
    final_state: Floats  # [S] after the last action
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
        _check(parts)
        steps = len(parts["state"])
        named = {name: _column(name, values, steps) for name, values in (columns or {}).items()}
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

    def episode_columns(self) -> dict[str, NDArray[Any]]:
        """Everything that has a row per trajectory, by name."""
        return {
            "length": np.array(len(self), dtype=np.int64),
            "final_state": self.final_state,
            "terminated": np.array(self.terminated),
            "truncated": np.array(self.truncated),
            "digest": self.digest(),
        }

    def digest(self) -> NDArray[np.uint8]:
        """[16] bytes that no other content has."""
        ends = f"{self.terminated} {self.truncated}".encode()
        digest = hashlib.blake2b(ends, digest_size=DIGEST_BYTES)
        columns = {**self.step_columns(), "final_state": self.final_state}
        for name, values in sorted(columns.items()):
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


def _column(name: str, values: ArrayLike, steps: int) -> NDArray[Any]:
    array = np.asarray(values)
    if name in RESERVED or not name:
        others = ", ".join(sorted(RESERVED))
        raise ValueError(f"a column may not be called {name!r}: choose a name other than {others}")
    if array.dtype.kind not in "fiub":
        raise ValueError(f"column {name!r} holds {array.dtype}, expected numbers")
    if array.ndim not in (1, 2) or len(array) != steps or 0 in array.shape[1:]:
        expected = f"({steps},) or ({steps}, k)"
        raise ValueError(f"column {name!r} has shape {array.shape}, expected {expected}")
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def _check(parts: dict[str, Floats]) -> None:
    steps, num_states = parts["state"].shape
    if steps == 0:
        raise ValueError("a trajectory needs at least one step, got none")
    shapes = {"action": (steps, parts["action"].shape[1])}
    for name, shape in {**shapes, "reward": (steps,), "final_state": (num_states,)}.items():
        if parts[name].shape != shape:
            problem = f"{name} has shape {parts[name].shape}, expected {shape}"
            raise ValueError(f"{problem} to match {steps} states")
    for name, values in parts.items():
        bad = ~np.isfinite(values)
        if bad.any():
            first = tuple(np.argwhere(bad)[0].tolist())
            count = f"{name} holds {int(bad.sum())} NaN or infinite values"
            raise ValueError(f"{count}, the first at {first}; remove them first")
