"""Reading CSV and Parquet in blocks, never whole."""

from __future__ import annotations

import csv
import glob
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.data.logs.mapping import LogMapping

CSV_SUFFIXES, PARQUET_SUFFIXES = (".csv", ".tsv", ".txt"), (".parquet", ".pq")
SUFFIXES = CSV_SUFFIXES + PARQUET_SUFFIXES
CSV_BLOCK_BYTES = 2 << 20  # some dozens are read ahead
PARQUET_BATCH_ROWS = 1 << 16
ZONE, NANOSECONDS = re.compile(r":\d\d(\.\d+)?\s*(Z|[+-]\d\d(:?\d\d)?)$"), re.compile(r"\.\d{7,}")
"""How a date ends that has a time zone, and how one goes on that is finer than a microsecond."""
TRUE, FALSE = {"1", "1.0", "true", "t", "yes", "y"}, {"0", "0.0", "false", "f", "no", "n", ""}


@dataclass(frozen=True)
class LogBlock:
    """Some consecutive rows of one file."""

    file: Path
    first_row: int
    """number of the first row in its file; the row after the header is 1"""
    values: dict[str, NDArray[np.float64]]
    """[n] numbers by column, NaN where a value is missing"""
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    episode: NDArray[np.object_] | None
    """[n] what the episode column says, as text; None where it says nothing"""
    time: NDArray[np.float64] | None
    """[n] seconds"""

    def __len__(self) -> int:
        return len(self.terminated)


def find_files(patterns: Sequence[str | Path]) -> list[Path]:
    """Log files by name, by pattern ("logs/*.csv") or by folder, each once, in the order given and
    sorted within."""
    found: list[Path] = []
    for pattern in map(str, patterns):
        path = Path(pattern)
        if path.is_dir():
            matches = sorted(
                (file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES),
                key=_by_number,
            )
        else:
            matches = (
                [path]
                if path.exists()
                else sorted(map(Path, glob.glob(pattern, recursive=True)), key=_by_number)
            )
        if not matches:
            raise FileNotFoundError(
                f"there is no log {pattern} (expected files ending in {', '.join(SUFFIXES)})"
            )
        found += matches
    for file in found:
        if file.suffix.lower() not in SUFFIXES:
            raise ValueError(f"{file} is no log: expected a file ending in {', '.join(SUFFIXES)}")
    return list(dict.fromkeys(found))


def _by_number(path: Path) -> list[tuple[int, str]]:
    """Sorts log-9 before log-10."""
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))
    ]


def header_of(file: Path, mapping: LogMapping) -> list[str]:
    """The names of a file's columns."""
    if file.suffix.lower() in PARQUET_SUFFIXES:
        names = list(_parquet(file).schema_arrow.names)
    else:
        rows = _first_rows(file, mapping)
        if not rows or not any(rows[0]):
            raise ValueError(f"{file} is empty: it has no header")
        names = rows[0]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{file} has several columns called {', '.join(twice)}")
    return names


def read_blocks(file: Path, mapping: LogMapping) -> Iterator[LogBlock]:
    """A file's rows in blocks; `mapping` is resolved."""
    batches = _parquet_batches if file.suffix.lower() in PARQUET_SUFFIXES else _csv_batches
    row = 1
    try:
        for batch in batches(file, mapping):
            if batch.num_rows:
                yield _block(file, row, batch, mapping)
                row += batch.num_rows
    except _arrow().lib.ArrowException as error:
        raise ValueError(f"{file} cannot be read: {error}") from None
    if row == 1:
        raise ValueError(f"{file} is empty: it has a header, but no rows")


def delimiter_of(file: Path, mapping: LogMapping) -> str:
    """What separates its columns: as said, and tabs in a .tsv unless anything is said."""
    is_usual = mapping.delimiter == LogMapping.delimiter
    return "\t" if is_usual and file.suffix.lower() == ".tsv" else mapping.delimiter


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ValueError(
            "CSV and Parquet logs need pyarrow: pip install 'saformer[logs]'"
        ) from None
    return pyarrow


def _csv_batches(file: Path, mapping: LogMapping) -> Iterator[Any]:
    pyarrow = _arrow()
    from pyarrow import csv as arrow_csv

    types = dict.fromkeys(mapping.numeric, pyarrow.float64())
    for name in (mapping.episode, mapping.terminated, mapping.truncated):
        if name is not None:
            types.setdefault(name, pyarrow.string())
    if mapping.time is not None:
        types.setdefault(mapping.time, _time_type(file, mapping))
    reader = arrow_csv.open_csv(
        file,
        read_options=arrow_csv.ReadOptions(
            block_size=CSV_BLOCK_BYTES, use_threads=False
        ),  # errors then name the row
        parse_options=arrow_csv.ParseOptions(delimiter=delimiter_of(file, mapping)),
        convert_options=arrow_csv.ConvertOptions(
            column_types=types, include_columns=list(mapping.read), strings_can_be_null=True
        ),
    )
    with reader:
        yield from reader


def _parquet_batches(file: Path, mapping: LogMapping) -> Iterator[Any]:
    yield from _parquet(file).iter_batches(
        batch_size=PARQUET_BATCH_ROWS, columns=list(mapping.read)
    )


def _parquet(file: Path) -> Any:
    pyarrow = _arrow()
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(
            file, pre_buffer=False
        )  # else it keeps what was read until it is closed
    except (pyarrow.lib.ArrowException, OSError) as error:
        raise ValueError(
            f"{file} is not a Parquet file, or it is truncated or damaged: {error}"
        ) from None


def _first_rows(file: Path, mapping: LogMapping) -> list[list[str]]:
    """The header and the first row."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as text:
            rows = (
                row for row in csv.reader(text, delimiter=delimiter_of(file, mapping)) if row
            )  # blank lines are passed over
            return list(itertools.islice(rows, 2))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file} is not a text file: {error}") from None


def _time_type(file: Path, mapping: LogMapping) -> Any:
    """Seconds or dates, as the first row has them."""
    header, *rows = _first_rows(file, mapping)
    text = (
        rows[0][header.index(str(mapping.time))].strip()
        if rows and len(rows[0]) == len(header)
        else ""
    )
    try:
        float(text or 0)
    except ValueError:
        unit, zone = (
            "ns" if NANOSECONDS.search(text) else "us",
            "UTC" if ZONE.search(text) else None,
        )
        return _arrow().timestamp(unit, zone)
    return _arrow().float64()


def _block(file: Path, row: int, batch: Any, mapping: LogMapping) -> LogBlock:
    def flag(name: str | None) -> NDArray[np.bool_]:
        return (
            np.zeros(batch.num_rows, dtype=bool)
            if name is None
            else _flags(file, name, batch.column(name))
        )

    return LogBlock(
        file,
        row,
        {name: _numbers(file, name, batch.column(name)) for name in mapping.numeric},
        flag(mapping.terminated),
        flag(mapping.truncated),
        None if mapping.episode is None else _texts(batch.column(mapping.episode)),
        None if mapping.time is None else _seconds(file, mapping.time, batch.column(mapping.time)),
    )


def _numbers(file: Path, name: str, column: Any) -> NDArray[np.float64]:
    pyarrow = _arrow()
    kind = column.type
    tests = ("is_floating", "is_integer", "is_boolean", "is_decimal")
    if not any(getattr(pyarrow.types, test)(kind) for test in tests):
        raise ValueError(f"{file}: column {name!r} holds {kind}, expected numbers")
    numbers: NDArray[np.float64] = column.cast(pyarrow.float64()).to_numpy(
        zero_copy_only=False
    )  # missing: NaN
    return numbers


def _flags(file: Path, name: str, column: Any) -> NDArray[np.bool_]:
    encoded = column.cast(_arrow().string()).fill_null("").dictionary_encode()
    meanings = []
    for text in encoded.dictionary.to_pylist():
        if text.strip().lower() not in TRUE | FALSE:
            raise ValueError(
                f"{file}: column {name!r} holds {text!r}, expected 0 or 1, true or false"
            )
        meanings.append(text.strip().lower() in TRUE)
    flags: NDArray[np.bool_] = np.array(meanings, dtype=bool)[
        encoded.indices.to_numpy(zero_copy_only=False)
    ]
    return flags


def _texts(column: Any) -> NDArray[np.object_]:
    encoded = column.cast(_arrow().string()).dictionary_encode()
    known = np.array([*encoded.dictionary.to_pylist(), None], dtype=object)
    texts: NDArray[np.object_] = known[
        encoded.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False)
    ]
    return texts


def _seconds(file: Path, name: str, column: Any) -> NDArray[np.float64]:
    pyarrow = _arrow()
    if not pyarrow.types.is_temporal(column.type):
        return _numbers(file, name, column)
    stamps = column.cast(pyarrow.timestamp("us"), safe=False).cast(
        pyarrow.int64()
    )  # what is finer is let go
    seconds: NDArray[np.float64] = (
        stamps.cast(pyarrow.float64()).to_numpy(zero_copy_only=False) / 1e6
    )
    return seconds
