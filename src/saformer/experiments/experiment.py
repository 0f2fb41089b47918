"""An experiment, as it is declared, and its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saformer.data.statistics import without_nan
from saformer.experiments.plan import Needs, Row, Setting
from saformer.files import read_json, validated, write_json
from saformer.report.page import Part

VERSION = 1


@dataclass(frozen=True)
class Results:
    """The rows of one experiment and their provenance: all that its page is made from."""

    experiment: str
    rows: dict[str, list[Row]]
    made: dict[str, Any]
    failed: list[dict[str, str]]

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.experiment}.json"
        plain = {"version": VERSION, **without_nan(vars(self))}
        write_json(path, plain)
        return path

    @classmethod
    def read(cls, folder: Path, experiment: str) -> Results:
        path, command = folder / f"{experiment}.json", f"`saformer experiment {experiment}`"
        if not path.exists():
            raise FileNotFoundError(f"there are no rows at {path}; make them with {command}")
        again = f"make it again with {command}"
        plain = read_json(path, dict[str, Any], again)
        if plain.pop("version", None) != VERSION:
            raise ValueError(f"{path} was written by another version of saformer; {again}")
        results: Results = validated(cls, plain, path, again)
        return results


@dataclass(frozen=True)
class Experiment:
    """A declaration: what is needed, and how its rows are shown."""

    name: str
    shows: str  # which tables and figures of the paper
    title: str
    description: str  # a sentence or two
    needs: Callable[[Setting], Needs]
    present: Callable[[Results], Sequence[Part]]  # tables and figures, from nothing but the rows
    settings: Callable[[Setting], list[Row]] = lambda setting: []  # rows that need no run
