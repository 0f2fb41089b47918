"""Reading CSV and Parquet in blocks, never whole, and where their episodes begin."""

from __future__ import annotations

import csv
import glob
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.data.logs.mapping import LogMapping
from saformer.data.sources.source import Progress

CSV_SUFFIXES, PARQUET_SUFFIXES = (".csv", ".tsv", ".txt"), (".parquet", ".pq")
SUFFIXES = CSV_SUFFIXES + PARQUET_SUFFIXES
ENDINGS = ", ".join(SUFFIXES)
CSV_BLOCK_BYTES = 2 << 20  # some dozens are read ahead
PARQUET_BATCH_ROWS = 1 << 16
ZONE = re.compile(r":\d\d(\.\d+)?\s*(Z|[+-]\d\d(:?\d\d)?)$")  # How a date ends that has a time zone
NANOSECONDS = re.compile(r"\.\d{7,}")  # How a date goes on that is finer than a microsecond
TRUE, FALSE = {"1", "1.0", "true", "t", "yes", "y"}, {"0", "0.0", "false", "f", "no", "n", ""}
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class LogBlock:
    """Some consecutive rows of one file."""

    file: Path
    first_row: int  # index of the first row in its file; the row after the header is 1
    values: dict[str, NDArray[np.float64]]  # [n] numbers by column, NaN where a value is missing
    terminated: Bools
    truncated: Bools
    episode: NDArray[np.object_] | None
    """[n] what the episode column says, as text; None where it says nothing"""
    time: NDArray[np.float64] | None  # [n] seconds
    begins: Bools = field(default_factory=lambda: np.empty(0, bool))  # [n] another episode begins
    index: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """[n] of the episode, counted over all files"""

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

    def seconds_passed(self, last: LogBlock | None) -> NDArray[np.float64]:
        """[n] since the row before; `last` is the block before."""
        assert self.time is not None
        before = np.nan if last is None or last.time is None else last.time[-1]
        return np.diff(self.time, prepend=before)


def find_files(patterns: Sequence[str | Path]) -> list[Path]:
    """Log files by name, pattern ("logs/*.csv") or folder, each once, in natural order within."""
    files: list[Path] = []
    for pattern in map(str, patterns):
        path = Path(pattern)
        if path.is_dir():
            matches = [file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES]
        elif path.exists():
            matches = [path]
        else:
            matches = [Path(name) for name in glob.glob(pattern, recursive=True)]
        if not matches:
            raise FileNotFoundError(f"there is no log {pattern} (a file ending in {ENDINGS})")
        files += sorted(matches, key=_natural_order)
    for file in files:
        if file.suffix.lower() not in SUFFIXES:
            raise ValueError(f"{file} is no log: expected a file ending in {ENDINGS}")
    return list(dict.fromkeys(files))


def _natural_order(path: Path) -> list[tuple[int, str]]:
    """Sorts log-9 before log-10."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def header_of(file: Path, mapping: LogMapping) -> list[str]:
    """The names of a file's columns."""
    if file.suffix.lower() in PARQUET_SUFFIXES:
        names = list(_parquet(file).schema_arrow.names)
    else:
        rows = _first_rows(file, mapping)
        if not rows or not any(rows[0]):
            raise ValueError(f"{file} is empty: it has no header")
        names = rows[0]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{file} has several columns called {', '.join(repeated)}")
    return names


def read_log(
    files: Sequence[Path], mapping: LogMapping, *, progress: Progress | None = None
) -> Iterator[LogBlock]:
    """The rows of all files in blocks; `mapping` is resolved, and `progress` counts files."""
    last, num_episodes = None, 0
    for count, file in enumerate(files, start=1):
        for block in _read_blocks(file, mapping):
            begins = _begins(block, last, mapping)
            yield replace(block, begins=begins, index=num_episodes - 1 + np.cumsum(begins))
            last, num_episodes = block, num_episodes + int(begins.sum())
        if progress:
            progress(count, len(files))


def _begins(block: LogBlock, last: LogBlock | None, mapping: LogMapping) -> Bools:
    """[n] where another episode begins in the block that follows `last`."""
    begins = np.zeros(len(block), dtype=bool)
    is_new_file = last is None or block.file != last.file
    if block.episode is not None:
        episode = None if last is None or last.episode is None else last.episode[-1]
        begins |= block.episode != np.concatenate([[episode], block.episode[:-1]])
        begins[0] |= is_new_file and mapping.episodes_per_file
    if mapping.gap is not None and block.time is not None:
        passed = block.seconds_passed(last)
        begins |= (passed > mapping.gap) | (passed < 0)
    if block.episode is None and mapping.gap is None:
        begins |= block.follows_end(last)
        begins[0] |= is_new_file
    begins[0] |= last is None
    return begins


def _read_blocks(file: Path, mapping: LogMapping) -> Iterator[LogBlock]:
    row = 1
    try:
        for batch in _batches(file, mapping):
            if batch.num_rows:
                yield _block(file, row, batch, mapping)
                row += batch.num_rows
    except (_arrow().lib.ArrowException, OSError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from None
    if row == 1:
        raise ValueError(f"{file} is empty: it has a header, but no rows")


def _delimiter_of(file: Path, mapping: LogMapping) -> str:
    is_usual = mapping.delimiter == LogMapping.delimiter
    return "\t" if is_usual and file.suffix.lower() == ".tsv" else mapping.delimiter


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ValueError("logs need pyarrow: pip install 'saformer[logs]'") from None
    return pyarrow


def _batches(file: Path, mapping: LogMapping) -> Iterator[Any]:
    pyarrow, columns = _arrow(), list(mapping.read)
    from pyarrow import csv as arrow_csv

    if file.suffix.lower() in PARQUET_SUFFIXES:
        yield from _parquet(file).iter_batches(batch_size=PARQUET_BATCH_ROWS, columns=columns)
        return
    types = dict.fromkeys(mapping.numeric, pyarrow.float64())
    for name in (mapping.episode, mapping.terminated, mapping.truncated):
        if name is not None:
            types.setdefault(name, pyarrow.string())
    if mapping.time is not None:
        types.setdefault(mapping.time, _time_type(file, mapping))
    typed = {"column_types": types, "include_columns": columns, "strings_can_be_null": True}
    with arrow_csv.open_csv(
        file,  # without threads, errors name the row
        arrow_csv.ReadOptions(block_size=CSV_BLOCK_BYTES, use_threads=False),
        arrow_csv.ParseOptions(delimiter=_delimiter_of(file, mapping)),
        arrow_csv.ConvertOptions(**typed),
    ) as reader:
        yield from reader


def _parquet(file: Path) -> Any:
    pyarrow = _arrow()
    from pyarrow import parquet

    try:  # a buffer would hold all that was read until the file is closed
        return parquet.ParquetFile(file, pre_buffer=False)
    except (pyarrow.lib.ArrowException, OSError) as error:
        problem = f"is not a Parquet file, or it is truncated or damaged: {error}"
        raise ValueError(f"{file} {problem}") from None


def _first_rows(file: Path, mapping: LogMapping) -> list[list[str]]:
    """The header and the first row; blank lines are passed over."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as text:
            rows = csv.reader(text, delimiter=_delimiter_of(file, mapping))
            return list(itertools.islice((row for row in rows if row), 2))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file} is not a text file: {error}") from None


def _time_type(file: Path, mapping: LogMapping) -> Any:
    """Seconds or dates, as the first row has them."""
    header, *rows = _first_rows(file, mapping)
    is_whole = rows and len(rows[0]) == len(header)
    text = rows[0][header.index(str(mapping.time))].strip() if is_whole else ""
    try:
        float(text or 0)
    except ValueError:
        unit, zone = "ns" if NANOSECONDS.search(text) else "us", ZONE.search(text)
        return _arrow().timestamp(unit, "UTC" if zone else None)
    return _arrow().float64()


def _block(file: Path, row: int, batch: Any, mapping: LogMapping) -> LogBlock:
    def flags(name: str | None) -> Bools:
        none = np.zeros(batch.num_rows, dtype=bool)
        return none if name is None else _flags(file, name, batch.column(name))

    episode, time = mapping.episode, mapping.time
    return LogBlock(
        file,
        row,
        {name: _numbers(file, name, batch.column(name)) for name in mapping.numeric},
        flags(mapping.terminated),
        flags(mapping.truncated),
        None if episode is None else _to_numpy(batch.column(episode).cast(_arrow().string())),
        None if time is None else _seconds(file, time, batch.column(time)),
    )


def _numbers(file: Path, name: str, column: Any) -> NDArray[np.float64]:
    pyarrow, kind = _arrow(), column.type
    tests = ("is_floating", "is_integer", "is_boolean", "is_decimal")
    if not any(getattr(pyarrow.types, test)(kind) for test in tests):
        raise ValueError(f"{file}: column {name!r} holds {kind}, expected numbers")
    return _to_numpy(column.cast(pyarrow.float64()))


def _flags(file: Path, name: str, column: Any) -> Bools:
    encoded = column.cast(_arrow().string()).fill_null("").dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    for text in texts:
        if text.strip().lower() not in TRUE | FALSE:
            problem = f"column {name!r} holds {text!r}, expected 0 or 1, true or false"
            raise ValueError(f"{file}: {problem}")
    meanings = np.array([text.strip().lower() in TRUE for text in texts], dtype=bool)
    flags: Bools = meanings[_to_numpy(encoded.indices)]
    return flags


def _seconds(file: Path, name: str, column: Any) -> NDArray[np.float64]:
    """Dates to the microsecond."""
    pyarrow = _arrow()
    if not pyarrow.types.is_temporal(column.type):
        return _numbers(file, name, column)
    stamps = column.cast(pyarrow.timestamp("us"), safe=False).cast(pyarrow.int64())
    return _to_numpy(stamps.cast(pyarrow.float64())) / 1e6


def _to_numpy(column: Any) -> NDArray[Any]:
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values
