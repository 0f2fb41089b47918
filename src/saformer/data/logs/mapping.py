"""Which columns of a log are what, and how they are written."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import nan
from pathlib import Path
from typing import Any, Literal

from saformer.data.sources.source import EnvironmentHints

SEVERAL = ("state", "action", "next_state", "columns")
PERIODS = {"hour": 3600, "day": 86_400, "week": 604_800}
UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "days": 86_400.0}
"""Of a clock that counts, in seconds."""
ON_OFF = dict.fromkeys(("on", "true", "yes", "open"), 1.0)
ON_OFF |= dict.fromkeys(("off", "false", "no", "closed"), 0.0)
NOTHING = ("", "-", "--", "?", "na", "n/a", "#n/a", "nan", "null", "none", "missing")
LISTS = (*SEVERAL, "na", "words", "discrete", "action_low", "action_high")
TOML_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    **dict.fromkeys((*SEVERAL, "discrete"), ("a list of column names", (str,))),
    **dict.fromkeys(("na", "words"), ("a list of texts", (str,))),
    **dict.fromkeys(("action_low", "action_high"), ("a list of numbers", (int, float))),
    **dict.fromkeys(("gap", "horizon"), ("a number", (int, float))),
    **dict.fromkeys(("episode_length", "fill_limit"), ("a whole number", (int,))),
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
    """column of the reward, or an expression over columns, as in "-abs(`Room [°C]` - 21)\""""
    cost: str | None = None
    """column that was recorded as a cost, or an expression; it becomes the store's criterion"""
    episode: str | None = None
    """column that changes when another episode begins; or hour, day or week of the time column"""
    episode_length: int | None = None
    """cut recordings into episodes of this many steps"""
    time: str | None = None
    """column with the time of each step: seconds, or dates"""
    time_of_day: str | None = None
    """column with the hours and minutes, where the time column has the date alone"""
    time_format: str | None = None
    """how dates are written, as in "%d.%m.%Y %H:%M", or the unit of a clock that counts (s, ms, us,
    ns, days); by default guessed from the first rows"""
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
    delimiter: str | None = None
    """what separates the columns of a CSV file; by default guessed from the first rows"""
    decimal: str | None = None
    """the decimal point of a CSV file, . or a comma; by default guessed from the first rows"""
    encoding: str = "utf-8"
    """how the text of a CSV file is encoded, as in cp1252 or utf-16"""
    na: tuple[str, ...] = ()
    """words and numbers that stand for a missing value, beside the usual ones, as in ERR -999"""
    words: tuple[str, ...] = ()
    """words that stand for numbers, beside on and off, as in LOW=0 MID=0.5 HIGH=1"""
    fill: Literal["forward"] | None = None
    """forward: a missing value is the one before it in the same recording"""
    fill_limit: int = 10
    """longest stretch that is filled, in steps"""
    resample: str | None = None
    """one step every 30s, 15min, 1h or 1d: the mean of the rows within it"""
    discrete: tuple[str, ...] | None = None
    """action columns that take no values but the logged ones, or none for none; by default those
    with at most 10, each logged at least 20 times"""
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
        if self.time_of_day is not None and self.time is None:
            raise ValueError("a time of day needs the column with its date: name it with --time")
        if self.gap is not None and not self.gap > 0:
            raise ValueError(f"the gap between episodes must be above 0 seconds, got {self.gap}")
        for name in ("delimiter", "decimal"):
            mark = getattr(self, name)
            if mark is not None and len(mark) != 1:
                raise ValueError(f"the {name} must be one character, got {mark!r}")
        for name in ("episode_length", "fill_limit"):
            if (getattr(self, name) or 1) < 1:
                raise ValueError(f"{name} must be at least 1 step, got {getattr(self, name)}")
        if self.fill not in (None, "forward"):
            raise ValueError(f"fill is {self.fill!r}, expected forward")
        if self.resample is not None and not self.seconds:
            expected = "a number of s, min, h or d, as in 15min, and a time column"
            raise ValueError(f"resample is {self.resample!r}, expected {expected}")
        if self.meanings is None:
            raise ValueError(f"words are {self.words}, expected WORD=NUMBER, as in LOW=0 HIGH=1")

    @classmethod
    def of(cls, mapping: SomeMapping) -> LogMapping:
        """A mapping as it is, from a TOML file, or from a dictionary of the same entries."""
        if isinstance(mapping, LogMapping):
            return mapping
        if isinstance(mapping, str | Path):
            return cls.from_toml(mapping)
        return cls._from(dict(mapping or {}), "the mapping")

    @classmethod
    def from_toml(cls, path: str | Path) -> LogMapping:
        """Read a mapping such as

        state = ["height", "speed"]
        action = ["torque_*"]
        reward = "progress"
        episode = "run"
        """
        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not a TOML file: {error}") from None
        return cls._from(values, str(path))

    @classmethod
    def _from(cls, values: Mapping[str, Any], path: str) -> LogMapping:
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                nearest = difflib.get_close_matches(name, known, n=1)
                choices = f"known are {', '.join(sorted(known))}"
                hint = f"did you mean {nearest[0]}?" if nearest else choices
                raise ValueError(f"{path}: unknown entry {name!r}; {hint}")
        typed = {name: _typed(path, name, value) for name, value in values.items()}
        try:
            return cls(**typed)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @property
    def known(self) -> EnvironmentHints:
        """What it says of the machine."""
        bounds = (self.action_low, self.action_high)
        return EnvironmentHints(self.environment, self.horizon, *bounds)

    @property
    def period(self) -> str | None:
        """The stretch of the calendar that is an episode."""
        return self.episode if self.episode in PERIODS and self.time is not None else None

    @property
    def cuts(self) -> bool:
        """Whether the clock ends episodes, whatever the log marks."""
        return self.period is not None or self.episode_length is not None

    @property
    def seconds(self) -> float:
        """Between steps that are resampled; 0 if they are not."""
        match = re.fullmatch(r"(\d+)\s*(s|min|h|d)", self.resample or "")
        return float(match[1]) * UNITS[match[2]] if match and self.time else 0.0

    @property
    def meanings(self) -> dict[str, float] | None:
        """What words stand for, in small letters; None if that cannot be told."""
        try:
            pairs = [word.rsplit("=", 1) for word in self.words]
            words = {word.strip().lower(): float(number) for word, number in pairs}
        except ValueError:
            return None
        missing = dict.fromkeys([*NOTHING, *(word.strip().lower() for word in self.na)], nan)
        return {**ON_OFF, **words, **missing}


def _typed(path: str, name: str, value: Any) -> Any:
    """A TOML value as the mapping wants it; one entry will do for a list."""
    is_list = name in LISTS
    entries = value if is_list and isinstance(value, list | tuple) else [value]
    expected, types = TOML_TYPES.get(name, ("a text", (str,)))
    if not all(type(entry) in types for entry in entries):
        raise ValueError(f"{path}: {name} is {value!r}, expected {expected}")
    return tuple(entries) if is_list else value


SomeMapping = LogMapping | Mapping[str, Any] | str | Path | None
"""A mapping, a dictionary of its entries, or the TOML file that holds them."""
