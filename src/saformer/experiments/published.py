"""The paper's printed cells and hyper-parameters (assets/published.*), and their oddities."""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from saformer.report.page import Remark

_ASSETS = resources.files("saformer").joinpath("assets")
_PROSE = json.loads(_ASSETS.joinpath("published.json").read_text())
ODDITIES: dict[int, list[str]] = {int(table): text for table, text in _PROSE["oddities"].items()}
"""By table."""
TABLE_6: dict[str, dict[str, Any]] = _PROSE["hyper-parameters"]
"""By name and agent; an agent that has no entry has a slash there."""
NUMBERS = ("cost_discount", "limit", "return", "return_spread", "cost", "cost_spread")


@dataclass(frozen=True)
class Published:
    """One printed cell."""

    table: int
    dataset: str
    cost_discount: float
    agent: str
    variant: str  # Tables 4 and 8: "critic", "no critic"; Table 3: "offline", "fine-tuned"
    limit_name: str  # a percentile, or none where the limit is a cost
    limit: float | None  # None for DT, which has none
    episode_return: float | None
    return_spread: float | None
    cost: float | None
    cost_spread: float | None
    coloured: str  # "met" (green) or "missed" (red), where the paper colours it

    @property
    def met(self) -> bool | None:
        """Whether the printed cost is within the printed limit, with no tolerance."""
        return None if self.limit is None or self.cost is None else self.cost <= self.limit


def published(table: int, **values: Any) -> Iterator[Published]:
    """The cells of a table that have these values."""
    for cell in _cells():
        if all(getattr(cell, name) == value for name, value in (("table", table), *values.items())):
            yield cell


def published_cell(table: int, **values: Any) -> Published | None:
    """The one cell that has these values, if there is one."""
    cells = list(published(table, **values))
    if len(cells) > 1:
        raise ValueError(f"{len(cells)} cells of Table {table} have {values}: say more")
    return cells[0] if cells else None


def oddities(*tables: int) -> Remark:
    """What is odd in the paper's tables; Table 6 has no seeds to state."""
    lines = [line for table in tables for line in ODDITIES[table]]
    unstated = [] if tables == (6,) else [_PROSE["not stated"]]
    return Remark((*lines, *unstated), "What is odd in the paper's")


@cache
def _cells() -> tuple[Published, ...]:
    text = _ASSETS.joinpath("published.csv").read_text()
    return tuple(map(_parsed, csv.DictReader(text.splitlines())))


def _parsed(row: dict[str, Any]) -> Published:
    for name in NUMBERS:
        row[name] = float(row[name]) if row[name] else None
    return Published(table=int(row.pop("table")), episode_return=row.pop("return"), **row)
