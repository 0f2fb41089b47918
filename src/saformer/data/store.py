"""Trajectories in columns: in memory, or on disk and memory-mapped."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.data.trajectory import Trajectory

FORMAT = 1
MANIFEST = "manifest.json"
STEP_COLUMNS = ("state", "action", "reward")
EPISODE_COLUMNS = ("length", "final_state", "terminated", "truncated")
COLUMNS = STEP_COLUMNS + EPISODE_COLUMNS


@dataclass(frozen=True)
class EnvironmentSpec:
    """What is known of the machine that made the data. The identifier is absent when there is no simulator."""

    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    horizon: int
    """longest possible episode in steps"""
    identifier: str | None = None
    """Gymnasium id, as in "Hopper-v5" """
    arguments: dict[str, Any] = field(default_factory=dict)
    """what `gymnasium.make` is given beside the id"""

    def __post_init__(self) -> None:
        if len(self.action_low) != len(self.action_high):
            raise ValueError(f"{len(self.action_low)} lower and {len(self.action_high)} upper action bounds")
        if any(low >= high for low, high in zip(self.action_low, self.action_high, strict=True)):
            raise ValueError(f"action bounds are empty: {self.action_low} to {self.action_high}")


@dataclass(frozen=True)
class TrajectoryStore:
    """N trajectories, laid end to end: step columns are [steps, ...], episode columns [N, ...]."""

    columns: dict[str, NDArray[Any]]
    environment: EnvironmentSpec
    provenance: dict[str, Any] = field(default_factory=dict)
    """how the data came about: source, seeds, versions"""
    known_fingerprint: str | None = None

    @classmethod
    def of(
        cls,
        trajectories: Iterable[Trajectory],
        environment: EnvironmentSpec,
        provenance: dict[str, Any] | None = None,
    ) -> TrajectoryStore:
        """Gather trajectories in memory."""
        parts = list(trajectories)
        if not parts:
            raise ValueError("the dataset is empty: at least one trajectory is needed")
        for name, size in (("state", parts[0].state.shape[1]), ("action", len(environment.action_low))):
            odd = next((i for i, part in enumerate(parts) if getattr(part, name).shape[1] != size), None)
            if odd is not None:
                found = getattr(parts[odd], name).shape[1]
                raise ValueError(f"trajectory {odd} has {found} {name} columns, expected {size}")
        columns: dict[str, NDArray[Any]] = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in STEP_COLUMNS
        }
        columns["length"] = np.array([len(part) for part in parts], dtype=np.int64)
        columns["final_state"] = np.stack([part.final_state for part in parts])
        columns["terminated"] = np.array([part.terminated for part in parts])
        columns["truncated"] = np.array([part.truncated for part in parts])
        return cls(columns, environment, provenance or {})

    @classmethod
    def open(cls, path: str | Path) -> TrajectoryStore:
        """Open a saved store without reading its columns."""
        path = Path(path)
        manifest = _read_manifest(path)
        columns = {name: _open_column(path, name, spec) for name, spec in manifest["columns"].items()}
        environment = manifest["environment"]
        for bound in ("action_low", "action_high"):
            environment[bound] = tuple(environment[bound])
        return cls(columns, EnvironmentSpec(**environment), manifest["provenance"], manifest["fingerprint"])

    def save(self, path: str | Path) -> TrajectoryStore:
        """Write to a new folder, all of it or nothing, and open it from there."""
        path = Path(path)
        if path.exists():
            raise FileExistsError(f"{path} exists; stores are never overwritten: choose another name or remove it")
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        try:
            for name, values in self.columns.items():
                np.save(unfinished / f"{name}.npy", values, allow_pickle=False)
            (unfinished / MANIFEST).write_text(json.dumps(self._manifest(), indent=2))
            os.rename(unfinished, path)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        return TrajectoryStore.open(path)

    def __len__(self) -> int:
        return len(self.columns["length"])

    def __getitem__(self, index: int) -> Trajectory:
        start, stop = self.starts[index], self.starts[index] + self.columns["length"][index]
        state, action, reward = (np.asarray(self.columns[name][start:stop]) for name in STEP_COLUMNS)
        return Trajectory(
            state,
            action,
            reward,
            final_state=self.columns["final_state"][index],
            terminated=bool(self.columns["terminated"][index]),
            truncated=bool(self.columns["truncated"][index]),
        )

    def __iter__(self) -> Iterator[Trajectory]:
        return (self[index] for index in range(len(self)))

    @property
    def num_steps(self) -> int:
        """Environment steps in all trajectories together."""
        return len(self.columns["reward"])

    @property
    def starts(self) -> NDArray[np.int64]:
        """[N] where each trajectory begins in the step columns."""
        length = self.columns["length"]
        starts: NDArray[np.int64] = np.cumsum(length) - length
        return starts

    @property
    def finished(self) -> NDArray[np.bool_]:
        """[N] whether the episode was recorded to its end."""
        finished: NDArray[np.bool_] = self.columns["terminated"] | self.columns["truncated"]
        return finished

    @property
    def fingerprint(self) -> str:
        """A digest of every value: two stores with the same fingerprint hold the same data."""
        return self.known_fingerprint or _digest(self.columns)

    def _manifest(self) -> dict[str, Any]:
        described = {name: {"dtype": str(v.dtype), "shape": list(v.shape)} for name, v in self.columns.items()}
        return {
            "format": FORMAT,
            "columns": described,
            "environment": asdict(self.environment),
            "provenance": self.provenance,
            "fingerprint": self.fingerprint,
        }


def _digest(columns: dict[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(columns):
        values = np.ascontiguousarray(columns[name])
        digest.update(f"{name} {values.dtype} {values.shape}".encode())
        digest.update(values.data)
    return digest.hexdigest()[:16]


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{path} is not a trajectory store: it has no {MANIFEST}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path / MANIFEST} is damaged ({error}); build or import the data again") from None
    if manifest.get("format") != FORMAT:
        raise ValueError(f"{path} has store format {manifest.get('format')}, this version reads {FORMAT}")
    return manifest


def _open_column(path: Path, name: str, described: dict[str, Any]) -> NDArray[Any]:
    file = path / f"{name}.npy"
    try:
        values: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is missing or damaged ({error}); build or import the data again") from None
    if list(values.shape) != described["shape"] or str(values.dtype) != described["dtype"]:
        raise ValueError(f"{file} holds {values.dtype} {values.shape}, its manifest says {described}")
    return values
