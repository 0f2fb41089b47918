"""Which limits a dataset can support: tables for the terminal, and one self-contained page."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from saformer import __version__
from saformer.report import figure
from saformer.report.frame import section, write_page
from saformer.report.table import Cell, html_table, numbers, terminal_table

ALL_WELL = "No warnings: return and cost are correlated, costs are spread, and every limit has its examples."


@dataclass(frozen=True)
class _Grid:
    """A table, before it is known where it will be shown."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str


def inspection_tables(inspection: dict[str, Any]) -> list[RenderableType]:
    """For the terminal: an overview, the tables, and the warnings last, where they are seen."""
    shown: list[RenderableType] = [Text(_overview(inspection))]
    for grid in _grids(inspection):
        shown += [
            Text(f"\n{grid.title}", style="bold"),
            terminal_table(grid.headings, _plain_cells(grid)),
        ]
    warnings = [
        Text.assemble(("warning: ", "bold yellow"), w["text"]) for w in inspection["warnings"]
    ]
    return [*shown, Text(), *(warnings or [Text(ALL_WELL, style="green")])]


def write_inspection(
    inspection: dict[str, Any],
    path: str | Path,
    *,
    title: str = "Which limits can this data support?",
) -> Path:
    """The same as a page, with figures."""
    sections = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="note">{html.escape(_overview(inspection))}</p>',
        _warnings(inspection),
        *(section(grid.title, _html(grid), grid.note) for grid in _grids(inspection)),
        *(
            part
            for index in range(len(inspection["constraints"]))
            for part in _figures(inspection, index)
        ),
        "<h2>How this was made</h2>",
        f"<pre>{html.escape(_provenance(inspection))}</pre>",
    ]
    return write_page(path, title, sections)


def _overview(inspection: dict[str, Any]) -> str:
    length = inspection["length"]
    left_out = (
        f", {inspection['num_left_out']} unfinished left out" if inspection["num_left_out"] else ""
    )
    discount = (
        f"; costs discounted by {inspection['cost_discount']:g}"
        if inspection["cost_discount"] != 1
        else ""
    )
    return (
        f"{inspection['num_trajectories']} trajectories{left_out}, {inspection['num_steps']} "
        "steps; "
        f"{length['min']:g} to {length['max']:g} steps an episode, median "
        f"{length['median']:g}{discount}"
    )


def _grids(inspection: dict[str, Any]) -> list[_Grid]:
    return [_threshold_grid(inspection), _assumption_grid(inspection), _limit_grid(inspection)]


def _threshold_grid(inspection: dict[str, Any]) -> _Grid:
    constraints, earned = inspection["constraints"], inspection["episode_return"]
    rows = [
        [c["criterion"], *_each(c["thresholds"].values()), numbers([c["cost"]["mean"]])]
        for c in constraints
    ]
    of_return = [earned["percentiles"][name] for name in ("p0", "p10", "p20", "p30", "p50", "p100")]
    return _Grid(
        "Thresholds",
        ("episode", "min", "10%", "20%", "30%", "50%", "max", "mean"),
        [*rows, ["return", *_each(of_return), numbers([earned["mean"]])]],
        "A tenth of the trajectories cost what stands under 10%, or less, and so on; the last "
        "row is their return.",
    )


def _assumption_grid(inspection: dict[str, Any]) -> _Grid:
    keys = ("correlation", "rank_correlation", "relative_spread", "variation", "length_correlation")
    return _Grid(
        "Assumptions",
        ("episode cost", "correlation", "of ranks", "spread", "variation", "with length"),
        [
            [c["criterion"], *(_two_digits(c[key]) for key in keys)]
            for c in inspection["constraints"]
        ],
        "Correlation of return and cost, and of their ranks; spread: (p90 - p10) / median of the "
        "cost; variation: its "
        "deviation / mean; correlation of cost with the episode's length.",
    )


def _limit_grid(inspection: dict[str, Any]) -> _Grid:
    rows = [
        [
            f"{limit['name']} = {numbers(limit['values'])}",
            str(limit["num_within"]),
            f"{limit['share_within']:.1%}",
            numbers([limit["frontier"]]),
            numbers([limit["median_return"]]),
        ]
        for limit in inspection["limits"]
    ]
    return _Grid(
        "Limits",
        ("limit", "within", "share", "frontier", "median return"),
        rows,
        "Trajectories within each limit, of every constraint at once. Frontier: the mean of the "
        "five best stored "
        "returns within the limit. Median return: of all trajectories within it.",
    )


def _figures(inspection: dict[str, Any], index: int) -> list[str]:
    name = inspection["constraints"][index]["criterion"]
    alone = " Frontier of this constraint alone." if len(inspection["constraints"]) > 1 else ""
    shown, known = len(inspection["sample"]["episode_return"]), inspection["num_trajectories"]
    return [
        section(
            f"Return and cost ({name})",
            figure.pair_plot(inspection, index),
            f"{shown} of {known} trajectories; dashed: the limits; line: the mean of the five "
            "best returns within "
            f"each cost.{alone}",
        ),
        section(
            f"Episode cost ({name})",
            figure.cost_distribution(inspection, index),
            "Dashed: the limits, as above.",
        ),
    ]


def _warnings(inspection: dict[str, Any]) -> str:
    items = "".join(
        f"<li>{html.escape(warning['text'])}</li>" for warning in inspection["warnings"]
    )
    return (
        f'<div class="caution"><ul>{items}</ul></div>'
        if items
        else f'<p class="lead">{ALL_WELL}</p>'
    )


def _html(grid: _Grid) -> str:
    return html_table(grid.headings, _plain_cells(grid))


def _plain_cells(grid: _Grid) -> list[list[Cell]]:
    return [[(text, "") for text in row] for row in grid.rows]


def _provenance(inspection: dict[str, Any]) -> str:
    facts = {
        "saformer": __version__,
        "data fingerprint": inspection["fingerprint"],
        "criteria": [constraint["criterion"] for constraint in inspection["constraints"]],
        "cost_discount": inspection["cost_discount"],
    }
    return json.dumps(facts, indent=1)


def _each(values: Any) -> list[str]:
    return [numbers([value]) for value in values]


def _two_digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
