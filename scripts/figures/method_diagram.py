"""The paper's rule and verification by reserve, as a drawing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from saformer.core.rules import PaperOptions
from saformer.report.figure import DATA, POINTS, STYLE, svg
from saformer.rules.reserve import EMPHASIS, ReserveOptions, num_narrow

SIZE = (9.0, 4.3)
"""In inches, in which the axis counts."""
WIDTH, COLUMNS = 1.42, (0.85, 2.67, 4.49, 6.31, 8.13)
LEADING = 0.16
PLAIN, QUESTION, ANSWER = "#f4f5f7", "#fdf1cf", "#dcefe3"
WORDS: Any = {"fontsize": 8.5, "ha": "center", "va": "center"}


@dataclass(frozen=True)
class Box:
    """Some words and where their middle is."""

    x: float
    y: float
    words: str
    colour: str = PLAIN
    width: float = WIDTH
    height: float = 0.64


def rule() -> str:
    """Both rules, one below the other, as SVG."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=SIZE)
        axis = figure.add_axes((0, 0, 1, 1), xlim=(0, SIZE[0]), ylim=(0, SIZE[1]))
        axis.set_axis_off()
        _paper(axis, 3.45)
        axis.plot([0.15, SIZE[0] - 0.15], [2.27, 2.27], color=DATA, lw=0.8)
        _reserve(axis, 1.3)
        return svg(figure)


def _paper(axis: Axes, y: float) -> None:
    options = PaperOptions()
    proposals = Box(COLUMNS[0], y, f"{options.candidates} proposals\nof return and action")
    forecast = Box(COLUMNS[1], y, "critic: forecast of\nwhat follows each")
    question = Box(COLUMNS[2], y, "is any forecast within\nwhat remains?", QUESTION)
    best = Box(COLUMNS[3], y, "of these, the one of\nthe highest return", ANSWER)
    mean = Box(COLUMNS[2], y - 0.86, "the mean proposal", ANSWER, height=0.3)
    _title(axis, y, "The paper (Algorithm 1)")
    _boxes(axis, proposals, forecast, question, best, mean)
    _across(axis, proposals, forecast)
    _across(axis, forecast, question)
    _across(axis, question, best, "yes")
    _down(axis, question, mean, f"no, in {options.rounds} rounds")


def _reserve(axis: Axes, y: float) -> None:
    options = ReserveOptions()
    narrow = num_narrow(options.candidates)
    wide = f"{options.candidates - narrow} with actions\nspread {options.spread:.0f} times as far"
    proposals = Box(COLUMNS[0], y, f"{narrow} such proposals,\n{wide}")
    forecast = Box(COLUMNS[1], y, "critic: forecast,\na small network:\nstep cost of each")
    overrun = Box(COLUMNS[2], y, "is the mean\nforecast to overrun\nwhat remains?", QUESTION)
    late = Box(
        COLUMNS[3], y, "does no more remain\nthan needed: to stop,\nor idle to the end?", QUESTION
    )
    cheapest = Box(
        COLUMNS[4], y, f"at stake: the least\nforecast\n+ {EMPHASIS:.0f} x step cost", ANSWER
    )
    middle, width = (overrun.x + late.x) / 2, late.x - overrun.x + WIDTH
    mean = Box(middle, y - 0.93, "the mean proposal", ANSWER, width=width, height=0.3)
    told = Box(
        COLUMNS[0], y - 0.84, "told the limit, or what\nearns most; to idle,\nthe cheapest cost"
    )
    _title(axis, y, f"By reserve (what remains: less {options.holdback:.0%} of the limit)")
    _boxes(axis, told, proposals, forecast, overrun, late, cheapest, mean)
    _arrow(
        axis, (told.x, told.y + told.height / 2), (proposals.x, proposals.y - proposals.height / 2)
    )
    _across(axis, proposals, forecast)
    _across(axis, forecast, overrun)
    _across(axis, overrun, late, "yes")
    _across(axis, late, cheapest, "yes")
    for question in (overrun, late):
        _down(axis, question, mean, "no")
    remark = "if no episode ends early:\nof the first half alone,\nunless it saves too slowly"
    _lines(axis, cheapest.x, y - 0.74, remark)


def _title(axis: Axes, y: float, words: str) -> None:
    axis.text(COLUMNS[0] - WIDTH / 2, y + 0.5, words, fontsize=10, fontweight="bold")


def _boxes(axis: Axes, *boxes: Box) -> None:
    for box in boxes:
        corner = (box.x - box.width / 2, box.y - box.height / 2)
        shape = FancyBboxPatch(corner, box.width, box.height, "round,pad=0,rounding_size=0.06")
        shape.set(facecolor=box.colour, edgecolor=POINTS, linewidth=0.8)
        axis.add_patch(shape)
        _lines(axis, box.x, box.y, box.words)


def _lines(axis: Axes, x: float, y: float, words: str) -> None:
    """Line by line: together they would be set by the measures of one font and shown in another."""
    lines = words.splitlines()
    for number, line in enumerate(lines):
        axis.text(x, y - LEADING * (number - (len(lines) - 1) / 2), line, **WORDS)


def _across(axis: Axes, start: Box, end: Box, word: str = "") -> None:
    """An arrow to the box on the right."""
    tail, tip = start.x + start.width / 2, end.x - end.width / 2
    _arrow(axis, (tail, start.y), (tip, end.y))
    axis.text((tail + tip) / 2, start.y + 0.11, word, **WORDS)


def _down(axis: Axes, start: Box, end: Box, word: str) -> None:
    """An arrow to the box below."""
    tail, tip = start.y - start.height / 2, end.y + end.height / 2
    _arrow(axis, (start.x, tail), (start.x, tip))
    axis.text(start.x + 0.08, (tail + tip) / 2, word, **{**WORDS, "ha": "left"})


def _arrow(axis: Axes, tail: tuple[float, float], tip: tuple[float, float]) -> None:
    axis.annotate(
        "",
        tip,
        tail,
        arrowprops={"arrowstyle": "-|>", "lw": 0.9, "fc": "k", "shrinkA": 0, "shrinkB": 0},
    )
