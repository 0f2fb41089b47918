"""A first reading of a log, to find what is wrong with it before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.data.logs.episodes import Segmenter
from saformer.data.logs.files import LogBlock, read_blocks
from saformer.data.logs.mapping import LogMapping

UNUSABLE = "values that are missing, infinite or too large"
LARGEST = float(np.finfo(np.float32).max)
"""What a store can hold."""
LONG_PAUSE = 1.5
"""A step that took this many times as long as usual counts as a gap."""


@dataclass
class ColumnSurvey:
    """What one column holds."""

    low: float = np.inf
    high: float = -np.inf
    num_missing: int = 0
    first_missing: str | None = None

    @property
    def is_constant(self) -> bool:
        """Whether it never changes."""
        return self.low == self.high


@dataclass
class LogSurvey:
    """What a log holds, and what is wrong with it."""

    mapping: LogMapping
    files: tuple[Path, ...]
    num_rows: int = 0
    lengths: list[int] = field(default_factory=list)
    """steps of each episode"""
    columns: dict[str, ColumnSurvey] = field(default_factory=dict)
    num_duplicates: int = 0
    num_pauses: int = 0
    num_backward: int = 0
    num_restarts: int = 0
    """times that a clock which runs backwards began another episode"""
    time: ColumnSurvey = field(default_factory=ColumnSurvey)
    num_unmarked: int = 0
    """episodes without a mark at their end, where other ends are marked"""
    num_unnamed: int = 0
    """episodes whose rows have nothing in the episode column"""
    usual_step: float | None = None
    """seconds"""
    repeated: list[str] = field(default_factory=list)
    """episodes whose rows lie apart"""
    faulty: dict[int, str] = field(default_factory=dict)
    """number of each episode that cannot be used, and the first reason why"""

    @property
    def problems(self) -> list[str]:
        """Why the log cannot be imported as it is."""
        found = [
            f"column {name!r} has {column.num_missing} {UNUSABLE}, the first in "
            f"{column.first_missing}"
            for name, column in self.columns.items()
            if column.num_missing and name in self.mapping.needed
        ]
        if self.time.num_missing:
            found.append(
                f"time column {self.mapping.time!r} lacks {self.time.num_missing} values, the "
                "first in "
                f"{self.time.first_missing}"
            )
        if self.num_duplicates and self.mapping.time is not None:
            found.append(
                f"{self.num_duplicates} steps are recorded twice: at the same time as the step "
                "before"
            )
        elif self.num_duplicates:
            found.append(
                f"{self.num_duplicates} steps are recorded twice: every column that is read "
                "repeats the step before; "
                "where a machine at rest looks so, name a column that tells steps apart with --time"
            )
        if self.num_backward:
            found.append(f"time runs backwards at {self.num_backward} steps within an episode")
        if self.repeated:
            found.append(
                f"rows of {len(self.repeated)} episodes lie apart, those of {self.repeated[0]!r} "
                "for example: sort the "
                "log by episode and time, or say --episodes-per-file if numbers begin anew in "
                "each file"
            )
        if self.num_unnamed:
            found.append(
                f"the episode column {self.mapping.episode!r} is empty in {self.num_unnamed} places"
            )
        ended = [why for why in self.faulty.values() if "after its end" in why]
        if ended:
            found.append(
                f"{len(ended)} episodes go on after they are marked as ended, {ended[0]} for "
                "example"
            )
        return found

    @property
    def warnings(self) -> list[str]:
        """What a user should know, but may live with."""
        found = []
        constant = [name for name, column in self.columns.items() if column.is_constant]
        if constant:
            found.append(f"columns that never change teach nothing: {', '.join(constant)}")
        found += [
            f"column {name!r} has {column.num_missing} {UNUSABLE}, the first in "
            f"{column.first_missing}"
            for name, column in self.columns.items()
            if column.num_missing and name not in self.mapping.needed
        ]
        if self.num_pauses:
            found.append(
                f"{self.num_pauses} steps took more than {LONG_PAUSE:g} times the usual "
                f"{self.usual_step:.4g} s: rows "
                "may be missing there"
            )
        if self.num_restarts:
            found.append(
                f"time runs backwards {self.num_restarts} times: each time another episode is "
                "taken to begin"
            )
        short = sum(length == 1 for length in self.lengths)
        if short:
            found.append(f"{short} of {len(self.lengths)} episodes have a single step")
        if not self.mapping.marks_ends:
            found.append(
                "nothing marks the end of an episode: each is taken as recorded whole (truncated)"
            )
        elif self.num_unmarked:
            found.append(
                f"{self.num_unmarked} episodes have no mark at their end: they count as unfinished"
            )
        if not self.mapping.next_state:
            found.append(
                "the state after the last step of an episode is not recorded: the state before "
                "it stands in"
            )
        return found

    def plain(self) -> dict[str, Any]:
        """As JSON keeps it."""
        lengths = np.array(self.lengths or [0])
        return {
            "files": len(self.files),
            "rows": self.num_rows,
            "episodes": len(self.lengths),
            "episode_lengths": {
                "min": int(lengths.min()),
                "median": float(np.median(lengths)),
                "max": int(lengths.max()),
            },
            "columns": {
                name: {
                    "role": _role(self.mapping, name),
                    "min": None if column.low > column.high else column.low,
                    "max": None if column.low > column.high else column.high,
                    "missing": column.num_missing,
                }
                for name, column in self.columns.items()
            },
            "faulty_episodes": len(self.faulty),
            "problems": self.problems,
            "warnings": self.warnings,
        }


def survey(
    files: Sequence[Path],
    mapping: LogMapping,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> LogSurvey:
    """Read every file once; `mapping` is resolved. `progress` is told of files."""
    surveyor = _Surveyor(
        LogSurvey(mapping, tuple(files), columns={name: ColumnSurvey() for name in mapping.numeric})
    )
    for number, file in enumerate(files):
        for block in read_blocks(file, mapping):
            surveyor.see(block)
        if progress:
            progress(number + 1, len(files))
    return surveyor.finish()


class _Surveyor:
    """Carries what must be remembered from one block to the next."""

    def __init__(self, found: LogSurvey) -> None:
        self.found = found
        self._segmenter = Segmenter(found.mapping)
        self._seen: dict[object, int] = {}
        self._last: LogBlock | None = None

    def see(self, block: LogBlock) -> None:
        begins = self._segmenter.begins(block)
        number = (
            self._segmenter.num_episodes - int(begins.sum()) - 1 + np.cumsum(begins)
        )  # [n] of each row's episode
        self._count(begins, number)
        self._find_missing(block, number)
        self._find_missing_time(block, number)
        self._find_duplicates(block, begins, number)
        self._find_bad_ends(block, begins, number)
        self._find_repeated(block, begins, number)
        self.found.num_rows += len(block)
        self._last = block

    def finish(self) -> LogSurvey:
        self._note_unmarked(self._last)
        return self.found

    def _count(self, begins: NDArray[np.bool_], number: NDArray[np.int64]) -> None:
        lengths = self.found.lengths
        lengths.extend([0] * int(begins.sum()))
        first = int(number[0])
        for place, count in enumerate(np.bincount(number - first).tolist()):
            lengths[first + place] += count

    def _find_missing(self, block: LogBlock, number: NDArray[np.int64]) -> None:
        needed = set(self.found.mapping.needed)
        for name, values in block.values.items():
            column, there = self.found.columns[name], np.abs(values) <= LARGEST  # False for NaN
            if there.any():
                column.low = min(column.low, float(values[there].min()))
                column.high = max(column.high, float(values[there].max()))
            if not there.all():
                places = np.flatnonzero(~there)
                column.num_missing += len(places)
                column.first_missing = (
                    column.first_missing or f"{block.file}, row {block.first_row + places[0]}"
                )
                if name in needed:
                    self._blame(number[places], f"{name} is missing")

    def _find_missing_time(self, block: LogBlock, number: NDArray[np.int64]) -> None:
        """Without it, neither pauses nor steps recorded twice can be seen."""
        if block.time is None:
            return
        places = np.flatnonzero(~np.isfinite(block.time))
        if len(places):
            self.found.time.num_missing += len(places)
            first = f"{block.file}, row {block.first_row + places[0]}"
            self.found.time.first_missing = self.found.time.first_missing or first
            self._blame(number[places], "its time is missing")

    def _find_duplicates(
        self, block: LogBlock, begins: NDArray[np.bool_], number: NDArray[np.int64]
    ) -> None:
        """By the clock where there is one, else rows that repeat the row before in every column."""
        within = ~begins
        if block.time is not None:
            last = np.nan if self._last is None or self._last.time is None else self._last.time[-1]
            since_last = np.diff(block.time, prepend=last)
            if self.found.mapping.gap is not None and block.episode is None:
                self.found.num_restarts += int((since_last < 0).sum())
            passed = np.where(within, since_last, np.nan)
            self._find_pauses(passed)
            backward = passed < 0
            self.found.num_backward += int(backward.sum())
            self._blame(number[backward], "time runs backwards")
            same = passed == 0
        else:
            same = within.copy()
            for name, values in block.values.items():
                last = np.nan if self._last is None else self._last.values[name][-1]
                same &= values == np.concatenate([[last], values[:-1]])
        self.found.num_duplicates += int(same.sum())
        self._blame(number[same], "a step is recorded twice")

    def _find_pauses(self, passed: NDArray[np.float64]) -> None:
        taken = passed[passed > 0]
        if self.found.usual_step is None and len(taken):
            self.found.usual_step = float(np.median(taken))
        if self.found.usual_step is not None:
            self.found.num_pauses += int((taken > LONG_PAUSE * self.found.usual_step).sum())

    def _find_bad_ends(
        self, block: LogBlock, begins: NDArray[np.bool_], number: NDArray[np.int64]
    ) -> None:
        ended = block.terminated | block.truncated
        was_ended = (
            False
            if self._last is None
            else bool(self._last.terminated[-1] or self._last.truncated[-1])
        )
        before = np.concatenate([[was_ended], ended[:-1]])
        self._blame(number[before & ~begins], "it goes on after its end")
        if self._last is not None and begins[0]:
            self._note_unmarked(self._last)
        self.found.num_unmarked += (
            int((begins[1:] & ~ended[:-1]).sum()) if self.found.mapping.marks_ends else 0
        )

    def _note_unmarked(self, block: LogBlock | None) -> None:
        """An episode ended with this block."""
        if block is not None and self.found.mapping.marks_ends:
            self.found.num_unmarked += not (block.terminated[-1] or block.truncated[-1])

    def _find_repeated(
        self, block: LogBlock, begins: NDArray[np.bool_], number: NDArray[np.int64]
    ) -> None:
        if block.episode is None:
            return
        per_file = self.found.mapping.episodes_per_file
        for place in np.flatnonzero(begins):
            name = block.episode[place]
            key = (block.file, name) if per_file else name
            if name is None:
                self._blame(number[place : place + 1], "the episode column is empty")
                self.found.num_unnamed += 1
            elif key in self._seen and self.found.mapping.gap is None:
                self._blame(np.array([self._seen[key], number[place]]), "its rows lie apart")
                self.found.repeated.append(str(name))
            self._seen.setdefault(key, int(number[place]))

    def _blame(self, numbers: NDArray[np.int64], why: str) -> None:
        for number in np.unique(numbers).tolist():
            self.found.faulty.setdefault(number, f"episode {number}: {why}")


def _role(mapping: LogMapping, name: str) -> str:
    roles = [
        part
        for part in ("state", "action", "next_state", "columns")
        if name in getattr(mapping, part)
    ]
    roles += [part for part in ("reward", "cost") if name == getattr(mapping, part)]
    return ", ".join(roles)
