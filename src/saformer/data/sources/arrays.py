"""Files of flat arrays, one row per step: D4RL and DSRL's HDF5, and NPZ."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from saformer.data.sources.rows import Cutter, Rows
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


class Columns(Protocol):
    """An open file: arrays by name, sliceable without being read whole."""

    def __getitem__(self, name: str) -> Any: ...


def read_hdf5(path: str | Path, known: EnvironmentHints | None = None) -> Source:
    """A file in the layout of D4RL (v0, v1, v2) or DSRL (with `costs`)."""
    return _source(Path(path), _open_hdf5, known or EnvironmentHints())


def read_npz(path: str | Path, known: EnvironmentHints | None = None) -> Source:
    """A NumPy archive of flat arrays, by any of the usual names."""
    return _source(Path(path), _open_npz, known or EnvironmentHints())


def _source(path: Path, open_file: Callable[[Path], Any], known: EnvironmentHints) -> Source:
    with open_file(path) as (file, shapes):
        roles = _roles(path, shapes)
        num_rows = shapes[roles["state"]][0]
        facts = _facts(file, shapes)
        extra, left_out = _extra(file, roles, shapes, num_rows)
    robot = D4RL_FILE.fullmatch(path.stem)
    hints = known.or_else(_hints(robot, shapes[roles["action"]]))
    cutter = Cutter(horizon=hints.horizon)

    def trajectories() -> Iterator[Trajectory]:
        cutter.num_cut_at_horizon = 0
        with open_file(path) as (file, _):
            yield from cutter.cut(_blocks(file, roles, extra, num_rows))

    def notes() -> list[str]:
        return [
            *_warnings(robot, num_rows, roles, hints.horizon),
            *_horizon_note(cutter),
            *_left_out_note(left_out),
        ]

    return Source(
        trajectories,
        num_rows,
        hints,
        {"source": path.name, "layout": "DSRL" if "cost" in roles else "D4RL", **facts},
        criteria=("cost",) if "cost" in roles else ("torque",),
        notes=notes,
    )


@contextmanager
def _open_hdf5(path: Path) -> Iterator[tuple[Columns, dict[str, tuple[int, ...]]]]:
    try:
        import h5py
    except ImportError:
        raise ValueError("HDF5 files need h5py: pip install 'saformer[hdf5]'") from None
    _check_there(path)
    shapes: dict[str, tuple[int, ...]] = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.shape is not None:
            shapes[name] = item.shape

    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ValueError(
            f"{path} is not an HDF5 file, or it is truncated or damaged ({error})"
        ) from None
    with file:
        file.visititems(note)
        try:
            yield file, shapes
        except OSError as error:
            raise ValueError(f"{path} is damaged: {error}") from None


@contextmanager
def _open_npz(path: Path) -> Iterator[tuple[Columns, dict[str, tuple[int, ...]]]]:
    _check_there(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            columns = {name: archive[name] for name in archive.files}
    except (
        Exception
    ) as error:  # zipfile, zlib and NumPy each have errors of their own for a damaged archive
        raise ValueError(
            f"{path} is not a NumPy archive of plain arrays, or it is truncated or damaged "
            f"({error}); "
            "pickled objects are never loaded"
        ) from None
    yield columns, {name: values.shape for name, values in columns.items()}


def _check_there(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")


def _roles(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """{part of a step: name in the file}, checked to agree in length."""
    roles = {}
    for part, names in NAMES.items():
        found = next((name for name in names if name in shapes), None)
        if found is not None:
            roles[part] = found
    missing = [f"{part} ({' or '.join(NAMES[part])})" for part in NEEDED if part not in roles]
    if missing:
        raise ValueError(
            f"{path} has no {', no '.join(missing)}; it holds "
            f"{', '.join(sorted(shapes)) or 'nothing'}"
        )
    num_rows = shapes[roles["state"]][0] if shapes[roles["state"]] else 0
    if num_rows == 0:
        raise ValueError(f"{path} is empty: {roles['state']} has no rows")
    for part, name in roles.items():
        if not shapes[name] or shapes[name][0] != num_rows:
            raise ValueError(
                f"{path}: {name} has shape {shapes[name]}, expected {num_rows} rows as in "
                f"{roles['state']}"
            )
        dimensions = 2 if part in ("state", "action", "next_state") else 1
        squeezable = len(shapes[name]) == 2 and shapes[name][1] == 1
        if len(shapes[name]) != dimensions and not (dimensions == 1 and squeezable):
            raise ValueError(
                f"{path}: {name} has shape {shapes[name]}, expected {dimensions} dimensions"
            )
    return roles


def _blocks(
    file: Columns, roles: Mapping[str, str], extra: Mapping[str, str], num_rows: int
) -> Iterator[Rows]:
    for start in range(0, num_rows, BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        taken = {role: _plain(name, file[name][part]) for role, name in roles.items()}
        flat = {
            role: values.reshape(len(values))
            for role, values in taken.items()
            if values.ndim == 1 or role in FLAT
        }
        none = np.zeros(len(taken["state"]), dtype=bool)
        columns = {column: _plain(name, file[name][part]) for column, name in extra.items()}
        if "cost" in flat:
            columns["cost"] = flat["cost"]
        yield Rows(
            taken["state"],
            taken["action"],
            flat["reward"],
            flat["terminated"].astype(bool) if "terminated" in flat else none,
            flat["truncated"].astype(bool) if "truncated" in flat else none,
            begins=none,
            next_state=taken.get("next_state"),
            columns=columns,
        )


def _extra(
    file: Columns, roles: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]], num_rows: int
) -> tuple[dict[str, str], list[str]]:
    """Whatever else has a row per step (`infos/*`), as {column: name in the file}, and what cannot
    be a column."""
    taken = set(roles.values())
    found = [
        name
        for name, shape in shapes.items()
        if name not in taken and shape and shape[0] == num_rows
    ]
    left_out = [name for name in found if not _is_column(file[name].dtype, shapes[name])]
    return {f"info/{n}" if n in RESERVED else n: n for n in found if n not in left_out}, left_out


def _is_column(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    return dtype.kind in "fiub" and len(shape) <= 2 and 0 not in shape


def _plain(name: str, values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind not in "fiub":
        raise ValueError(f"{name} holds {values.dtype}, expected numbers")
    return values


def _facts(file: Columns, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Single values that describe the recording, such as D4RL's metadata/algorithm."""
    facts: dict[str, Any] = {}
    for name, shape in shapes.items():
        if shape == () and "metadata" in name:
            value = np.asarray(file[name][()]).item()
            value = value.decode(errors="replace") if isinstance(value, bytes) else value
            facts[name] = (
                value if isinstance(value, str | bool | int | float) else str(value)
            )  # as a manifest keeps it
    return facts


def _hints(robot: re.Match[str] | None, action_shape: tuple[int, ...]) -> EnvironmentHints:
    if robot is None:
        return EnvironmentHints()
    identifier, num_actions = D4RL_ROBOTS[robot[1]]
    if action_shape[1:] != (num_actions,):  # named like a robot, but another machine
        return EnvironmentHints()
    return EnvironmentHints(identifier, D4RL_HORIZON, (-1.0,) * num_actions, (1.0,) * num_actions)


def _warnings(
    robot: re.Match[str] | None, num_rows: int, roles: Mapping[str, str], horizon: int | None
) -> list[str]:
    notes = []
    named = (
        robot is not None and robot[1] == "hopper" and robot[2].replace("-", "_") == "medium_expert"
    )
    if robot is not None and named and (robot[3] in (None, "0") or num_rows == MISASSEMBLED_ROWS):
        notes.append(
            "D4RL's hopper-medium-expert-v0 was put together wrongly: it holds expert and replay "
            "data (1,200,919 rows) "
            "and no medium data (D4RL issue 19); use v2 instead"
        )
    if "truncated" not in roles:
        notes.append(
            "the file does not mark time-outs: an episode ends where it is marked as terminated"
            + (
                " (give --horizon if a clock ends it, too)"
                if horizon is None
                else f" or after {horizon} steps"
            )
        )
    if "next_state" not in roles:
        notes.append(
            "the state after the last step of an episode is not recorded: the state before it "
            "stands in"
        )
    if roles.get("terminated") == "dones":
        notes.append(
            '"dones" does not tell terminated from truncated: every marked end is taken as terminated'
        )
    return notes


def _horizon_note(cutter: Cutter) -> list[str]:
    if not cutter.num_cut_at_horizon:
        return []
    return [
        f"{cutter.num_cut_at_horizon} episodes have no mark at their end and were cut after "
        f"{cutter.horizon} steps"
    ]


def _left_out_note(names: list[str]) -> list[str]:
    if not names:
        return []
    return [f"what is no number or flat vector per step was left out: {', '.join(names)}"]
