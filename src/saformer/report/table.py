"""The verdicts as a table for the terminal or for a page."""

from __future__ import annotations

import html
from typing import Any

from rich.table import Table
from rich.text import Text

HEADINGS = ("limit", "met", "cost", "worst", "within (95%)", "return", "frontier", "share", "redrawn", "fallback")
MARKED = {1, 2}
"""Columns that say whether the limit was met."""


def summary(evaluation: dict[str, Any]) -> str:
    """The figures over all limits, in one line."""
    verdicts = evaluation["verdicts"]
    return (
        f"{evaluation['limits_met']} of {len(verdicts)} limits met (tolerance {evaluation['tolerance']:g}, "
        f"{verdicts[0]['num_episodes']} episodes each), rank correlation of limit and cost "
        f"{evaluation['rank_correlation']:.2f}, frontier share {evaluation['frontier_share']:.2f}, "
        f"{evaluation['decisions_per_second']:.0f} decisions per second"
    )


def verdict_table(evaluation: dict[str, Any]) -> Table:
    """For the terminal."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), caption=summary(evaluation), caption_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "limit" else "right", no_wrap=True)
    for verdict in evaluation["verdicts"]:
        style = "green" if verdict["met"] else "red"
        cells = enumerate(_cells(verdict))
        table.add_row(*(Text(cell, style=style if place in MARKED else "") for place, cell in cells))
    return table


def verdict_html(evaluation: dict[str, Any]) -> str:
    """For a page: limits met in green and missed in red, as in the paper."""
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in HEADINGS)
    body = "".join(_html_row(verdict) for verdict in evaluation["verdicts"])
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _html_row(verdict: dict[str, Any]) -> str:
    kind = "met" if verdict["met"] else "missed"
    tags = (f'<td class="{kind}">' if place in MARKED else "<td>" for place in range(len(HEADINGS)))
    cells = (html.escape(cell) for cell in _cells(verdict))
    return "<tr>" + "".join(f"{tag}{cell}</td>" for tag, cell in zip(tags, cells, strict=True)) + "</tr>"


def _cells(verdict: dict[str, Any]) -> list[str]:
    low, high = verdict["within_interval"]
    return [
        f"{verdict['limit']['name']} = {_numbers(verdict['limit']['values'])}",
        "yes" if verdict["met"] else "no",
        _numbers(verdict["mean_cost"]),
        _numbers(verdict["worst_cost"]),
        f"{verdict['within']:.0%} ({100 * low:.0f}-{100 * high:.0f})",
        _numbers([verdict["mean_return"]]),
        _numbers([verdict["frontier"]]),
        f"{verdict['frontier_share']:.2f}",
        f"{verdict['resampled']:.0%}",
        f"{verdict['fell_back']:.0%}",
    ]


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" for value in values)
