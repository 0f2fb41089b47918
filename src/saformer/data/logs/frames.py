"""Logs in memory: pandas, polars and pyarrow tables, and dictionaries of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from saformer.data.logs.cells import arrow
from saformer.data.logs.files import SUFFIXES, Frame
from saformer.data.sources.minari import is_minari_folder


def log_sources(sources: Any) -> list[Any] | None:
    """Names of logs as they are, frames as tables, of one or several; None if any is another."""
    parts = as_list(sources)
    if not parts:
        raise ValueError(
            "what is to be imported? Give a task, a trajectory store, d4rl:NAME, minari:NAME, or a "
            "file (.csv, .parquet, .hdf5, .npz)"
        )
    if all(_is_frame(part) or is_log(part) or _is_folder(part) for part in parts):
        return [as_frame(part) if _is_frame(part) else part for part in parts]
    return None


def as_list(sources: Any) -> list[Any]:
    """Several sources, or one."""
    is_one = isinstance(sources, str | Path) or _is_frame(sources)
    return [sources] if is_one else list(sources)


def is_log(source: Any) -> bool:
    """Whether this looks like the name of a log, or of many."""
    return isinstance(source, str | Path) and Path(source).suffix.lower() in SUFFIXES


def as_frame(source: Any) -> Frame:
    """A frame of any library that speaks Arrow's or the interchange protocol, or a dictionary of
    arrays: [n], or [n, k] for columns called NAME_0 to NAME_k."""
    pyarrow = arrow()
    if isinstance(source, Mapping):
        columns: dict[str, Any] = {}
        for name, values in source.items():
            array = np.asarray(values)
            vector = {f"{name}_{i}": part for i, part in enumerate(array.T)}
            parts = vector if array.ndim == 2 else {name: array}
            columns |= {key: pyarrow.array(part) for key, part in parts.items()}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"the arrays differ in length: {lengths}; expected a row for each step"
            )
        return Frame(pyarrow.table(columns))
    if hasattr(source, "__arrow_c_stream__"):
        return Frame(pyarrow.table(source))
    from pyarrow.interchange import from_dataframe

    return Frame(from_dataframe(source))


def _is_folder(source: Any) -> bool:
    return Path(source).is_dir() and not is_minari_folder(source)


def _is_frame(source: Any) -> bool:
    protocols = ("__arrow_c_stream__", "__dataframe__")
    return isinstance(source, Mapping) or any(hasattr(source, name) for name in protocols)
