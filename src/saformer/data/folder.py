"""A trajectory store as a folder: one flat file per column, and a manifest that says how much of
them counts.

Columns are only ever added to. A manifest is replaced whole, after what it speaks of is safely on
disk; so a process that dies at any point leaves the store as it was before, and bytes behind the
counted ones mean nothing.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from saformer.data.trajectory import DIGEST_BYTES, Trajectory

if TYPE_CHECKING:
    from saformer.data.store import EnvironmentSpec

FORMAT = 2
MANIFEST = "manifest.json"
LOCK = "lock"
Array = NDArray[Any]


@dataclass(frozen=True)
class Column:
    """What one row of a column looks like."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Size of one row on disk."""
        return np.dtype(self.dtype).itemsize * int(np.prod(self.shape, dtype=np.int64))

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True)
class Layout:
    """The columns of a store: one row per step, or one per episode."""

    steps: dict[str, Column]
    episodes: dict[str, Column]

    @classmethod
    def of(cls, trajectory: Trajectory) -> Layout:
        """The columns that a trajectory like this one needs."""
        return cls(
            {
                name: Column(str(v.dtype), v.shape[1:])
                for name, v in trajectory.step_columns().items()
            },
            {
                "length": Column("int64", ()),
                "final_state": Column("float32", trajectory.final_state.shape),
                "terminated": Column("bool", ()),
                "truncated": Column("bool", ()),
                "digest": Column("uint8", (DIGEST_BYTES,)),
            },
        )

    def check(self, index: int, trajectory: Trajectory) -> None:
        """Refuse a trajectory with other columns."""
        theirs = Layout.of(trajectory)
        if theirs == self:
            return
        for name in (*self.steps, *theirs.steps):
            ours, found = self.steps.get(name), theirs.steps.get(name)
            if ours != found:
                raise ValueError(
                    f"trajectory {index} has {found or 'no'} {name} columns, expected "
                    f"{ours or 'none'}: "
                    "all trajectories of a store have the same columns"
                )


def episode_row(trajectory: Trajectory) -> dict[str, Array]:
    """What is kept once per trajectory, as `Layout.episodes` says."""
    return {
        "length": np.array(len(trajectory), dtype=np.int64),
        "final_state": trajectory.final_state,
        "terminated": np.array(trajectory.terminated),
        "truncated": np.array(trajectory.truncated),
        "digest": trajectory.digest(),
    }


class StoreWriter:
    """Writes a new store, one trajectory after another; what is not finished leaves nothing behind.

    with StoreWriter(path) as writer: writer.add(trajectory); ...; writer.finish(environment, ...)
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.num_trajectories = 0
        self.num_steps = 0
        self._layout: Layout | None = None
        self._open = ExitStack()
        self._files: dict[str, IO[bytes]] = {}

    def __enter__(self) -> StoreWriter:
        if self.path.exists():
            raise FileExistsError(
                f"{self.path} exists; stores are never overwritten: choose another name or "
                "remove it"
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(self.path)
        self._unfinished = Path(
            tempfile.mkdtemp(prefix=f".{self.path.name}-", dir=self.path.parent)
        )
        self._open.enter_context(_locked(self._unfinished))
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._open.close()
        finally:
            shutil.rmtree(self._unfinished, ignore_errors=True)

    def add(self, trajectory: Trajectory) -> None:
        """Write one more trajectory."""
        if self._layout is None:
            self._layout = Layout.of(trajectory)
            _make_folders(self._unfinished)
            for name in _files_of(self._layout):
                self._files[name] = self._open.enter_context(
                    (self._unfinished / name).open("wb", buffering=1 << 20)
                )
        self._layout.check(self.num_trajectories, trajectory)
        _write(self._files, trajectory)
        self.num_trajectories += 1
        self.num_steps += len(trajectory)

    def finish(
        self,
        environment: EnvironmentSpec,
        *,
        criteria: Iterable[str] = ("torque",),
        provenance: Mapping[str, Any],
    ) -> None:
        """Put the store in its place."""
        if self._layout is None:
            raise ValueError("the dataset is empty: at least one trajectory is needed")
        num_actions = self._layout.steps["action"].shape[0]
        if num_actions != len(environment.action_low):
            raise ValueError(
                f"{num_actions} action columns and {len(environment.action_low)} action bounds"
            )
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
        _write_manifest(self._unfinished, manifest)
        self._open.close()
        (self._unfinished / LOCK).unlink()
        try:
            os.rename(self._unfinished, self.path)
        except OSError:
            if self.path.exists():
                raise FileExistsError(
                    f"{self.path} was made by somebody else in the meantime"
                ) from None
            raise


def append(path: Path, trajectories: Iterable[Trajectory]) -> int:
    """Add trajectories to a store, all of them or none. Returns how many there were before."""
    with _locked(path):
        manifest = read_manifest(path)
        layout = _layout_of(manifest)
        before, counted = int(manifest["trajectories"]), _sizes(manifest, layout)
        added = {name: io.BytesIO() for name in counted}
        for trajectory in trajectories:
            layout.check(manifest["trajectories"], trajectory)
            _write(added, trajectory)
            manifest["trajectories"] += 1
            manifest["steps"] += len(trajectory)
        try:
            for name, content in added.items():
                with (path / name).open("r+b") as file:
                    file.truncate(counted[name][1])  # what an interrupted append left
                    file.seek(counted[name][1])
                    file.write(content.getbuffer())
                    _flush(file)
            _write_manifest(path, manifest)
        except BaseException:
            for name in added:
                os.truncate(path / name, counted[name][1])
            raise
    return before


def read_manifest(path: Path) -> dict[str, Any]:
    """What a store says of itself."""
    try:
        manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{path} is not a trajectory store: it has no {MANIFEST}") from None
    except (json.JSONDecodeError, UnicodeDecodeError, IsADirectoryError) as error:
        raise ValueError(
            f"{path / MANIFEST} is damaged ({error}); build or import the data again"
        ) from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else "nothing"
        raise ValueError(
            f"{path} has store format {found}, this version reads {FORMAT}: remove it and build "
            "or import it again"
        )
    return manifest


def open_columns(
    path: Path, manifest: Mapping[str, Any]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Memory-map every column: steps and episodes. Nothing is read."""
    try:
        layout = _layout_of(manifest)
        sizes = _sizes(manifest, layout)
        kinds = ((layout.steps, "steps"), (layout.episodes, "episodes"))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path / MANIFEST} is damaged ({error!r}); build or import the data again"
        ) from None
    opened: list[dict[str, Array]] = []
    for columns, kind in kinds:
        found = {}
        for name, column in columns.items():
            rows, size = sizes[_file_of(kind, name)]
            found[name] = _map(path / _file_of(kind, name), column, rows, size)
        opened.append(found)
    found_steps = int(opened[1]["length"].sum())
    if found_steps != int(manifest["steps"]):
        raise ValueError(
            f"{path} is damaged: its trajectories have {found_steps} steps, its manifest says "
            f"{manifest['steps']}; "
            "build or import the data again"
        )
    return opened[0], opened[1]


def remove_abandoned(path: Path) -> None:
    """Remove what writers of this store left behind when they were killed."""
    for left in path.parent.glob(f".{path.name}-*"):
        if (left / LOCK).exists():
            with _locked(left, wait=False) as mine:
                if mine:
                    shutil.rmtree(left, ignore_errors=True)


def _map(file: Path, column: Column, rows: int, size: int) -> Array:
    try:
        found = file.stat().st_size
    except OSError as error:
        raise ValueError(
            f"{file} is missing or damaged ({error}); build or import the data again"
        ) from None
    if found < size:
        raise ValueError(
            f"{file} holds {found} bytes, its manifest says {size}: it was cut short; restore or "
            "rebuild it"
        )
    return np.memmap(file, dtype=column.dtype, mode="r", shape=(rows, *column.shape))


def _layout_of(manifest: Mapping[str, Any]) -> Layout:
    def columns(kind: str) -> dict[str, Column]:
        return {
            name: Column(d["dtype"], tuple(d["shape"]))
            for name, d in manifest["columns"][kind].items()
        }

    layout = Layout(columns("steps"), columns("episodes"))
    plain = {"float32", "float64", "int64", "bool", "uint8"}
    if not {c.dtype for c in (*layout.steps.values(), *layout.episodes.values())} <= plain:
        raise ValueError("a column has an unknown type")
    if any(size < 1 for c in layout.steps.values() for size in c.shape):
        raise ValueError("a column has no entries")
    if layout.episodes["digest"] != Column("uint8", (DIGEST_BYTES,)) or not {
        "state",
        "action",
        "reward",
    } <= set(layout.steps):
        raise ValueError("columns are missing")
    return layout


def _files_of(layout: Layout) -> list[str]:
    return [_file_of("steps", name) for name in layout.steps] + [
        _file_of("episodes", n) for n in layout.episodes
    ]


def _file_of(kind: str, name: str) -> str:
    return f"{kind}/{quote(name, safe='')}.bin"


def _sizes(manifest: Mapping[str, Any], layout: Layout) -> dict[str, tuple[int, int]]:
    """{file: (rows, bytes)} that count."""
    rows, episodes = int(manifest["steps"]), int(manifest["trajectories"])
    if rows < 1 or episodes < 1:
        raise ValueError(f"{rows} steps of {episodes} trajectories")
    sizes = {
        _file_of("steps", name): (rows, rows * c.row_bytes) for name, c in layout.steps.items()
    }
    return sizes | {
        _file_of("episodes", n): (episodes, episodes * c.row_bytes)
        for n, c in layout.episodes.items()
    }


def _make_folders(path: Path) -> None:
    for kind in ("steps", "episodes"):
        (path / kind).mkdir()


def _write(files: Mapping[str, IO[bytes]], trajectory: Trajectory) -> None:
    for kind, columns in (
        ("steps", trajectory.step_columns()),
        ("episodes", episode_row(trajectory)),
    ):
        for name, values in columns.items():
            files[_file_of(kind, name)].write(np.ascontiguousarray(values).tobytes())


def _flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    unfinished = path / f".{MANIFEST}"
    with unfinished.open("w") as file:
        json.dump(manifest, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path / MANIFEST)


@contextmanager
def one_maker(path: Path) -> Iterator[None]:
    """Hold what will stand at this path for oneself; whoever else would make it waits, and is
    told."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.parent / f".{path.name}.lock"
    with ExitStack() as held:
        if not held.enter_context(_held(lock, wait=False)) and os.name == "posix":
            warnings.warn(f"{path} is being made by another process: waiting for it", stacklevel=3)
            held.enter_context(_held(lock))
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a folder for oneself. True if it is ours."""
    with _held(path / LOCK, wait=wait) as mine:
        yield mine


@contextmanager
def _held(lock: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a file for oneself; the system lets go when the process ends, however it does. True if
    it is ours."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: one writer at a time is up to the user
        yield wait
        return
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
