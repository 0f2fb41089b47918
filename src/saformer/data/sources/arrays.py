"""Files of flat arrays, one row per step: D4RL and DSRL's HDF5, and NPZ."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.data.sources.dsrl import hints_of_file
from saformer.data.sources.rows import STAND_IN, Cutter, Rows
from saformer.data.sources.source import EnvironmentHints, Source
from saformer.data.trajectory import RESERVED, Trajectory

BLOCK_ROWS = 100_000
NAMES = {
    "state": ("observations", "states", "state", "obs"),
    "action": ("actions", "action"),
    "reward": ("rewards", "reward"),
    "terminated": ("terminals", "terminated", "terminations", "dones"),
    "truncated": ("timeouts", "truncated", "truncations"),
    "next_state": ("next_observations", "next_states", "next_state", "next_obs"),
    "cost": ("costs", "cost"),
}
"""What each part of a step is called in such files; the first name that is there counts."""
NEEDED = ("state", "action", "reward")
FLAT = ("reward", "terminated", "truncated", "cost")

# Gymnasium's v4 environments have the dynamics and rewards that D4RL's robots were recorded with.
D4RL_ROBOTS = {
    "hopper": ("Hopper-v4", 3),
    "walker2d": ("Walker2d-v4", 6),
    "halfcheetah": ("HalfCheetah-v4", 6),
}
D4RL_HORIZON = 1000
D4RL_FILE = re.compile(r"(hopper|walker2d|halfcheetah)[_-]([a-z_-]+?)(?:[_-]v(\d))?")
MISASSEMBLED_ROWS = 1_200_919
Shapes = dict[str, tuple[int, ...]]
OpenFile = tuple[Mapping[str, Any], Shapes]
"""Arrays by name, sliceable without being read whole, and the shape of each."""
Opener = Callable[[Path], AbstractContextManager[OpenFile]]


def read_hdf5(path: str | Path, known: EnvironmentHints | None = None) -> Source:
    """A file in the layout of D4RL (v0, v1, v2) or DSRL (with `costs`)."""
    return _source(Path(path), _open_hdf5, known)


def read_npz(path: str | Path, known: EnvironmentHints | None = None) -> Source:
    """A NumPy archive of flat arrays, by any of the usual names."""
    return _source(Path(path), _open_npz, known)


def _source(path: Path, open_file: Opener, known: EnvironmentHints | None) -> Source:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    with open_file(path) as (file, shapes):
        roles = _roles(path, shapes)
        num_rows, facts = shapes[roles["state"]][0], _facts(file, shapes)
        extra, left_out = _extra(file, roles, shapes)
    robot = D4RL_FILE.fullmatch(path.stem)
    shape = shapes[roles["action"]]
    ours = _hints(robot, shape) if robot else hints_of_file(path.name, shape[1])
    hints = (known or EnvironmentHints()).or_else(ours)
    cutter = Cutter(horizon=hints.horizon)

    def trajectories() -> Iterator[Trajectory]:
        cutter.num_cut_at_horizon = 0
        with open_file(path) as (file, _):
            yield from cutter.cut(_blocks(file, roles, extra, num_rows))

    def notes() -> list[str]:
        notes = list(_notes(robot, num_rows, roles, hints.horizon))
        if cutter.num_cut_at_horizon:
            count = f"{cutter.num_cut_at_horizon} episodes have no mark at their end"
            notes.append(f"{count} and were cut after {cutter.horizon} steps")
        if left_out:
            kind = "what is no number or flat vector per step"
            notes.append(f"{kind} was left out: {', '.join(left_out)}")
        return notes

    return Source(
        trajectories,
        num_rows,
        hints,
        {"source": path.name, "layout": "DSRL" if "cost" in roles else "D4RL", **facts},
        criteria=("cost",) if "cost" in roles else ("torque",),
        notes=notes,
    )


@contextmanager
def _open_hdf5(path: Path) -> Iterator[OpenFile]:
    try:
        import h5py
    except ImportError:
        raise ValueError("HDF5 files need h5py: pip install 'saformer[hdf5]'") from None
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        problem = f"is not an HDF5 file, or it is truncated or damaged ({error})"
        raise ValueError(f"{path} {problem}") from None
    with file:
        try:
            yield file, shapes_of(path, file)
        except (OSError, KeyError, RuntimeError) as error:
            raise ValueError(f"{path} is damaged: {error}") from None


def shapes_of(path: Path, file: Any) -> Shapes:
    """Of every array in an HDF5 file; one that lies in another file, which whoever made this one
    chose, is refused."""
    shapes: Shapes = {}

    def note(name: str, item: Any) -> None:
        shape = getattr(item, "shape", None)
        if shape is not None and (item.external or item.is_virtual):
            raise ValueError(f"{path}: {name} lies in another file, and none but this is read")
        if shape is not None:
            shapes[name] = shape

    file.visititems(note)
    return shapes


@contextmanager
def _open_npz(path: Path) -> Iterator[OpenFile]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            columns = {name: archive[name] for name in archive.files}
    except Exception as error:  # zipfile, zlib and NumPy each raise errors of their own
        raise ValueError(
            f"{path} is not a NumPy archive of plain arrays, or it is truncated or damaged "
            f"({error}); pickled objects are never loaded"
        ) from None
    yield columns, {name: values.shape for name, values in columns.items()}


def _roles(path: Path, shapes: Shapes) -> dict[str, str]:
    """{part of a step: name in the file}, checked to agree in length."""
    matches = {part: [name for name in names if name in shapes] for part, names in NAMES.items()}
    roles = {part: names[0] for part, names in matches.items() if names}
    missing = [f"{part} ({' or '.join(NAMES[part])})" for part in NEEDED if part not in roles]
    if missing:
        contents = ", ".join(sorted(shapes)) or "nothing"
        raise ValueError(f"{path} has no {', no '.join(missing)}; it holds {contents}")
    num_rows = shapes[roles["state"]][0] if shapes[roles["state"]] else 0
    if num_rows == 0:
        raise ValueError(f"{path} is empty: {roles['state']} has no rows")
    for part, name in roles.items():
        shape = shapes[name]
        if not shape or shape[0] != num_rows:
            expected = f"{num_rows} rows as in {roles['state']}"
            raise ValueError(f"{path}: {name} has shape {shape}, expected {expected}")
        dimensions = 1 if part in FLAT else 2
        is_squeezable = dimensions == 1 and shape[1:] == (1,)
        if len(shape) != dimensions and not is_squeezable:
            raise ValueError(f"{path}: {name} has shape {shape}, expected {dimensions} dimensions")
    return roles


def _blocks(
    file: Mapping[str, Any], roles: Mapping[str, str], extra: Mapping[str, str], num_rows: int
) -> Iterator[Rows]:
    def numbers(name: str, part: slice) -> NDArray[Any]:
        values: NDArray[Any] = file[name][part]
        if values.dtype.kind not in "fiub":
            raise ValueError(f"{name} holds {values.dtype}, expected numbers")
        return values

    for start in range(0, num_rows, BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        values = {role: numbers(name, part) for role, name in roles.items()}
        values |= {role: values[role].reshape(-1) for role in FLAT if role in values}
        columns = {column: numbers(name, part) for column, name in extra.items()}
        if "cost" in values:
            columns["cost"] = values["cost"]
        none = np.zeros(len(values["state"]), dtype=bool)
        yield Rows(
            values["state"],
            values["action"],
            values["reward"],
            values.get("terminated", none).astype(bool),
            values.get("truncated", none).astype(bool),
            begins=none,
            next_state=values.get("next_state"),
            columns=columns,
        )


def _extra(
    file: Mapping[str, Any], roles: Mapping[str, str], shapes: Shapes
) -> tuple[dict[str, str], list[str]]:
    """{column: name} of what else has a row per step (`infos/*`), and what cannot be a column."""
    num_rows, used = shapes[roles["state"]][0], set(roles.values())
    columns, left_out = {}, []
    for name, shape in shapes.items():
        if name in used or not shape or shape[0] != num_rows:
            continue
        if file[name].dtype.kind in "fiub" and len(shape) <= 2 and 0 not in shape:
            columns[f"info/{name}" if name in RESERVED else name] = name
        else:
            left_out.append(name)
    return columns, left_out


def _facts(file: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    """Single values that describe the recording, such as D4RL's metadata/algorithm, for JSON."""
    facts: dict[str, Any] = {}
    for name, shape in shapes.items():
        if shape == () and "metadata" in name:
            value = np.asarray(file[name][()]).item()
            value = value.decode(errors="replace") if isinstance(value, bytes) else value
            facts[name] = value if isinstance(value, str | bool | int | float) else str(value)
    return facts


def _hints(robot: re.Match[str], action_shape: tuple[int, ...]) -> EnvironmentHints:
    identifier, size = D4RL_ROBOTS[robot[1]]
    if action_shape[1:] != (size,):  # named like a robot, but another machine
        return EnvironmentHints()
    return EnvironmentHints(identifier, D4RL_HORIZON, (-1.0,) * size, (1.0,) * size)


def _notes(
    robot: re.Match[str] | None, num_rows: int, roles: Mapping[str, str], horizon: int | None
) -> Iterator[str]:
    name, version = (f"{robot[1]}-{robot[2]}", robot[3]) if robot else ("", None)
    is_first = version in (None, "0") or num_rows == MISASSEMBLED_ROWS
    if name.replace("_", "-") == "hopper-medium-expert" and is_first:
        yield (
            "D4RL's hopper-medium-expert-v0 was put together wrongly: it holds expert and replay "
            "data (1,200,919 rows) and no medium data (D4RL issue 19); use v2 instead"
        )
    if "truncated" not in roles:
        advice = "(give --horizon if a clock ends it, too)"
        more = advice if horizon is None else f"or after {horizon} steps"
        yield f"time-outs are not marked: an episode ends where it is marked as terminated {more}"
    if "next_state" not in roles:
        yield STAND_IN
    if roles.get("terminated") == "dones":
        yield '"dones" does not tell terminated from truncated: every end is taken as terminated'
