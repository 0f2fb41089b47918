"""Rows of a log in blocks: resampled, filled, and cut into episodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.criteria.step import Step
from saformer.data.logs.cells import (
    Bools,
    Floats,
    Unreadable,
    arrow,
    as_text,
    flags,
    read_numbers,
    seconds,
    to_numpy,
    with_time_of_day,
)
from saformer.data.logs.columns import LogColumns
from saformer.data.logs.files import LogFile, batches
from saformer.data.logs.mapping import PERIODS
from saformer.data.sources.source import Progress

MONDAY = 4 * 86_400  # 1970 began with a Thursday
LARGEST = float(np.finfo(np.float32).max)  # What a store can hold
PER_ROW = ("row", "terminated", "truncated", "episode", "time")  # and the values
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class LogBlock:
    """Some consecutive rows of one file."""

    file: LogFile
    row: Indices  # [n] in its file; the row after the header is 1
    values: dict[str, Floats]  # [n] numbers by column, NaN where a value is missing
    terminated: Bools
    truncated: Bools
    episode: NDArray[np.object_] | None
    """[n] what the episode column says, as text; None where it says nothing"""
    time: Floats | None  # [n] seconds
    unreadable: dict[str, Unreadable] = field(default_factory=dict)  # by column
    begins: Bools = field(default_factory=lambda: np.empty(0, bool))  # [n] another episode begins
    index: Indices = field(default_factory=lambda: np.empty(0, np.int64))
    """[n] of the episode, counted over all files"""
    num_filled: dict[str, int] = field(default_factory=dict)  # values by column
    num_inserted: int = 0  # rows, where a resampled log has none
    num_skipped: int = 0  # rows with too many or too few cells

    def __len__(self) -> int:
        return len(self.terminated)

    @property
    def ended(self) -> Bools:
        """[n] marked as the last step of an episode."""
        return self.terminated | self.truncated

    def follows_end(self, last: LogBlock | None) -> Bools:
        """[n] whether the row before is marked so; `last` is the block before."""
        has_ended = last is not None and bool(last.ended[-1])
        return np.concatenate([[has_ended], self.ended[:-1]])

    def seconds_passed(self, last: LogBlock | None) -> Floats:
        """[n] since the row before; `last` is the block before."""
        assert self.time is not None
        before = np.nan if last is None or last.time is None else last.time[-1]
        return np.diff(self.time, prepend=before)

    def takes_over(self, last: LogBlock | None) -> Bools:
        """[n] whether the episode column says something else than in the row before."""
        assert self.episode is not None
        before = None if last is None or last.episode is None else last.episode[-1]
        return np.asarray(self.episode != np.concatenate([[before], self.episode[:-1]]))

    def rows(self, which: Any) -> LogBlock:
        """These rows; what was counted stays with all of them."""
        parts: dict[str, Any] = {name: getattr(self, name) for name in PER_ROW}
        parts = {name: None if each is None else each[which] for name, each in parts.items()}
        return replace(self, **parts, values={n: v[which] for n, v in self.values.items()})


def read_log(
    files: Sequence[LogFile], columns: LogColumns, *, progress: Progress | None = None
) -> Iterator[LogBlock]:
    """The rows of all files in blocks; `progress` counts files."""
    blocks = _blocks_of(files, columns, progress)
    if columns.how.seconds:
        blocks = _resampled(blocks, columns)
    last, cutter, filler = None, _Cutter(columns), _Filler(columns)
    for read in blocks:
        block, recorded = cutter.cut(read, last)
        block = filler.filled(block, recorded) if columns.how.fill else block
        if columns.earned is not None:
            block.values[columns.reward] = _earned(block, columns)
        yield block
        last = block


def column_vectors(block: LogBlock, names: Sequence[str]) -> NDArray[np.float32]:
    """[n, names]"""
    with np.errstate(over="ignore"):  # what is too large lies in an episode that is left out
        return np.stack([block.values[name] for name in names], axis=1).astype(np.float32)


def _earned(block: LogBlock, columns: LogColumns) -> Floats:
    assert columns.earned is not None
    parts = (column_vectors(block, columns.action), column_vectors(block, columns.state))
    try:
        return columns.earned(Step(*parts, columns=block.values))
    except ValueError as error:
        raise ValueError(f"reward {columns.reward!r}: {error}") from None


def _blocks_of(
    files: Sequence[LogFile], columns: LogColumns, progress: Progress | None
) -> Iterator[LogBlock]:
    for count, file in enumerate(files, start=1):
        first, skipped, num_known, is_empty = 1, list[int](), 0, True
        try:
            for batch in batches(file, list(columns.read), columns.how, skipped):
                if batch.num_rows:
                    row = np.arange(first, first + batch.num_rows)
                    for number in skipped:
                        row[row >= number] += 1
                    first += batch.num_rows
                    block = _block(file, *_without_blanks(row, batch, columns), columns)
                    if len(block):
                        yield replace(block, num_skipped=len(skipped) - num_known)
                        num_known, is_empty = len(skipped), False
        except (arrow().lib.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{file} cannot be read: {reason}") from None
        if is_empty and skipped:
            problem = f"none of its {len(skipped)} rows has as many cells as its header"
            raise ValueError(f"{file} cannot be read: {problem}; say --delimiter")
        if is_empty:
            raise ValueError(f"{file} is empty: it has a header, but no rows")
        if progress:
            progress(count, len(files))


def _without_blanks(row: Indices, batch: Any, columns: LogColumns) -> tuple[Indices, Any]:
    """Passes rows over that have neither a time nor anything else: nothing but delimiters."""
    if columns.time is None or not batch.column(columns.time).null_count:
        return row, batch
    has_any = np.any([to_numpy(column.is_valid()) for column in batch.columns], axis=0)
    return row[has_any], batch.filter(arrow().array(has_any))


def _block(file: LogFile, row: Indices, batch: Any, columns: LogColumns) -> LogBlock:
    how, unreadable = columns.how, dict[str, Unreadable]()

    def read(reader: Any, name: str) -> Floats:
        column = batch.column(name)
        if reader is seconds and columns.time_of_day is not None:
            column = with_time_of_day(column, batch.column(columns.time_of_day))
        values, bad = reader(f"{file}: column {name!r}", column, how)
        if bad is not None:
            unreadable[name] = replace(bad, first=int(row[bad.first]))
        return np.array(values, dtype=np.float64)

    def marked(name: str | None) -> Bools:
        none = np.zeros(batch.num_rows, dtype=bool)
        return none if name is None else flags(f"{file}: column {name!r}", batch.column(name))

    return LogBlock(
        file,
        row,
        {name: read(read_numbers, name) for name in columns.numeric},
        marked(columns.terminated),
        marked(columns.truncated),
        None if columns.episode is None else _names(batch.column(columns.episode)),
        None if columns.time is None else read(seconds, columns.time),
        unreadable,
    )


def _names(column: Any) -> NDArray[np.object_]:
    names = to_numpy(as_text(column))
    return np.array([name or None for name in names], dtype=object)


class _Cutter:
    """Says where recordings begin, and episodes within them."""

    def __init__(self, columns: LogColumns) -> None:
        self._how, self._num_episodes, self._length = columns.how, 0, 0
        self._has_column = columns.episode is not None

    def cut(self, block: LogBlock, last: LogBlock | None) -> tuple[LogBlock, Bools]:
        """The block with its episodes, and where another recording begins."""
        how, recorded = self._how, self._recorded(block, last)
        begins = recorded.copy()
        if how.period is not None and block.time is not None:
            shift = MONDAY if how.period == "week" else 0
            now = np.floor((block.time - shift) / PERIODS[how.period])
            before = np.nan if last is None or last.time is None else last.time[-1]
            begins |= now != np.floor((np.append(before, block.time[:-1]) - shift)
                                      / PERIODS[how.period])  # fmt: skip
        if how.episode_length is not None:
            rows = np.arange(len(block))
            start = np.maximum.accumulate(np.where(begins, rows, -self._length))
            begins |= (rows - start) % how.episode_length == 0
            self._length = int(rows[-1] - start[-1]) + 1
        index = self._num_episodes - 1 + np.cumsum(begins)
        self._num_episodes += int(begins.sum())
        return replace(block, begins=begins, index=index), recorded

    def _recorded(self, block: LogBlock, last: LogBlock | None) -> Bools:
        how, is_new_file = self._how, last is None or block.file != last.file
        begins = np.zeros(len(block), dtype=bool)
        if block.episode is not None:
            begins |= block.takes_over(last)
            begins[0] |= is_new_file and how.episodes_per_file
        if block.time is not None and (how.gap is not None or how.period is not None):
            passed = block.seconds_passed(last)
            begins |= (passed > (how.gap or np.inf)) | (passed < 0)
        elif block.episode is None:
            begins[0] |= is_new_file
        if block.episode is None and (how.gap is None or how.cuts):
            begins |= block.follows_end(last)
        begins[0] |= last is None
        return begins


class _Filler:
    """Carries values forward, within a recording and not too far."""

    def __init__(self, columns: LogColumns) -> None:
        self._limit = columns.how.fill_limit
        self._known: dict[str, tuple[float, float]] = {}  # last value, and steps since

    def filled(self, block: LogBlock, recorded: Bools) -> LogBlock:
        start = np.maximum.accumulate(np.where(recorded, np.arange(len(block)), -1))
        values = {name: self._fill(name, each, start) for name, each in block.values.items()}
        pairs = {name: (values[name], block.values[name]) for name in values}
        counts = {
            n: int((is_usable(new) & ~is_usable(old)).sum()) for n, (new, old) in pairs.items()
        }
        return replace(block, values=values, num_filled=counts)

    def _fill(self, name: str, values: Floats, start: Indices) -> Floats:
        """`start` [n]: where each row's recording begins, -1 before the block."""
        rows, usable = np.arange(len(values)), is_usable(values)
        known, since = self._known.get(name, (np.nan, np.inf))
        source = np.maximum.accumulate(np.where(usable, rows, -1))
        age = np.where(source < 0, rows + since, rows - source)
        value = np.where(source < 0, known, values[source])
        may = ~usable & (age <= self._limit) & (source >= start)
        is_known = source[-1] >= start[-1]
        self._known[name] = (float(value[-1]), age[-1] + 1) if is_known else (np.nan, np.inf)
        return np.where(may, value, values)


def is_usable(values: Floats) -> Bools:
    """[n] False where a value is missing, infinite or too large."""
    return np.abs(values) <= LARGEST


def _resampled(blocks: Iterable[LogBlock], columns: LogColumns) -> Iterator[LogBlock]:
    """One row for each stretch of the clock: the mean of its rows, flags if any has them."""
    open_rows: LogBlock | None = None  # of a stretch that may go on in the next block
    last: LogBlock | None = None
    for block in itertools.chain(blocks, [None]):
        joined = block if open_rows is None else _joined(open_rows, block)
        assert joined is not None
        starts, is_open = _stretches(joined, columns), block is not None
        whole = int(starts[-1]) if is_open else len(joined)
        open_rows = joined.rows(slice(whole, None)) if is_open else None
        if whole:
            open_rows = open_rows and replace(open_rows, unreadable={}, num_skipped=0)
            means = _means(joined.rows(slice(0, whole)), starts[starts < whole], columns)
            yield (last := _continuous(means, last, columns) if columns.how.fill else means)


def _stretches(block: LogBlock, columns: LogColumns) -> Indices:
    """Where each begins."""
    assert block.time is not None
    begins = np.diff(np.floor(block.time / columns.how.seconds), prepend=np.nan) != 0
    if block.episode is not None:
        begins |= block.takes_over(None)
    return np.flatnonzero(begins)


def _means(block: LogBlock, starts: Indices, columns: LogColumns) -> LogBlock:
    def mean(values: Floats) -> Floats:
        usable = is_usable(values)
        sums = np.add.reduceat(np.where(usable, values, 0.0), starts)
        counts = np.add.reduceat(usable.astype(np.float64), starts)
        means: Floats = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
        return means

    first = block.rows(starts)
    assert first.time is not None
    return replace(
        first,
        values={name: mean(values) for name, values in block.values.items()},
        time=np.floor(first.time / columns.how.seconds) * columns.how.seconds,
        terminated=np.logical_or.reduceat(block.terminated, starts),
        truncated=np.logical_or.reduceat(block.truncated, starts),
    )


def _continuous(block: LogBlock, last: LogBlock | None, columns: LogColumns) -> LogBlock:
    """With an empty row for each stretch that has none, where so many may be filled."""
    how, step = columns.how, columns.how.seconds
    missing = np.nan_to_num(block.seconds_passed(last) / step - 1, nan=0.0).round().astype(np.int64)
    may = (missing > 0) & (missing <= how.fill_limit) & ~block.follows_end(last)
    may &= (missing + 1) * step <= (how.gap or np.inf)
    if block.episode is not None:
        may &= ~block.takes_over(last)
    counts = 1 + np.where(may, missing, 0)
    source = np.repeat(np.arange(len(block)), counts)
    left = np.repeat(np.cumsum(counts), counts) - 1 - np.arange(len(source))  # rows until its own
    longer, is_new = block.rows(source), left > 0
    assert longer.time is not None
    return replace(
        longer,
        values={name: np.where(is_new, np.nan, values) for name, values in longer.values.items()},
        time=longer.time - left * step,
        terminated=longer.terminated & ~is_new,
        truncated=longer.truncated & ~is_new,
        num_inserted=int(is_new.sum()),
    )


def _joined(first: LogBlock, second: LogBlock | None) -> LogBlock:
    if second is None:
        return first

    def both(one: Any, other: Any) -> Any:
        return None if one is None else np.concatenate([one, other])

    parts: dict[str, Any] = {n: both(getattr(first, n), getattr(second, n)) for n in PER_ROW}
    values = {name: both(first.values[name], second.values[name]) for name in second.values}
    unreadable = {**first.unreadable, **second.unreadable}
    return replace(second, **parts, values=values, unreadable=unreadable)
