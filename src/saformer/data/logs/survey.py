"""A first reading of a log, to find what is wrong with it before anything is written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.data.inspection import length_summary
from saformer.data.logs.files import LogBlock, read_log
from saformer.data.logs.mapping import SEVERAL, LogMapping
from saformer.data.sources.rows import STAND_IN
from saformer.data.sources.source import Progress

UNUSABLE = "values that are missing, infinite or too large"
LARGEST = float(np.finfo(np.float32).max)  # What a store can hold
LONG_PAUSE = 1.5  # A step that took this many times as long as usual counts as a gap


@dataclass
class ColumnSurvey:
    """Range and gaps of one column."""

    low: float = np.inf
    high: float = -np.inf
    num_missing: int = 0
    first_missing: str | None = None


@dataclass
class LogSurvey:
    """What a log holds, and what is wrong with it: filled block by block."""

    mapping: LogMapping
    files: tuple[Path, ...]
    num_rows: int = 0
    lengths: list[int] = field(default_factory=list)  # steps of each episode
    columns: dict[str, ColumnSurvey] = field(default_factory=dict)
    num_duplicates: int = 0
    num_pauses: int = 0
    num_backward: int = 0
    num_restarts: int = 0  # times that a clock which runs backwards began another episode
    time: ColumnSurvey = field(default_factory=ColumnSurvey)
    num_unmarked: int = 0  # episodes without a mark at their end, where other ends are marked
    num_unnamed: int = 0  # episodes whose rows have nothing in the episode column
    usual_step: float | None = None  # seconds
    repeated: list[str] = field(default_factory=list)  # episodes whose rows lie apart
    faulty: dict[int, str] = field(default_factory=dict)
    """index of each episode that cannot be used, and the first reason why"""
    _first_index: dict[object, int] = field(default_factory=dict)  # of each name of an episode
    _last: LogBlock | None = None

    @property
    def problems(self) -> list[str]:
        """Reasons why the log cannot be imported as it is."""
        return list(self._problems())

    def _problems(self) -> Iterator[str]:
        yield from self._unusable(needed=True)
        if self.time.num_missing:
            count = f"{self.time.num_missing} values, the first in {self.time.first_missing}"
            yield f"time column {self.mapping.time!r} lacks {count}"
        if self.num_duplicates:
            why = "at the same time as the step before"
            if self.mapping.time is None:
                why = (
                    "every column that is read repeats the step before; where a machine at rest "
                    "looks so, name a column that tells steps apart with --time"
                )
            yield f"{self.num_duplicates} steps are recorded twice: {why}"
        if self.num_backward:
            yield f"time runs backwards at {self.num_backward} steps within an episode"
        if self.repeated:
            yield (
                f"rows of {len(self.repeated)} episodes lie apart, those of {self.repeated[0]!r} "
                "for example: sort the log by episode and time, or say --episodes-per-file if "
                "numbers begin anew in each file"
            )
        if self.num_unnamed:
            name = self.mapping.episode
            yield f"the episode column {name!r} is empty in {self.num_unnamed} places"
        ended = [why for why in self.faulty.values() if "after its end" in why]
        if ended:
            count = f"{len(ended)} episodes go on after they are marked as ended"
            yield f"{count}, {ended[0]} for example"

    @property
    def warnings(self) -> list[str]:
        """What a user should know, but may live with."""
        return list(self._warnings())

    def _warnings(self) -> Iterator[str]:
        constant = [name for name, column in self.columns.items() if column.low == column.high]
        if constant:
            yield f"columns that never change teach nothing: {', '.join(constant)}"
        yield from self._unusable(needed=False)
        if self.num_pauses:
            yield (
                f"{self.num_pauses} steps took more than {LONG_PAUSE:g} times the usual "
                f"{self.usual_step:.4g} s: rows may be missing there"
            )
        if self.num_restarts:
            count = f"{self.num_restarts} times"
            yield f"time runs backwards {count}: each time another episode is taken to begin"
        short = sum(length == 1 for length in self.lengths)
        if short:
            yield f"{short} of {len(self.lengths)} episodes have a single step"
        if not self.mapping.marks_ends:
            yield "nothing marks the end of an episode: each is taken as whole (truncated)"
        elif self.num_unmarked:
            yield f"{self.num_unmarked} episodes have no mark at their end: they are unfinished"
        if not self.mapping.next_state:
            yield STAND_IN

    def _unusable(self, *, needed: bool) -> Iterator[str]:
        for name, column in self.columns.items():
            if column.num_missing and (name in self.mapping.needed) == needed:
                count = f"{column.num_missing} {UNUSABLE}"
                yield f"column {name!r} has {count}, the first in {column.first_missing}"

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "files": len(self.files),
            "rows": self.num_rows,
            "episodes": len(self.lengths),
            "episode_lengths": length_summary(np.array(self.lengths or [0])),
            "columns": {
                name: {
                    "role": self._role(name),
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

    def _role(self, name: str) -> str:
        roles = [part for part in SEVERAL if name in getattr(self.mapping, part)]
        roles += [part for part in ("reward", "cost") if name == getattr(self.mapping, part)]
        return ", ".join(roles)

    def see(self, block: LogBlock) -> None:
        self._count(block)
        self._find_missing(block)
        self._find_duplicates(block)
        self._find_bad_ends(block)
        self._find_repeated(block)
        self.num_rows += len(block)
        self._last = block

    def _count(self, block: LogBlock) -> None:
        lengths, first = self.lengths, int(block.index[0])
        lengths.extend([0] * int(block.begins.sum()))
        for index, count in enumerate(np.bincount(block.index - first).tolist(), start=first):
            lengths[index] += count

    def _find_missing(self, block: LogBlock) -> None:
        for name, values in block.values.items():
            column, is_usable = self.columns[name], np.abs(values) <= LARGEST  # not if NaN
            if is_usable.any():
                column.low = min(column.low, float(values[is_usable].min()))
                column.high = max(column.high, float(values[is_usable].max()))
            why = f"{name} is missing" if name in self.mapping.needed else None
            self._note_missing(column, block, ~is_usable, why)
        if block.time is not None:  # else neither pauses nor steps recorded twice can be seen
            is_missing = ~np.isfinite(block.time)
            self._note_missing(self.time, block, is_missing, "its time is missing")

    def _note_missing(
        self, column: ColumnSurvey, block: LogBlock, missing: NDArray[np.bool_], why: str | None
    ) -> None:
        rows = np.flatnonzero(missing)
        if len(rows):
            first = f"{block.file}, row {block.first_row + rows[0]}"
            column.num_missing += len(rows)
            column.first_missing = column.first_missing or first
            if why:
                self._blame(block.index[rows], why)

    def _find_duplicates(self, block: LogBlock) -> None:
        """By the clock where there is one, else rows that repeat the row before in every column."""
        last, within = self._last, ~block.begins
        if block.time is not None:
            since_last = block.seconds_passed(last)
            if self.mapping.gap is not None and block.episode is None:
                self.num_restarts += int((since_last < 0).sum())
            passed = np.where(within, since_last, np.nan)
            self._find_pauses(passed)
            backward, is_same = passed < 0, passed == 0
            self.num_backward += int(backward.sum())
            self._blame(block.index[backward], "time runs backwards")
        else:
            is_same = within.copy()
            for name, values in block.values.items():
                before = np.nan if last is None else last.values[name][-1]
                is_same &= values == np.concatenate([[before], values[:-1]])
        self.num_duplicates += int(is_same.sum())
        self._blame(block.index[is_same], "a step is recorded twice")

    def _find_pauses(self, passed: NDArray[np.float64]) -> None:
        steps = passed[passed > 0]
        if self.usual_step is None and len(steps):
            self.usual_step = float(np.median(steps))
        if self.usual_step is not None:
            self.num_pauses += int((steps > LONG_PAUSE * self.usual_step).sum())

    def _find_bad_ends(self, block: LogBlock) -> None:
        begins, is_after = block.begins, block.follows_end(self._last)
        self._blame(block.index[is_after & ~begins], "it goes on after its end")
        if self.mapping.marks_ends:
            is_first = self._last is None  # before the first row of all, nothing ended
            self.num_unmarked += int((begins & ~is_after).sum()) - is_first

    def finish(self) -> None:
        """The last episode ends with the last block."""
        if self._last is not None and self.mapping.marks_ends:
            self.num_unmarked += not self._last.ended[-1]

    def _find_repeated(self, block: LogBlock) -> None:
        if block.episode is None:
            return
        for row in np.flatnonzero(block.begins):
            name, index = block.episode[row], int(block.index[row])
            key = (block.file, name) if self.mapping.episodes_per_file else name
            if name is None:
                self._blame([index], "the episode column is empty")
                self.num_unnamed += 1
            elif key in self._first_index and self.mapping.gap is None:
                self._blame([self._first_index[key], index], "its rows lie apart")
                self.repeated.append(str(name))
            self._first_index.setdefault(key, index)

    def _blame(self, indices: NDArray[np.int64] | list[int], why: str) -> None:
        for index in np.unique(indices).tolist():
            self.faulty.setdefault(index, f"episode {index}: {why}")


def survey(
    files: Sequence[Path], mapping: LogMapping, *, progress: Progress | None = None
) -> LogSurvey:
    """Read every file once; `mapping` is resolved, and `progress` counts files."""
    columns = {name: ColumnSurvey() for name in mapping.numeric}
    survey = LogSurvey(mapping, tuple(files), columns=columns)
    for block in read_log(files, mapping, progress=progress):
        survey.see(block)
    survey.finish()
    return survey
