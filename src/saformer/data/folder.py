"""A trajectory store as a folder: one flat file per column, and a manifest that counts their rows.

Columns only grow. The manifest is replaced whole, once the rows that it counts are safely on disk:
a process that dies at any point leaves the store as it was, and later bytes mean nothing.
"""

from __future__ import annotations

import hashlib
import io
import math
import multiprocessing
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, cast
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from saformer.data.trajectory import DIGEST_BYTES, Trajectory
from saformer.files import (
    finding_room,
    locked,
    open_to_change,
    publish,
    read_json,
    unfinished_folder,
    validated,
    write_json,
)

if TYPE_CHECKING:
    from saformer.data.store import EnvironmentSpec

FORMAT = 2
MANIFEST = "manifest.json"
LOCK = "lock"
STORES = "stores"
REMEDY = "build or import the data again"
PlainType = Literal["float32", "float64", "int64", "bool", "uint8"]
Array = NDArray[Any]


@dataclass(frozen=True)
class Column:
    """Type and shape of one row of a column."""

    dtype: PlainType
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if any(size < 1 for size in self.shape):
            raise ValueError(f"a column of shape {list(self.shape)} has no entries")

    @property
    def row_bytes(self) -> int:
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)

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
        episodes = {name: _column(row.dtype, row.shape) for name, row in rows}
        return cls(_step_columns(trajectory), episodes)

    def __post_init__(self) -> None:
        state = self.steps.get("state", Column("float32"))
        action = self.steps.get("action", state)
        expected = {"reward": Column("float32"), "state": state, "action": action}
        _check_columns(self.steps, expected)
        for name in ("state", "action"):
            if expected[name].dtype != "float32" or len(expected[name].shape) != 1:
                raise ValueError(f"column {name} is {expected[name]}, expected float32 [n]")
        flags = dict.fromkeys(("terminated", "truncated"), Column("bool"))
        ends = {"length": Column("int64"), "final_state": state, **flags}
        _check_columns(self.episodes, {**ends, "digest": Column("uint8", (DIGEST_BYTES,))})

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

    def sizes(self, rows: Mapping[str, int]) -> dict[str, int]:
        """{file: bytes} that count."""
        kinds = vars(self).items()
        columns = [(kind, name, column) for kind, each in kinds for name, column in each.items()]
        return {_file_of(kind, name): rows[kind] * c.row_bytes for kind, name, c in columns}


@dataclass(frozen=True)
class Checksum:
    """Of how the first trajectories were cut and how they ended, and of their digests."""

    trajectories: int
    sha256: str

    @classmethod
    def of(cls, episodes: Mapping[str, Array], count: int) -> Checksum:
        digest = hashlib.sha256()
        for name in ("length", "terminated", "truncated", "digest"):
            digest.update(np.ascontiguousarray(episodes[name][:count]).data)
        return cls(count, digest.hexdigest())


@dataclass(frozen=True)
class Manifest:
    """What the manifest says; the environment as `EnvironmentSpec` has it."""

    format: int
    trajectories: int
    steps: int
    columns: StoreLayout
    environment: dict[str, Any]
    criteria: tuple[str, ...]
    provenance: dict[str, Any]
    checksum: Checksum | None = None  # older versions wrote none

    def __post_init__(self) -> None:
        if self.steps < self.trajectories or self.trajectories < 1:
            raise ValueError(f"{self.steps} steps of {self.trajectories} trajectories")
        if self.checksum and not 0 < self.checksum.trajectories <= self.trajectories:
            raise ValueError(f"{self.trajectories} trajectories are fewer than were stored")

    @property
    def rows(self) -> dict[str, int]:
        return {"steps": self.steps, "episodes": self.trajectories}

    def write(self, path: Path) -> None:
        """Last, once the columns are on disk."""
        checksum = Checksum.of(_mapped(path, self)["episodes"], self.trajectories)
        write_json(path / MANIFEST, asdict(replace(self, checksum=checksum)))


class StoreWriter:
    """Writes a new store, one trajectory after another; an unfinished one leaves nothing behind.

    with StoreWriter(path) as writer: writer.add(trajectory); ...; writer.finish(environment, ...)
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.num_trajectories, self.num_steps, self._longest = 0, 0, 0
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
        self._longest = max(self._longest, len(trajectory) if trajectory.finished else 0)
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
        check_horizon(self._longest, environment.horizon)
        for file in self._files.values():
            _flush(file)
        counts = (FORMAT, self.num_trajectories, self.num_steps)
        about = (asdict(environment), tuple(criteria), dict(provenance))
        Manifest(*counts, self._layout, *about).write(self._unfinished)
        publish(self._unfinished, self.path, STORES)


def append(path: Path, trajectories: Iterable[Trajectory]) -> int:
    """Add trajectories to a store, all of them or none. Returns how many there were before."""
    with locked(path / LOCK):
        manifest = read_manifest(path)
        layout, sizes = manifest.columns, manifest.columns.sizes(manifest.rows)
        added = {name: io.BytesIO() for name in sizes}
        count, steps = manifest.trajectories, manifest.steps
        for trajectory in trajectories:
            layout.check(count, trajectory)
            if trajectory.finished:
                check_horizon(len(trajectory), manifest.environment["horizon"])
            _write(added, trajectory)
            count, steps = count + 1, steps + len(trajectory)
        try:
            for name, content in added.items():
                with finding_room(path / name), open_to_change(path / name) as file:
                    file.truncate(sizes[name])  # what an interrupted append left
                    file.seek(sizes[name])
                    file.write(content.getbuffer())
                    _flush(file)
            replace(manifest, trajectories=count, steps=steps).write(path)
        except BaseException:
            for name, size in sizes.items():
                with suppress(OSError), open_to_change(path / name) as file:
                    file.truncate(size)
            raise
    return manifest.trajectories


def check_horizon(longest: int, horizon: int) -> None:
    """Refuse finished episodes that no episode of the environment could be."""
    if longest > horizon:
        raise ValueError(f"an episode ended after {longest} steps, and the horizon is {horizon}")


def read_manifest(path: Path) -> Manifest:
    """The manifest of the store in this folder."""
    file = path / MANIFEST
    if not file.exists():
        raise FileNotFoundError(f"{path} is not a trajectory store: it has no {MANIFEST}")
    content = read_json(file, dict[str, Any], REMEDY)
    if content.get("format") != FORMAT:
        advice = f"this version reads {FORMAT}: remove it and build or import it again"
        raise ValueError(f"{path} has store format {content.get('format')!r}, {advice}")
    manifest: Manifest = validated(Manifest, content, file, REMEDY)
    return manifest


def open_columns(path: Path, manifest: Manifest) -> tuple[dict[str, Array], dict[str, Array]]:
    """Memory-map every column: steps and episodes. What is read is how trajectories were cut."""
    columns = _mapped(path, manifest)
    steps, episodes = columns["steps"], columns["episodes"]
    lengths, known = episodes["length"], manifest.checksum
    if lengths.min() < 1 or lengths.sum(dtype=np.float64) != manifest.steps:  # none wraps around
        counts = f"its manifest says {manifest.steps}"
        counts = f"its trajectories have {sum(lengths.tolist())} steps, {counts}"
        if lengths.min() < 1:
            counts = f"a trajectory has {lengths.min()} steps"
        raise ValueError(f"{path} is damaged: {counts}; {REMEDY}")
    if known and Checksum.of(episodes, known.trajectories) != known:
        raise ValueError(f"{path} is damaged: its episodes are not what was stored; {REMEDY}")
    return steps, episodes


def _mapped(path: Path, manifest: Manifest) -> dict[str, dict[str, Array]]:
    rows, kinds = manifest.rows, vars(manifest.columns).items()
    return {
        kind: {name: _map(path / _file_of(kind, name), c, rows[kind]) for name, c in each.items()}
        for kind, each in kinds
    }


def _check_columns(columns: Mapping[str, Column], expected: Mapping[str, Column]) -> None:
    for name, column in expected.items():
        if columns.get(name) != column:
            raise ValueError(f"column {name} is {columns.get(name, 'missing')}, expected {column}")


def _step_columns(trajectory: Trajectory) -> dict[str, Column]:
    columns = trajectory.step_columns().items()
    return {name: _column(rows.dtype, rows.shape[1:]) for name, rows in columns}


@cache
def _column(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Column:
    return Column(cast(PlainType, str(dtype)), shape)


def _map(file: Path, column: Column, rows: int) -> Array:
    try:
        size = file.stat().st_size
    except OSError as error:
        raise ValueError(f"{file} is missing or damaged ({error}); {REMEDY}") from None
    if size < rows * column.row_bytes:
        expected = f"its manifest says {rows * column.row_bytes}"
        raise ValueError(f"{file} holds {size} bytes, {expected}: restore or rebuild it")
    import torch  # late: environments' workers open no columns

    shape = (rows, *column.shape)
    try:  # without a descriptor, of which a process may have few
        kind = getattr(torch, column.dtype)
        mapped = torch.from_file(str(file), shared=False, size=math.prod(shape), dtype=kind)
    except RuntimeError:  # larger than memory, or not ours to read
        return np.memmap(file, dtype=column.dtype, mode="r", shape=shape)
    values: Array = mapped.numpy().reshape(shape)
    values.flags.writeable = False
    return values


@cache
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


def end_in_workers() -> None:
    """End a worker that runs its parent's script again; the parent says why. This comes before an
    environment's libraries, which start processes that complain when a worker is gone, and before
    it waits for what its own parent makes."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(1)


@contextmanager
def one_maker(path: Path) -> Iterator[None]:
    """Let one process at a time make what will stand at this path; others wait, and say so."""
    end_in_workers()
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
