"""Which columns of a log are what."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

SEVERAL = ("state", "action", "next_state", "columns")
SINGLE = ("reward", "cost", "episode", "time", "terminated", "truncated")
USUAL = ("cost", "episode", "terminated", "truncated")
"""Optional columns that are taken for what they are called unless others are named."""
TOML_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    **dict.fromkeys(SEVERAL, ("a list of column names", (str,))),
    **dict.fromkeys(("action_low", "action_high"), ("a list of numbers", (int, float))),
    **dict.fromkeys(("gap", "horizon"), ("a number", (int, float))),
    "episodes_per_file": ("true or false", (bool,)),
}


@dataclass(frozen=True)
class LogMapping:
    """What each part of a step is called in the files. Names may hold *, as in "joint_*"."""

    state: tuple[str, ...] = ("state*", "obs*")
    """columns that make up the state, in this order"""
    action: tuple[str, ...] = ("action*",)
    """columns that make up the action, in this order"""
    reward: str = "reward"
    """column of the reward"""
    cost: str | None = None
    """column that was recorded as a cost; it becomes the store's criterion"""
    episode: str | None = None
    """column that changes when another episode begins"""
    time: str | None = None
    """column with the time of each step: seconds, or dates"""
    gap: float | None = None
    """another episode begins after a pause of more than this many seconds (needs a time column)"""
    terminated: str | None = None
    """column that is true where the machine ended the episode"""
    truncated: str | None = None
    """column that is true where the clock ended the episode"""
    next_state: tuple[str, ...] = ()
    """columns that make up the state after the step, where they were recorded"""
    columns: tuple[str, ...] = ()
    """further columns to keep, for criteria to read"""
    episodes_per_file: bool = False
    """episode numbers begin anew in each file"""
    delimiter: str = ","
    """what separates the columns of a CSV file; tabs in a .tsv unless anything else is said"""
    action_low: tuple[float, ...] | None = None
    """least possible action, one number per column (or one for all)"""
    action_high: tuple[float, ...] | None = None
    """greatest possible action"""
    horizon: int | None = None
    """longest possible episode in steps"""
    environment: str | None = None
    """simulator of this machine: a Gymnasium id, or as code (a class, a function, an id)
    module:Name or ./file.py:Name, which counts if it is typed, not if a mapping file names it"""

    def __post_init__(self) -> None:
        if self.gap is not None and self.time is None:
            raise ValueError("gaps in time tell episodes apart only if a time column is named")
        if self.gap is not None and not self.gap > 0:
            raise ValueError(f"the gap between episodes must be above 0 seconds, got {self.gap}")
        if len(self.delimiter) != 1:
            raise ValueError(f"the delimiter must be one character, got {self.delimiter!r}")

    @classmethod
    def from_toml(cls, path: str | Path) -> LogMapping:
        """Read a mapping such as

        state = ["height", "speed"]
        action = ["torque_*"]
        reward = "progress"
        episode = "run"
        """
        try:
            values = tomllib.loads(Path(path).read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not a TOML file: {error}") from None
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                nearest = difflib.get_close_matches(name, known, n=1)
                choices = f"known are {', '.join(sorted(known))}"
                hint = f"did you mean {nearest[0]}?" if nearest else choices
                raise ValueError(f"{path}: unknown entry {name!r}; {hint}")
        return cls(**{name: _typed(str(path), name, value) for name, value in values.items()})

    def resolve(self, header: Sequence[str]) -> LogMapping:
        """The same mapping with names of the header: patterns expanded, usual names filled in."""
        names: dict[str, Any] = {p: _expand(p, getattr(self, p), header) for p in SEVERAL}
        if self.state == LogMapping.state:  # either of the usual patterns will do
            names["state"] = tuple(name for name in header if name.startswith(("state", "obs")))
        for part in ("state", "action"):
            if not names[part]:
                raise ValueError(
                    f"no column is named as {part}: the header is {', '.join(header)}; say which "
                    f"with --{part} or in a mapping file"
                )
        for part in SINGLE:
            name = getattr(self, part)
            if name is None and part in USUAL and part in header:
                names[part] = part
            elif name is not None and name not in header:
                raise ValueError(f"there is no column {name!r} for {part}; {_hint(name, header)}")
        num_next, num_states = len(names["next_state"]), len(names["state"])
        if num_next not in (0, num_states):
            raise ValueError(f"{num_next} next_state columns for {num_states} state columns")
        return replace(self, **names)

    # The names below are of a resolved mapping, each once.

    @property
    def needed(self) -> tuple[str, ...]:
        """Numeric columns without which a step cannot be used; in others a value may be missing."""
        return _unique(*self.state, *self.action, self.reward, *self.next_state, self.cost)

    @property
    def numeric(self) -> tuple[str, ...]:
        """Columns that must hold numbers."""
        return _unique(*self.needed, *self.columns)

    @property
    def named(self) -> tuple[str, ...]:
        """Columns that the store has by name."""
        return _unique(self.cost, *self.columns)

    @property
    def read(self) -> tuple[str, ...]:
        """Every column that is read from the files."""
        others = (self.episode, self.time, self.terminated, self.truncated)
        return _unique(*self.numeric, *others)

    @property
    def marks_ends(self) -> bool:
        """Whether the log says where episodes ended."""
        return self.terminated is not None or self.truncated is not None


def _unique(*names: str | None) -> tuple[str, ...]:
    return tuple(name for name in dict.fromkeys(names) if name is not None)


def _typed(path: str, name: str, value: Any) -> Any:
    """A TOML value as the mapping wants it; one entry will do for a list."""
    is_list = name in (*SEVERAL, "action_low", "action_high")
    entries = value if is_list and isinstance(value, list) else [value]
    expected, types = TOML_TYPES.get(name, ("a text", (str,)))
    if not all(type(entry) in types for entry in entries):
        raise ValueError(f"{path}: {name} is {value!r}, expected {expected}")
    return tuple(entries) if is_list else value


def _expand(part: str, names: Sequence[str], header: Sequence[str]) -> tuple[str, ...]:
    """Names with their patterns replaced by the columns they match, in the header's order."""
    is_usual = names == getattr(LogMapping, part)
    columns: list[str] = []
    for name in names:
        if "*" in name:
            matches = [column for column in header if fnmatchcase(column, name)]
            if not matches and not is_usual:
                listed = ", ".join(header)
                raise ValueError(f"no column matches {name!r} for {part}; the header is {listed}")
            columns += matches
        elif name in header:
            columns.append(name)
        else:
            raise ValueError(f"there is no column {name!r} for {part}; {_hint(name, header)}")
    return _unique(*columns)


def _hint(name: str, header: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(name, header, n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else f"the header is {', '.join(header)}"
