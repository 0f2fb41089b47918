"""Figures of several panels, from plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes

from saformer.report.figure import POINTS, STYLE, canvas, colours, svg

LINES = ("-", "--", "-.", ":")
"""With the markers, they tell lines apart where there are no colours."""
MARKERS = "os^Dv"


@dataclass(frozen=True)
class Line:
    """One curve; `low` and `high` shade an interval about it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    level: float | None = None
    """a limit of its own, dashed in its colour"""


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    lines: Sequence[Line]
    x_label: str
    y_label: str
    level: float | None = None
    """a limit of all, dashed"""


@dataclass(frozen=True)
class Cloud:
    """Points, and upright lines among them."""

    title: str
    x: Sequence[float]
    y: Sequence[float]
    marks: Sequence[tuple[str, float]]
    x_label: str
    y_label: str


def line_panels(panels: Sequence[Panel], *, columns: int, log_x: bool = False) -> str:
    """Panels of lines; what a label means is said once, below all of them."""
    with matplotlib.rc_context(STYLE):
        figure, axes = canvas(len(panels), columns)
        labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
        for panel, axis in zip(panels, axes, strict=True):
            for line in panel.lines:
                _draw(axis, line, labels.index(line.label), len(labels))
            if panel.level is not None:
                axis.axhline(panel.level, color="k", lw=0.9, ls="--")
            if log_x:
                axis.set_xscale("log", base=2)
            axis.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
        found = {
            label: handle
            for axis in axes
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        if len(found) > 1:
            figure.legend(
                list(found.values()),
                list(found),
                loc="outside lower center",
                ncols=min(5, len(found)),
            )
        return svg(figure)


def cloud_panels(clouds: Sequence[Cloud], *, columns: int) -> str:
    """Panels of points."""
    with matplotlib.rc_context(STYLE):
        figure, axes = canvas(len(clouds), columns)
        for cloud, axis in zip(clouds, axes, strict=True):
            axis.scatter(cloud.x, cloud.y, s=6, c=POINTS, linewidths=0)
            for (_, value), colour in zip(cloud.marks, colours(len(cloud.marks)), strict=True):
                axis.axvline(value, color=colour, lw=0.9, ls="--")
            axis.set(title=cloud.title, xlabel=cloud.x_label, ylabel=cloud.y_label)
        return svg(figure)


def _draw(axis: Axes, line: Line, number: int, count: int) -> None:
    colour = colours(count)[number]
    style: Any = {
        "color": colour,
        "ls": LINES[number % len(LINES)],
        "marker": MARKERS[number % len(MARKERS)],
    }
    axis.plot(line.x, line.y, lw=1.2, ms=3.5, label=line.label, **style)
    if len(line.low):
        axis.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    if line.level is not None:
        axis.axhline(line.level, color=colour, lw=0.9, ls=(0, (6, 3)))
