"""Cells of a log as numbers, flags and seconds; what cannot be read costs its cell alone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.data.logs.mapping import TIME_UNITS, LogMapping

TRUE, FALSE = {"1", "1.0", "true", "t", "yes", "y"}, {"0", "0.0", "false", "f", "no", "n", ""}
DATES = ("%d.%m.%Y", "%d-%b-%Y", "%d %b %Y", "%b %d %Y", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d")
DAY_FIRST = ("%d/%m/%Y", "%d-%m-%Y", "%d %m %Y", "%d/%m/%y")
MONTH_FIRST = ("%m/%d/%Y", "%m-%d-%Y", "%m %d %Y", "%m/%d/%y")
CLOCKS = (" %H:%M:%S", " %H:%M", " %I:%M:%S %p", " %I:%M %p", "T%H:%M:%S", " %H.%M.%S",
          "%H%M%S", "%H%M", "")  # fmt: skip
ISO, NUMBER = "ISO 8601", "s"
DAY_SECONDS = 86_400
MOST = 0.9  # of the first times must be read: some may be faulty
FIRST_YEAR = 1900  # a date before it was read by the wrong format
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class AmbiguousDateError(ValueError):
    """Times that can be read in several ways."""


@dataclass(frozen=True)
class Unreadable:
    """Cells of a column that hold neither a value nor a word for a missing one."""

    count: int
    first: int  # row
    text: str

    @classmethod
    def of(cls, texts: NDArray[Any], is_bad: Bools) -> Unreadable | None:
        rows = np.flatnonzero(is_bad)
        return cls(len(rows), int(rows[0]), str(texts[rows[0]])) if len(rows) else None


Read = tuple[Floats, Unreadable | None]


def arrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ValueError("logs need pyarrow: pip install 'saformer[logs]'") from None
    return pyarrow


def read_numbers(where: str, column: Any, mapping: LogMapping) -> Read:
    """[n] NaN where a value is missing, or is no number. `where` names file and column."""
    pyarrow, kind = arrow(), column.type
    tests = ("is_floating", "is_integer", "is_boolean", "is_decimal", "is_null")
    if is_text(kind):
        values, unreadable = _numbers_of_text(column, mapping)
    elif any(getattr(pyarrow.types, test)(kind) for test in tests):
        values, unreadable = to_numpy(column.cast(pyarrow.float64())), None
    else:
        raise ValueError(f"{where} holds {kind}, expected numbers")
    stand_ins = [number for word in mapping.na if (number := _float(word)) is not None]
    return (
        np.where(np.isin(values, stand_ins), np.nan, values) if stand_ins else values
    ), unreadable


def flags(where: str, column: Any) -> Bools:
    """[n] of a column of truth values."""
    encoded = as_text(column).fill_null("").dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    for text in texts:
        if text.strip().lower() not in TRUE | FALSE:
            raise ValueError(f"{where} holds {text!r}, expected 0 or 1, true or false")
    meanings = np.array([text.strip().lower() in TRUE for text in texts], dtype=bool)
    found: Bools = meanings[to_numpy(encoded.indices)]
    return found


def seconds(where: str, column: Any, mapping: LogMapping) -> Read:
    """[n] since 1970 for dates, to the microsecond; a clock that counts goes by its unit."""
    pyarrow, style = arrow(), mapping.time_format or NUMBER
    if pyarrow.types.is_temporal(column.type):
        return _stamps(column), None
    if style in TIME_UNITS:
        values, unreadable = read_numbers(where, column, mapping)
        return values * TIME_UNITS[style], unreadable
    texts = _emptied(as_text(column), mapping)
    values = _stamps(_dates(texts, style))
    return values, Unreadable.of(to_numpy(texts), np.isnan(values) & to_numpy(texts.is_valid()))


def with_time_of_day(dates: Any, clocks: Any) -> Any:
    """Two columns of text as one: the date, then hours and minutes."""
    from pyarrow import compute

    return compute.binary_join_element_wise(as_text(dates), as_text(clocks), " ")


def time_style(texts: Sequence[str], name: str) -> str:
    """How these times are written: the unit of numbers, ISO 8601, or a format."""
    column = arrow().array([text for text in texts if text.strip()], arrow().string())
    if all(_float(text) is not None for text in column.to_pylist()):
        return NUMBER
    dates = itertools.product((*DATES, *DAY_FIRST, *MONTH_FIRST), CLOCKS)
    shares = {style: _share_read(column, style) for style in (ISO, *map("".join, dates))}
    best = max(shares.values())
    styles = [style for style, share in shares.items() if share == best]
    if best < MOST:
        problem = f"{column[0].as_py()!r} is no date that can be guessed"
        raise ValueError(f"time column {name!r}: {problem}; say how it is written, as in "
                         "--time-format '%d.%m.%Y %H:%M'")  # fmt: skip
    if any(style.startswith(DAY_FIRST) for style in styles) and len(styles) > 1:
        steady = [style for style in styles if _goes_on(column, style)]
        if len(steady) == 1:
            return steady[0]
        either = " or ".join(f"--time-format '{style}'" for style in styles)
        problem = f"{column[0].as_py()!r} may begin with the day or with the month"
        raise AmbiguousDateError(f"time column {name!r}: {problem}; say {either}")
    return styles[0]


def is_text(kind: Any) -> bool:
    types = arrow().types
    value = kind.value_type if types.is_dictionary(kind) else kind
    return str(value) in ("string", "large_string", "string_view")


def as_text(column: Any) -> Any:
    """Cells as text, trimmed."""
    from pyarrow import compute

    return compute.utf8_trim_whitespace(column.cast(arrow().string()))


def to_numpy(column: Any) -> NDArray[Any]:
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values


def _numbers_of_text(column: Any, mapping: LogMapping) -> Read:
    from pyarrow import compute

    pyarrow, column = arrow(), column.cast(arrow().string())
    if mapping.decimal == ",":
        column = compute.replace_substring(column, ",", ".")
    try:
        return to_numpy(column.cast(pyarrow.float64())), None
    except pyarrow.ArrowInvalid:
        encoded = column.dictionary_encode()  # some cells hold words: each is looked up once
    texts = [text.strip() for text in encoded.dictionary.to_pylist()]
    words = mapping.meanings or {}
    meanings = [words.get(text.lower(), _float(text)) for text in texts]
    index = to_numpy(encoded.indices.fill_null(len(texts))).astype(np.int64)
    values = np.array([np.nan if each is None else each for each in (*meanings, np.nan)])
    is_bad = np.array([each is None for each in (*meanings, np.nan)])
    return values[index], Unreadable.of(np.array([*texts, ""], dtype=object)[index], is_bad[index])


def _float(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _emptied(texts: Any, mapping: LogMapping) -> Any:
    """Words for what is missing as nothing."""
    from pyarrow import compute

    missing = [word for word, value in (mapping.meanings or {}).items() if np.isnan(value)]
    is_missing = compute.is_in(compute.utf8_lower(texts), arrow().array(missing))
    return compute.if_else(is_missing, arrow().scalar(None, arrow().string()), texts)


def _share_read(column: Any, style: str) -> float:
    stamps = _stamps(_dates(column, style))
    first = np.datetime64(str(FIRST_YEAR)).astype("datetime64[s]").astype(np.int64)
    return float((stamps >= first).mean()) if len(stamps) else 0.0  # not where one is NaN


def _goes_on(column: Any, style: str) -> bool:
    """Whether rows follow each other within a day: read the wrong way, days are months apart."""
    passed = np.diff(_stamps(_dates(column, style)))
    return bool((np.abs(passed) < DAY_SECONDS).all())


def _dates(texts: Any, style: str) -> Any:
    """Timestamps, null where a text is no date of this style."""
    from pyarrow import compute

    if style != ISO:
        return compute.strptime(texts, format=style, unit="us", error_is_null=True)
    pyarrow = arrow()
    for unit, zone in itertools.product(("us", "ns"), (None, "UTC")):
        try:
            return texts.cast(pyarrow.timestamp(unit, zone))
        except pyarrow.ArrowInvalid:
            continue
    if len(texts) == 1:
        return pyarrow.nulls(1, pyarrow.timestamp("us"))
    halves = (texts.slice(0, len(texts) // 2), texts.slice(len(texts) // 2))
    parts = [_dates(half, style).cast(pyarrow.timestamp("us"), safe=False) for half in halves]
    return pyarrow.concat_arrays(parts)


def _stamps(column: Any) -> Floats:
    pyarrow = arrow()
    stamps = column.cast(pyarrow.timestamp("us"), safe=False).cast(pyarrow.int64())
    whole: Floats = to_numpy(stamps.cast(pyarrow.float64())) / 1e6
    return whole
