"""Finding logs, and reading CSV, Parquet and frames in batches, never whole."""

from __future__ import annotations

import csv
import glob
import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saformer.data.logs.cells import arrow, as_text
from saformer.data.logs.mapping import LogMapping

CSV_SUFFIXES, PARQUET_SUFFIXES = (".csv", ".tsv", ".txt"), (".parquet", ".pq")
SUFFIXES = CSV_SUFFIXES + PARQUET_SUFFIXES
ENDINGS = ", ".join(SUFFIXES)
CSV_BLOCK_BYTES = 2 << 20  # some dozens are read ahead
PARQUET_BATCH_ROWS = 1 << 16
DELIMITERS = ";\t|,"
SAMPLE_ROWS = 1000  # that formats are guessed from
DECIMAL_COMMA, DECIMAL_POINT = re.compile(r"[+-]?\d+,\d+"), re.compile(r"[+-]?\d+\.\d+")


@dataclass(frozen=True, eq=False)
class Frame:
    """A log in memory: a pyarrow table of whatever was passed."""

    table: Any
    name = "frame"
    suffix = ""

    def __str__(self) -> str:
        return "the frame"


LogFile = Path | Frame


def find_files(patterns: Sequence[Any]) -> list[LogFile]:
    """Log files by name, pattern ("logs/*.csv") or folder, each once, in natural order within; a
    frame is one too."""
    files: list[LogFile] = []
    for pattern in patterns:
        files += [pattern] if isinstance(pattern, Frame) else _find(str(pattern))
    return list(dict.fromkeys(files))


def _find(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_dir():
        matches = [file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES]
    elif path.exists():
        matches = [path]
    else:
        matches = [Path(name) for name in glob.glob(pattern, recursive=True)]
    if not matches:
        raise FileNotFoundError(f"there is no log {pattern} (a file ending in {ENDINGS})")
    for file in matches:
        if file.suffix.lower() not in SUFFIXES:
            raise ValueError(f"{file} is no log: expected a file ending in {ENDINGS}")
    return sorted(matches, key=_natural_order)


def _natural_order(path: Path) -> list[tuple[int, str]]:
    """Sorts log-9 before log-10."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


@dataclass(frozen=True)
class Sample:
    """The header of a log, its first rows as text, and what separates them in a CSV file."""

    header: list[str]
    rows: list[list[str]]
    delimiter: str = ","

    @property
    def names(self) -> list[str]:
        """Of columns that have one: pandas' index and what follows a row's last mark have none."""
        return [name for name in self.header if name.strip()]

    def column(self, name: str) -> list[str]:
        """What the first rows have in a column; nothing where a row is cut short."""
        index = self.header.index(name)
        return [row[index] if index < len(row) else "" for row in self.rows]

    def times(self, dates: str, clocks: str | None) -> list[str]:
        """What the first rows have for a time, in one column or in two."""
        if clocks not in self.header:
            return self.column(dates)
        pairs = zip(self.column(dates), self.column(clocks), strict=True)
        return [" ".join(pair).strip() for pair in pairs]

    @property
    def decimal(self) -> str:
        """A comma where some numbers have one and none has a point."""
        cells = [cell.strip() for row in self.rows for cell in row]
        has_point = any(map(DECIMAL_POINT.fullmatch, cells))
        return "," if not has_point and any(map(DECIMAL_COMMA.fullmatch, cells)) else "."


def sample_of(file: LogFile, mapping: LogMapping, num_rows: int = SAMPLE_ROWS) -> Sample:
    """The names of a file's columns, and its first rows."""
    if not isinstance(file, Frame) and not _is_parquet(file):
        sample = _sample_of_text(file, mapping, num_rows)
    else:
        table = _first_of_table(file, num_rows)
        columns = [as_text(column.combine_chunks()).to_pylist() for column in table.columns]
        rows = [
            ["" if cell is None else cell for cell in row] for row in zip(*columns, strict=True)
        ]
        sample = Sample(table.column_names, rows)
    repeated = sorted({name for name in sample.names if sample.header.count(name) > 1})
    if repeated:
        raise ValueError(f"{file} has several columns called {', '.join(repeated)}")
    return sample


def _first_of_table(file: LogFile, num_rows: int) -> Any:
    if isinstance(file, Frame):
        return file.table.slice(0, num_rows)
    with _reading_parquet(file) as parquet:
        batch = next(parquet.iter_batches(batch_size=num_rows), None)
        empty = parquet.schema_arrow.empty_table()
        return empty if batch is None else arrow().Table.from_batches([batch])


def _sample_of_text(file: Path, mapping: LogMapping, num_rows: int) -> Sample:
    with _decoding(file, mapping), file.open(newline="", encoding=_encoding(mapping)) as text:
        lines = list(itertools.islice((line for line in text if line.strip()), num_rows + 1))
    if not lines:
        raise ValueError(f"{file} is empty: it has no header")
    marks = mapping.delimiter or ("\t" if file.suffix.lower() == ".tsv" else DELIMITERS)
    try:
        readings = {mark: list(csv.reader(lines, delimiter=mark)) for mark in marks}
    except csv.Error as error:
        raise ValueError(f"{file} is not a text file: {error}") from None
    # the mark that cuts most rows into as many cells as the header, and that into several
    delimiter = max(readings, key=lambda mark: _num_alike(readings[mark]))
    header, *rows = readings[delimiter]
    return Sample(header, rows, delimiter if _num_alike([header]) else ",")


def _num_alike(rows: list[list[str]]) -> int:
    width = len(rows[0])
    return sum(len(row) == width for row in rows) if width > 1 else 0


def batches(
    file: LogFile, columns: list[str], mapping: LogMapping, skipped: list[int]
) -> Iterator[Any]:
    """Record batches of these columns; those of a CSV file are text. Rows with too many or too few
    cells are left out, and `skipped` lists them."""
    from pyarrow import csv as arrow_csv

    if isinstance(file, Frame):
        yield from file.table.select(columns).combine_chunks().to_batches(PARQUET_BATCH_ROWS)
        return
    if _is_parquet(file):
        with _reading_parquet(file) as parquet:
            yield from parquet.iter_batches(batch_size=PARQUET_BATCH_ROWS, columns=columns)
        return

    def skip(row: Any) -> str:
        skipped.append(len(skipped) if row.number is None else row.number - 1)
        return "skip"

    texts = dict.fromkeys(columns, arrow().string())
    delimiter = _sample_of_text(file, mapping, 10).delimiter
    with _decoding(file, mapping), arrow_csv.open_csv(
        file,  # without threads, rows have numbers
        arrow_csv.ReadOptions(
            block_size=CSV_BLOCK_BYTES, use_threads=False, encoding=mapping.encoding
        ),
        arrow_csv.ParseOptions(delimiter=delimiter, invalid_row_handler=skip),
        arrow_csv.ConvertOptions(
            column_types=texts, include_columns=columns, strings_can_be_null=True
        ),
    ) as reader:  # fmt: skip
        yield from reader


def _is_parquet(file: Path) -> bool:
    return file.suffix.lower() in PARQUET_SUFFIXES


def _encoding(mapping: LogMapping) -> str:
    """Python's name of it, with the mark that Excel puts first passed over."""
    return "utf-8-sig" if mapping.encoding.lower().replace("-", "") == "utf8" else mapping.encoding


@contextmanager
def _decoding(file: Path, mapping: LogMapping) -> Iterator[None]:
    """Says what to do about text in another encoding."""
    try:
        yield
    except LookupError as error:
        raise ValueError(f"encoding {mapping.encoding!r} is not known: {error}") from None
    except (UnicodeError, arrow().ArrowInvalid) as error:
        if not isinstance(error, UnicodeError) and "UTF8" not in str(error):
            raise
        with file.open("rb") as content:
            is_wide = content.read(2) in (b"\xff\xfe", b"\xfe\xff")
        problem = f"{file} is not a text file in {mapping.encoding} ({error})"
        remedy = f"say which it is, as in --encoding {'utf-16' if is_wide else 'cp1252'}"
        raise ValueError(f"{problem}; {remedy}") from None


@contextmanager
def _reading_parquet(file: Path) -> Iterator[Any]:
    """The opened file; whatever of it is damaged is said in one line."""
    damages = (arrow().lib.ArrowException, OSError)
    from pyarrow import parquet

    try:  # a buffer would hold all that was read until the file is closed
        yield parquet.ParquetFile(file, pre_buffer=False)
    except damages as error:
        problem, reason = "is not a Parquet file, or it is truncated or damaged", str(error)
        raise ValueError(f"{file} {problem}: {' '.join(reason.split())}") from None
