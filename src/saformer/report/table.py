"""The verdicts as a table for the terminal or for a page."""

from __future__ import annotations

import html
from typing import Any

from rich.table import Table
from rich.text import Text

HEADINGS = (
    "limit",
    "",
    "met",
    "mean cost",
    "worst",
    "episodes within (95%)",
    "return",
    "frontier",
    "share",
    "re-sampled",
    "fell back",
)  # noqa: E501


def verdict_rows(evaluation: dict[str, Any]) -> list[tuple[bool, list[str]]]:
    """(met?, cells) for each limit."""
    return [(verdict["met"], _cells(verdict)) for verdict in evaluation["verdicts"]]


def summary(evaluation: dict[str, Any]) -> str:
    """The figures over all limits, in one line."""
    return (
        f"{evaluation['limits_met']} of {len(evaluation['verdicts'])} limits met (tolerance {evaluation['tolerance']:g}), "
        f"rank correlation of limit and cost {evaluation['rank_correlation']:.2f}, "
        f"frontier share {evaluation['frontier_share']:.2f}, "
        f"{evaluation['decisions_per_second']:.0f} decisions per second"
    )


def verdict_table(evaluation: dict[str, Any]) -> Table:
    """For the terminal."""
    table = Table(*HEADINGS, caption=summary(evaluation), caption_justify="left")
    for met, cells in verdict_rows(evaluation):
        style = "green" if met else "red"
        table.add_row(*(Text(cell, style=style if place in {2, 3} else "") for place, cell in enumerate(cells)))
    return table


def verdict_html(evaluation: dict[str, Any]) -> str:
    """For a page: limits met in green and missed in red, as in the paper."""
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in HEADINGS)
    body = ""
    for met, cells in verdict_rows(evaluation):
        kind = "met" if met else "missed"
        marked = [f'<td class="{kind}">' if place in {2, 3} else "<td>" for place in range(len(cells))]
        body += (
            "<tr>"
            + "".join(f"{tag}{html.escape(cell)}</td>" for tag, cell in zip(marked, cells, strict=True))
            + "</tr>"
        )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(verdict: dict[str, Any]) -> list[str]:
    low, high = verdict["within_interval"]
    return [
        verdict["limit"]["name"],
        _numbers(verdict["limit"]["values"]),
        "yes" if verdict["met"] else "no",
        _numbers(verdict["mean_cost"]),
        _numbers(verdict["worst_cost"]),
        f"{verdict['within']:.0%} ({low:.0%} to {high:.0%}) of {verdict['num_episodes']}",
        _numbers([verdict["mean_return"]]),
        _numbers([verdict["frontier"]]),
        f"{verdict['frontier_share']:.2f}",
        f"{verdict['resampled']:.0%}",
        f"{verdict['fell_back']:.0%}",
    ]


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" for value in values)
