"""Figures as SVG text: how they look, and panels of lines or points from plain numbers."""

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

ACCEPTED, REJECTED, DATA, POINTS = "#2a7f4f", "#b5342d", "#c4c8cf", "#8a93a0"
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "saformer",
    "text.parse_math": False,  # names are text, dollar signs too
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **{"axes.titlesize": 10, "axes.titlelocation": "left", "axes.labelsize": 9},
    **dict.fromkeys(("legend.fontsize", "xtick.labelsize", "ytick.labelsize"), 8),
}
LINES, MARKERS = ("-", "--", "-.", ":"), "os^Dv"  # distinguish lines without colours

styled = matplotlib.rc_context(STYLE)  # decorates a function that draws


@dataclass(frozen=True)
class Line:
    """One curve; `low` and `high` shade an interval about it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    level: float | None = None  # a limit of its own, dashed in its colour


@dataclass(frozen=True)
class Panel:
    """One pair of axes: lines, or points."""

    title: str
    lines: Sequence[Line] = ()
    x_label: str = ""
    y_label: str = ""
    level: float | None = None  # a limit of all, dashed
    points: tuple[Sequence[float], Sequence[float]] = ((), ())  # x and y
    marks: Sequence[float] = ()  # upright lines, dashed


def canvas(panels: int, columns: int = 2) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels."""
    columns = min(columns, panels)
    rows = -(-panels // columns)
    width = 7.2 if panels == 1 else 9.0
    figure = Figure(figsize=(width, 3.1 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[panels:]:
        spare.remove()
    return figure, axes[:panels]


def colours(count: int) -> list[Any]:
    """So many that can be distinguished, in order."""
    return list(matplotlib.colormaps["viridis"](np.linspace(0.05, 0.78, count)))


def svg(figure: Figure) -> str:
    """The `<svg>` element alone."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return re.sub(r"^.*?(?=<svg)", "", text.getvalue(), flags=re.DOTALL)


def with_hints(drawing: str, group: str, hints: Iterable[str]) -> str:
    """With a text for each point of the scatter whose `gid` this is, shown when pointed at."""
    head, start, rest = drawing.partition(f'<g id="{group}">')
    for hint in hints:
        before, point, rest = re.split(r"(<use [^>]*)/>", rest, maxsplit=1)
        start += f"{before}{point}><title>{escape(hint)}</title></use>"
    return head + start + rest


@styled
def line_panels(panels: Sequence[Panel], *, columns: int, log_x: bool = False) -> str:
    """Panels, and one legend below all of them."""
    figure, axes = canvas(len(panels), columns)
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    for panel, axis in zip(panels, axes, strict=True):
        if panel.points[0]:
            axis.scatter(*panel.points, s=6, c=POINTS, linewidths=0)
        for value, colour in zip(panel.marks, colours(len(panel.marks)), strict=True):
            axis.axvline(value, color=colour, lw=0.9, ls="--")
        for line in panel.lines:
            _draw(axis, line, labels.index(line.label), len(labels))
        if panel.level is not None:
            axis.axhline(panel.level, color="k", lw=0.9, ls="--")
        if log_x:
            axis.set_xscale("log", base=2)
            write_plainly(axis.xaxis, base=2)
        axis.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    legend: dict[Any, Any] = {}
    for axis in axes:
        handles, names = axis.get_legend_handles_labels()
        legend |= zip(names, handles, strict=True)
    if len(legend) > 1:
        where: Any = {"loc": "outside lower center", "ncols": min(5, len(legend))}
        figure.legend(list(legend.values()), list(legend), **where)
    return svg(figure)


def write_plainly(axis: Axis, base: float = 10) -> None:
    """Logarithmic ticks as numbers: by default they are formulas, which no text is."""
    axis.set_major_formatter(LogFormatter(base))
    axis.set_minor_formatter(LogFormatter(base))


def _draw(axis: Axes, line: Line, index: int, count: int) -> None:
    colour = colours(count)[index]
    dashes, marker = LINES[index % len(LINES)], MARKERS[index % len(MARKERS)]
    style: Any = {"lw": 1.2, "ms": 3.5, "color": colour, "ls": dashes, "marker": marker}
    axis.plot(line.x, line.y, label=line.label, **style)
    if len(line.low):
        axis.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    if line.level is not None:
        axis.axhline(line.level, color=colour, lw=0.9, ls=(0, (6, 3)))
