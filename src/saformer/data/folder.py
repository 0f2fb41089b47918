"""A trajectory store as a folder: one flat file per column, and a manifest that counts their rows.

Columns only grow. The manifest is replaced whole, once the rows that it counts are safely on disk:
a process that dies at any point leaves the store as it was, and later bytes mean nothing.
"""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from saformer.data.trajectory import DIGEST_BYTES, Trajectory
from saformer.files import (
    finding_room,
    locked,
    open_to_change,
    publish,
    unfinished_folder,
    write_atomically,
)

if TYPE_CHECKING:
    from saformer.data.store import EnvironmentSpec

FORMAT = 2
MANIFEST = "manifest.json"
LOCK = "lock"
STORES = "stores"
PLAIN_TYPES = {"float32", "float64", "int64", "bool", "uint8"}
Array = NDArray[Any]


@dataclass(frozen=True)
class Column:
    """Type and shape of one row of a column."""

    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def row_bytes(self) -> int:
        return np.dtype(self.dtype).itemsize * int(np.prod(self.shape, dtype=np.int64))

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True)
class StoreLayout:
    """The columns of a store: one row per step, or one per episode."""

    steps: dict[str, Column]
    episodes: dict[str, Column]

    @classmethod
    def of(cls, trajectory: Trajectory) -> StoreLayout:
        """The columns that a trajectory like this one needs."""
        rows = trajectory.episode_columns().items()
        episodes = {name: Column(str(row.dtype), row.shape) for name, row in rows}
        return cls(_step_columns(trajectory), episodes)

    @classmethod
    def of_manifest(cls, manifest: Mapping[str, Any]) -> StoreLayout:
        """The columns that a manifest lists; KeyError, TypeError or ValueError if it is damaged."""
        steps, episodes = (
            {name: Column(c["dtype"], tuple(c["shape"])) for name, c in columns.items()}
            for columns in (manifest["columns"]["steps"], manifest["columns"]["episodes"])
        )
        if not {c.dtype for c in (*steps.values(), *episodes.values())} <= PLAIN_TYPES:
            raise ValueError("a column has an unknown type")
        if any(size < 1 for column in steps.values() for size in column.shape):
            raise ValueError("a column has no entries")
        has_digests = episodes["digest"] == Column("uint8", (DIGEST_BYTES,))
        if not has_digests or not {"state", "action", "reward"} <= set(steps):
            raise ValueError("columns are missing")
        return cls(steps, episodes)

    def check(self, index: int, trajectory: Trajectory) -> None:
        """Refuse a trajectory with other columns."""
        theirs = _step_columns(trajectory)
        for name in (*self.steps, *theirs):
            expected, actual = self.steps.get(name), theirs.get(name)
            if expected != actual:
                raise ValueError(
                    f"trajectory {index} has {actual or 'no'} {name} columns, expected "
                    f"{expected or 'none'}: all trajectories of a store have the same columns"
                )

    def check_bounds(self, environment: EnvironmentSpec) -> None:
        """Refuse an environment with another number of actions."""
        columns, bounds = self.steps["action"].shape[0], len(environment.action_low)
        if columns != bounds:
            raise ValueError(f"{columns} action columns and {bounds} action bounds")

    def sizes(self, manifest: Mapping[str, Any]) -> dict[str, int]:
        """{file: bytes} that count."""
        rows, kinds = _counted_rows(manifest), vars(self).items()
        columns = [(kind, name, column) for kind, each in kinds for name, column in each.items()]
        return {_file_of(kind, name): rows[kind] * c.row_bytes for kind, name, c in columns}


class StoreWriter:
    """Writes a new store, one trajectory after another; an unfinished one leaves nothing behind.

    with StoreWriter(path) as writer: writer.add(trajectory); ...; writer.finish(environment, ...)
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.num_trajectories, self.num_steps = 0, 0
        self._layout: StoreLayout | None = None
        self._open = ExitStack()
        self._files: dict[str, IO[bytes]] = {}

    def __enter__(self) -> StoreWriter:
        self._unfinished = self._open.enter_context(unfinished_folder(self.path, STORES))
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def add(self, trajectory: Trajectory) -> None:
        if self._layout is None:
            self._layout = StoreLayout.of(trajectory)
            for kind, columns in vars(self._layout).items():
                (self._unfinished / kind).mkdir()
                for file in (_file_of(kind, name) for name in columns):
                    writer = (self._unfinished / file).open("wb", buffering=1 << 20)
                    self._files[file] = self._open.enter_context(writer)
        self._layout.check(self.num_trajectories, trajectory)
        _write(self._files, trajectory)
        self.num_trajectories += 1
        self.num_steps += len(trajectory)

    def finish(
        self,
        environment: EnvironmentSpec,
        *,
        criteria: Iterable[str],
        provenance: Mapping[str, Any],
    ) -> None:
        """Move the store to its path."""
        if self._layout is None:
            raise ValueError("the dataset is empty: at least one trajectory is needed")
        self._layout.check_bounds(environment)
        for file in self._files.values():
            _flush(file)
        manifest = {
            "format": FORMAT,
            "trajectories": self.num_trajectories,
            "steps": self.num_steps,
            "columns": asdict(self._layout),
            "environment": asdict(environment),
            "criteria": list(criteria),
            "provenance": dict(provenance),
        }
        write_atomically(self._unfinished / MANIFEST, json.dumps(manifest, indent=2))
        publish(self._unfinished, self.path, STORES)


def append(path: Path, trajectories: Iterable[Trajectory]) -> int:
    """Add trajectories to a store, all of them or none. Returns how many there were before."""
    with locked(path / LOCK):
        manifest = read_manifest(path)
        layout = StoreLayout.of_manifest(manifest)
        num_before, sizes = int(manifest["trajectories"]), layout.sizes(manifest)
        added = {name: io.BytesIO() for name in sizes}
        for trajectory in trajectories:
            layout.check(manifest["trajectories"], trajectory)
            _write(added, trajectory)
            manifest["trajectories"] += 1
            manifest["steps"] += len(trajectory)
        try:
            for name, content in added.items():
                with finding_room(path / name), open_to_change(path / name) as file:
                    file.truncate(sizes[name])  # what an interrupted append left
                    file.seek(sizes[name])
                    file.write(content.getbuffer())
                    _flush(file)
            write_atomically(path / MANIFEST, json.dumps(manifest, indent=2))
        except BaseException:
            for name, size in sizes.items():
                with suppress(OSError), open_to_change(path / name) as file:
                    file.truncate(size)
            raise
    return num_before


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the store in this folder."""
    try:
        manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{path} is not a trajectory store: it has no {MANIFEST}") from None
    except (json.JSONDecodeError, UnicodeDecodeError, IsADirectoryError) as error:
        raise damaged_manifest(path, str(error)) from None
    version = manifest.get("format") if isinstance(manifest, dict) else "nothing"
    if version != FORMAT:
        advice = f"this version reads {FORMAT}: remove it and build or import it again"
        raise ValueError(f"{path} has store format {version}, {advice}")
    return manifest


def damaged_manifest(path: Path, why: str) -> ValueError:
    return ValueError(f"{path / MANIFEST} is damaged ({why}); build or import the data again")


def open_columns(
    path: Path, manifest: Mapping[str, Any]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Memory-map every column: steps and episodes. Nothing is read."""
    try:
        layout, rows = StoreLayout.of_manifest(manifest), _counted_rows(manifest)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged_manifest(path, repr(error)) from None
    steps, episodes = (
        {name: _map(path / _file_of(kind, name), c, rows[kind]) for name, c in columns.items()}
        for kind, columns in vars(layout).items()
    )
    num_steps = int(episodes["length"].sum())
    if num_steps != rows["steps"]:
        counts = f"its trajectories have {num_steps} steps, its manifest says {rows['steps']}"
        raise ValueError(f"{path} is damaged: {counts}; build or import the data again")
    return steps, episodes


def _step_columns(trajectory: Trajectory) -> dict[str, Column]:
    columns = trajectory.step_columns().items()
    return {name: Column(str(rows.dtype), rows.shape[1:]) for name, rows in columns}


def _map(file: Path, column: Column, rows: int) -> Array:
    try:
        size = file.stat().st_size
    except OSError as error:
        advice = "build or import the data again"
        raise ValueError(f"{file} is missing or damaged ({error}); {advice}") from None
    if size < rows * column.row_bytes:
        expected = f"its manifest says {rows * column.row_bytes}"
        raise ValueError(f"{file} holds {size} bytes, {expected}: restore or rebuild it")
    return np.memmap(file, dtype=column.dtype, mode="r", shape=(rows, *column.shape))


def _counted_rows(manifest: Mapping[str, Any]) -> dict[str, int]:
    steps, episodes = int(manifest["steps"]), int(manifest["trajectories"])
    if steps < 1 or episodes < 1:
        raise ValueError(f"{steps} steps of {episodes} trajectories")
    return {"steps": steps, "episodes": episodes}


def _file_of(kind: str, name: str) -> str:
    return f"{kind}/{quote(name, safe='')}.bin"


def _write(files: Mapping[str, IO[bytes]], trajectory: Trajectory) -> None:
    kinds = {"steps": trajectory.step_columns(), "episodes": trajectory.episode_columns()}
    for kind, columns in kinds.items():
        for name, values in columns.items():
            files[_file_of(kind, name)].write(np.ascontiguousarray(values).tobytes())


def _flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def one_maker(path: Path) -> Iterator[None]:
    """Let one process at a time make what will stand at this path; others wait, and say so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.parent / f".{path.name}.lock"
    with ExitStack() as stack:
        if not stack.enter_context(locked(lock, wait=False)) and os.name == "posix":
            warnings.warn(f"{path} is being made by another process: waiting for it", stacklevel=3)
            stack.enter_context(locked(lock))
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
