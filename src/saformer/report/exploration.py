"""What a run explored while it was fine-tuned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes

from saformer.report.figure import ACCEPTED, POINTS, REJECTED, STYLE, canvas, colours, svg
from saformer.report.frame import section
from saformer.runs.run import Run

EPISODES = "episodes.jsonl"
CAPTION = (
    "Each dot is an episode: green if it cost no more than its target by every criterion, red if "
    "more, hollow if it "
    "was ended at the ceiling. Lines are the targets, grey marks what was asked for. Stars are "
    "mean costs found by "
    "evaluations, in the colour of their limit."
)


def exploration(run: Run) -> list[str]:
    """Cost against target, episode by episode; nothing for a run that explored nothing."""
    rows = list(run.read_rows(EPISODES))
    if not rows:
        return []
    judged = [row for row in run.metrics() if "evaluation" in row]
    figure = cost_against_target(rows, judged, run.spec.criteria)
    return [section("Exploration: cost against target", figure, CAPTION)]


def cost_against_target(
    rows: list[dict[str, Any]], judged: list[dict[str, Any]], criteria: Sequence[str]
) -> str:
    """One dot per episode, a panel for each criterion."""
    limits = {row["limit_name"]: row["limit"] for row in rows}
    shades = dict(zip(limits, colours(len(limits)), strict=True))
    with matplotlib.rc_context(STYLE):
        figure, axes = canvas(len(criteria), columns=1)
        for place, (axis, criterion) in enumerate(zip(axes, criteria, strict=True)):
            _episodes(axis, rows, place)
            for name, values in limits.items():
                axis.axhline(
                    values[place], color=shades[name], lw=1, ls="--", label=f"limit {name}"
                )
            for evaluation in judged:
                for name in evaluation["evaluation"].keys() & shades.keys():
                    found = evaluation["evaluation"][name]["cost"][place]
                    axis.plot(evaluation["episodes"] + 0.5, found, "*", color=shades[name], ms=7)
            axis.set(xlabel="episode", ylabel=f"episode cost ({criterion})")
        axes[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return svg(figure)


def _episodes(axis: Axes, rows: list[dict[str, Any]], place: int) -> None:
    """What each cost by this criterion, and what was asked for; its colour is that of all criteria
    together."""
    numbers = [row["number"] + 1 for row in rows]
    axis.plot(
        numbers, [row["prompt"][place] for row in rows], "_", color=POINTS, ms=4, label="asked for"
    )
    for row, number in zip(rows, numbers, strict=True):
        within = all(cost <= bound for cost, bound in zip(row["cost"], row["limit"], strict=True))
        edge = ACCEPTED if within else REJECTED
        inside = "none" if row["broke_ceiling"] else edge
        axis.plot(number, row["cost"][place], "o", ms=3.5, mfc=inside, mec=edge, mew=0.8)
