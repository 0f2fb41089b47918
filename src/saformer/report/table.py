"""Tables for the terminal or for a page, and the verdicts as one."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

HEADINGS = (
    "limit",
    "met",
    "cost",
    "worst",
    "within (95%)",
    "return",
    "frontier",
    "share",
    "redrawn",
    "fallback",
)
SHIELD = "shield"
"""Named where there was one."""
SHIELDED_HEADINGS = (*HEADINGS[:8], "shielded")
"""Of what is compared, how it was proposed matters less."""
CALIBRATED_HEADINGS = (*HEADINGS[:4], "passed (95% below)", "asked", "kept back", *HEADINGS[5:8])
"""Of what was calibrated for a violation rate."""
MARKED = {"met", "cost"}
"""Columns that say whether the limit was met."""
TERMINAL_STYLES = {"met": "green", "missed": "red", "": ""}

Cell = tuple[str, str]
"""A text and its mark: "met", "missed" or none."""


def summary(evaluation: dict[str, Any]) -> str:
    """The figures over all limits, in one line."""
    verdicts, criteria = evaluation["verdicts"], evaluation["criteria"]
    name = f"{evaluation['name']}: " if evaluation["beside"] else ""
    known = any(correlation is not None for correlation in evaluation["rank_correlations"])
    obeyed = (
        f"rank correlation of limit and cost {_rounded(evaluation['rank_correlations'])}, "
        if known
        else ""
    )
    costs = f"; costs: {', '.join(criteria)}" if len(criteria) > 1 else ""
    return (
        f"{name}{evaluation['limits_met']} of {len(verdicts)} limits met (tolerance "
        f"{evaluation['tolerance']:g}, "
        f"{verdicts[0]['num_episodes']} episodes each), {obeyed}"
        f"frontier share {_rounded([evaluation['frontier_share']])}, "
        f"{evaluation['decisions_per_second']:.0f} decisions per second{costs}"
    )


def has_shield(evaluation: dict[str, Any]) -> bool:
    """Whether it was judged with a shield, or is compared with what was."""
    return any(SHIELD in one["name"] for one in (evaluation, *evaluation["beside"]))


def verdict_table(evaluation: dict[str, Any]) -> Table:
    """For the terminal."""
    headings, rows = _columns(evaluation)
    return terminal_table(headings, rows, caption=summary(evaluation))


def verdict_html(evaluation: dict[str, Any]) -> str:
    """For a page: limits met in green and missed in red, as in the paper."""
    return html_table(*_columns(evaluation))


def terminal_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    caption: str = "",
    title: str | None = None,
) -> Table:
    """Rows of cells, the first column to the left."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), caption_justify="left")
    table.caption = escape(caption) or None
    table.title, table.title_justify = title, "left"
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(text, style=TERMINAL_STYLES[mark]) for text, mark in row))
    return table


def html_table(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """The same for a page."""
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(_html_cell(cell) for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def numbers(values: Iterable[float | None], *, sign: bool = False) -> str:
    """Three digits of each, whole numbers where they are large, "-" for what is not known."""
    return ", ".join(_number(value, "+" if sign else "") for value in values)


def _rounded(values: Iterable[float | None]) -> str:
    return ", ".join("-" if value is None else f"{value:.2f}" for value in values)


def percent(share: float | None) -> str:
    """A share, or "-" if it is not known."""
    return "-" if share is None else f"{share:.0%}"


def _html_cell(cell: Cell) -> str:
    text, mark = cell
    return (f'<td class="{mark}">' if mark else "<td>") + f"{html.escape(text)}</td>"


def _number(value: float | None, sign: str) -> str:
    if value is None:
        return "-"
    return f"{value:{sign}.0f}" if abs(value) >= 100 else f"{value:{sign}.3g}"


def _columns(evaluation: dict[str, Any]) -> tuple[tuple[str, ...], list[list[Cell]]]:
    """Headings and rows: limit by limit, and under each all that were judged."""
    judged = [evaluation, *evaluation["beside"]]
    if evaluation.get("rate") is not None:
        return CALIBRATED_HEADINGS, [
            _calibrated_row(evaluation, place) for place in range(len(evaluation["verdicts"]))
        ]
    if len(judged) == 1 and not has_shield(evaluation):
        return HEADINGS, [
            _row(verdict, evaluation["name"], headings=HEADINGS)
            for verdict in evaluation["verdicts"]
        ]
    headings = SHIELDED_HEADINGS + (("policy",) if len(judged) > 1 else ())
    by_limit = zip(*(one["verdicts"] for one in judged), strict=True)
    names = [one["name"] for one in judged]
    rows = [
        _row(*each, headings=headings)
        for verdicts in by_limit
        for each in zip(verdicts, names, strict=True)
    ]
    return headings, rows


def _row(verdict: dict[str, Any], name: str, *, headings: Sequence[str]) -> list[Cell]:
    cells, mark = _cells(verdict, name), "met" if verdict["met"] else "missed"
    return [(cells[heading], mark if heading in MARKED else "") for heading in headings]


def _calibrated_row(evaluation: dict[str, Any], place: int) -> list[Cell]:
    verdict, rate = evaluation["verdicts"][place], evaluation["rate"]
    cells, mark = _cells(verdict, evaluation["name"]), "met" if verdict["met"] else "missed"
    cells["passed (95% below)"] = f"{1 - verdict['within']:.1%} ({verdict['violation_bound']:.1%})"
    cells["asked"], cells["kept back"] = f"{100 * rate:.3g}%", f"{evaluation['margins'][place]:.0%}"
    return [(cells[heading], mark if heading in MARKED else "") for heading in CALIBRATED_HEADINGS]


def _cells(verdict: dict[str, Any], name: str) -> dict[str, str]:
    low, high = verdict["within_interval"]
    return {
        "limit": f"{verdict['limit']['name']} = {numbers(verdict['limit']['values'])}",
        "met": "yes" if verdict["met"] else "no",
        "cost": numbers(verdict["mean_cost"]),
        "worst": numbers(verdict["worst_cost"]),
        "within (95%)": f"{verdict['within']:.0%} ({100 * low:.0f}-{100 * high:.0f})",
        "return": numbers([verdict["mean_return"]]),
        "frontier": numbers([verdict["frontier"]]),
        "share": _rounded([verdict["frontier_share"]]),
        "redrawn": percent(verdict["resampled"]),
        "fallback": percent(verdict["fell_back"]),
        "shielded": percent(verdict["shielded"] if SHIELD in name else None),
        "policy": name,
    }
