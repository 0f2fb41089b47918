"""A first reading of a log, to find what is wrong with it before anything is written."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.data.inspection import length_summary
from saformer.data.logs.blocks import LogBlock, is_usable, read_log
from saformer.data.logs.columns import LogColumns
from saformer.data.logs.files import LogFile
from saformer.data.logs.mapping import SEVERAL
from saformer.data.shown import counted
from saformer.data.sources.rows import STAND_IN
from saformer.data.sources.source import Progress

UNUSABLE = tuple(
    f"{value} missing, infinite or too large" for value in ("value that is", "values that are")
)
LONG_PAUSE = 1.5  # A step that took this many times as long as usual counts as a gap
WHOLE = 0.9  # An hour, day or week with less than this share of the usual steps is left out
STAND_IN_BELOW = -90  # Several columns whose least is the same number below this: -99, -200, -999
FEW_VALUES, OFTEN = 10, 20
"""An action column with no more values, each logged so often at least, takes no others."""


@dataclass
class ColumnSurvey:
    """Range and gaps of one column."""

    low: float = np.inf
    high: float = -np.inf
    num_missing: int = 0
    first_missing: str | None = None
    word: str | None = None  # the first cell that is no number, and where it stands
    num_filled: int = 0
    counts: Counter[float] | None = None  # of each value, for an action column that has few


@dataclass
class LogSurvey:
    """What a log holds, and what is wrong with it: filled block by block."""

    mapping: LogColumns
    files: tuple[LogFile, ...]
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
    num_inserted: int = 0  # rows, where a resampled log had none
    num_skipped: int = 0  # rows with too many or too few cells
    usual_step: float | None = None  # seconds
    repeated: list[str] = field(default_factory=list)  # episodes whose rows lie apart
    faulty: dict[int, str] = field(default_factory=dict)
    """index of each episode that cannot be used, and the first reason why"""
    incomplete: set[int] = field(default_factory=set)  # episodes that were cut short by the log
    _first_index: dict[object, int] = field(default_factory=dict)  # of each name of an episode
    _ended: set[int] = field(default_factory=set)  # indices of episodes with a mark at their end
    _last: LogBlock | None = None

    @property
    def problems(self) -> list[str]:
        """Reasons why the log cannot be imported as it is."""
        return list(self._problems())

    def _problems(self) -> Iterator[str]:
        yield from self._unusable(needed=True)
        if self.time.num_missing:
            count = f"{counted(self.time.num_missing, 'value')}, the first in"
            where = f"{self.time.first_missing}{_about(self.time.word, 'date (--time-format)')}"
            yield f"time column {self.mapping.time!r} lacks {count} {where}"
        if self.num_duplicates:
            why = "at the same time as the step before"
            if self.mapping.time is None:
                why = (
                    "every column that is read repeats the step before; where a machine at rest "
                    "looks so, name a column that tells steps apart with --time"
                )
            yield f"{counted(self.num_duplicates, 'step is', 'steps are')} recorded twice: {why}"
        if self.num_backward:
            yield f"time runs backwards at {counted(self.num_backward, 'step')} within an episode"
        if self.repeated:
            count = counted(len(self.repeated), "episode")
            yield (
                f"rows of {count} lie apart, those of {self.repeated[0]!r} for example: sort the "
                "log by episode and time, or say --episodes-per-file if numbers begin anew in each "
                "file"
            )
        if self.num_unnamed:
            name = self.mapping.episode
            yield f"the episode column {name!r} is empty in {counted(self.num_unnamed, 'place')}"
        ended = [why for why in self.faulty.values() if "after its end" in why]
        if ended:
            count = f"{counted(len(ended), 'episode goes', 'episodes go')} on after a marked end"
            index = next(index for index, why in self.faulty.items() if why is ended[0])
            yield f"{count}, episode {index} for example"

    @property
    def remedy(self) -> str:
        """What can be done about its problems."""
        episodes = f"{counted(len(self.faulty), 'faulty episode')} of {len(self.lengths)}"
        fill = "" if self.mapping.how.fill else "fill missing values with --fill forward, "
        return f"Mend it, {fill}or leave the {episodes} out with --drop-faulty"

    @property
    def warnings(self) -> list[str]:
        """What a user should know, but may live with."""
        return list(self._warnings())

    def _warnings(self) -> Iterator[str]:
        constant = [name for name, column in self.columns.items() if column.low == column.high]
        if constant:
            yield f"columns that never change teach nothing: {', '.join(constant)}"
        lows = Counter(column.low for column in self.columns.values())
        for low in (low for low, count in lows.items() if low < STAND_IN_BELOW and count > 1):
            count = f"{low:g} is the least of {lows[low]} columns"
            yield f"{count}: if it stands for a missing value, say --na {low:g}"
        both = [name for name in self.mapping.state if name in self.mapping.action]
        if both:
            yield f"both state and action: {', '.join(both)}; a policy would copy what was done"
        yield from self._unusable(needed=False)
        yield from self._mended()
        if self.num_pauses:
            yield (
                f"{counted(self.num_pauses, 'step')} took more than {LONG_PAUSE:g} times the usual "
                f"{self.usual_step:.4g} s: rows may be missing there"
            )
        if self.num_restarts:
            count = counted(self.num_restarts, "time")
            yield f"time runs backwards {count}: each time another episode is taken to begin"
        short = sum(length == 1 for length in self.lengths)
        if short:
            yield f"{short} of {len(self.lengths)} episodes have a single step"
        if self.mapping.how.cuts:
            yield "the clock ends every episode that is not marked as terminated"
        elif not self.mapping.marks_ends:
            yield "nothing marks the end of an episode: each is taken as whole (truncated)"
        elif self.num_unmarked:
            count = counted(self.num_unmarked, "episode has", "episodes have")
            yield f"{count} no mark at the end: unfinished"
        if not self.mapping.next_state:
            yield STAND_IN

    def _unusable(self, *, needed: bool) -> Iterator[str]:
        for name, column in self.columns.items():
            follows = name == self.mapping.reward and self._is_reckoned_from_missing()
            if column.num_missing and (name in self.mapping.needed) == needed and not follows:
                first = f"the first in {column.first_missing}"
                about = _about(column.word, "number (--na or --words say what it is)")
                count = counted(column.num_missing, *UNUSABLE)
                yield f"column {name!r} has {count}, {first}{about}"

    def _is_reckoned_from_missing(self) -> bool:
        earned = self.mapping.earned
        read = () if earned is None else earned.reads & set(self.columns)
        return any(self.columns[name].num_missing for name in read)

    def _mended(self) -> Iterator[str]:
        """What was lost of the log, and why."""
        filled = {n: column.num_filled for n, column in self.columns.items() if column.num_filled}
        if filled:
            listed = ", ".join(f"{count} of {name!r}" for name, count in filled.items())
            yield f"missing values were filled with the ones before them: {listed}"
        if self.num_inserted:
            yield f"filled, too: {counted(self.num_inserted, 'step')} that nothing was logged for"
        if self.num_skipped:
            count = counted(self.num_skipped, "row has", "rows have")
            yield f"left out: {count} more or fewer cells than the header"
        if self.incomplete:
            steps = sum(self.lengths[index] for index in self.incomplete)
            what = self.mapping.how.period or "episode"
            count = f"{counted(len(self.incomplete), what)} ({counted(steps, 'step')})"
            usual = f"fewer than {WHOLE:.0%} of the usual {self.usual_length} steps"
            yield f"left out: {count} with {usual}"

    @property
    def usual_length(self) -> int:
        """Steps of a whole episode."""
        return self.mapping.how.episode_length or int(np.median(self.lengths or [0]))

    @property
    def left_out(self) -> set[int]:
        """Indices of the episodes that are of no use."""
        return set(self.faulty) | self.incomplete

    def levels(self) -> tuple[tuple[float, ...], ...]:
        """The values of each action column that takes no others, nothing for one that does."""
        levels = []
        for name in self.mapping.action:
            counts, named = self.columns[name].counts or Counter(), self.mapping.how.discrete
            is_usual = named is None and len(counts) > 1 and min(counts.values()) >= OFTEN
            levels.append(tuple(sorted(counts)) if is_usual or name in (named or ()) else ())
        return tuple(levels) if any(levels) else ()

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
            "lost": dict(Counter(self.faulty.values())),
            "problems": self.problems,
            "remedy": self.remedy,
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
            column, usable = self.columns[name], is_usable(values)
            if usable.any():
                column.low = min(column.low, float(values[usable].min()))
                column.high = max(column.high, float(values[usable].max()))
                self._note_values(name, values[usable])
            why = f"{name!r} is missing" if name in self.mapping.needed else None
            column.num_filled += block.num_filled.get(name, 0)
            self._note_missing(column, block, ~usable, why)
        for name, cells in block.unreadable.items():
            column = self.time if name == self.mapping.time else self.columns[name]
            column.word = column.word or f"{cells.text!r} in {block.file}, row {cells.first}"
        self.num_inserted += block.num_inserted
        self.num_skipped += block.num_skipped
        if block.time is not None:  # else neither pauses nor steps recorded twice can be seen
            is_missing = ~np.isfinite(block.time)
            self._note_missing(self.time, block, is_missing, "its time is missing")

    def _note_values(self, name: str, values: NDArray[np.float64]) -> None:
        """Of an action column, as long as they may be all that it takes."""
        column = self.columns[name]
        if column.counts is not None:
            known, counts = np.unique(values.astype(np.float32), return_counts=True)
            column.counts.update(dict(zip(known.tolist(), counts.tolist(), strict=True)))
            if len(column.counts) > FEW_VALUES and name not in (self.mapping.how.discrete or ()):
                column.counts = None

    def _note_missing(
        self, column: ColumnSurvey, block: LogBlock, missing: NDArray[np.bool_], why: str | None
    ) -> None:
        rows = np.flatnonzero(missing)
        if len(rows):
            first = f"{block.file}, row {block.row[rows[0]]}"
            column.num_missing += len(rows)
            column.first_missing = column.first_missing or first
            if why:
                self._blame(block.index[rows], why)

    def _find_duplicates(self, block: LogBlock) -> None:
        """By the clock where there is one, else rows that repeat the row before in every column."""
        last, within = self._last, ~block.begins
        if block.time is not None:
            since_last = block.seconds_passed(last)
            how = self.mapping.how
            if (how.gap or how.period) is not None and block.episode is None:
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
        self._ended |= set(block.index[block.ended].tolist())
        self._blame(block.index[is_after & ~begins], "it goes on after its end")
        if self.mapping.marks_ends:
            is_first = self._last is None  # before the first row of all, nothing ended
            self.num_unmarked += int((begins & ~is_after).sum()) - is_first

    def finish(self) -> None:
        """The last episode ends with the last block."""
        if self._last is not None and self.mapping.marks_ends:
            self.num_unmarked += not self._last.ended[-1]
        if self.mapping.how.cuts:
            least = WHOLE * self.usual_length
            short = {index for index, length in enumerate(self.lengths) if length < least}
            self.incomplete = short - self._ended

    def _find_repeated(self, block: LogBlock) -> None:
        if block.episode is None:
            return
        for row in np.flatnonzero(block.begins):
            name, index = block.episode[row], int(block.index[row])
            key = (block.file, name) if self.mapping.how.episodes_per_file else name
            if name is None:
                self._blame([index], "the episode column is empty")
                self.num_unnamed += 1
            elif key in self._first_index and self.mapping.how.gap is None:
                self._blame([self._first_index[key], index], "its rows lie apart")
                self.repeated.append(str(name))
            self._first_index.setdefault(key, index)

    def _blame(self, indices: NDArray[np.int64] | list[int], why: str) -> None:
        for index in np.unique(indices).tolist():
            self.faulty.setdefault(index, why)


def _about(word: str | None, what: str) -> str:
    return "" if word is None else f"; {word}, is no {what}"


def survey(
    files: Sequence[LogFile], mapping: LogColumns, *, progress: Progress | None = None
) -> LogSurvey:
    """Read every file once; `progress` counts files."""
    columns = {name: ColumnSurvey() for name in dict.fromkeys([*mapping.numeric, mapping.reward])}
    for name in mapping.action:
        columns[name].counts = Counter()
    survey = LogSurvey(mapping, tuple(files), columns=columns)
    for block in read_log(files, mapping, progress=progress):
        survey.see(block)
    survey.finish()
    return survey
