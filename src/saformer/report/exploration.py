"""What a run explored while it was fine-tuned."""

from __future__ import annotations

from typing import Any

import matplotlib

from saformer.report.figure import ACCEPTED, POINTS, REJECTED, STYLE, canvas, colours, svg
from saformer.report.frame import section
from saformer.runs.run import Run

EPISODES = "episodes.jsonl"
CAPTION = (
    "Each dot is an episode: green if it cost no more than its target, red if more, hollow if it was ended at the "
    "ceiling. Lines are the targets, grey marks what was asked for. Stars are mean costs found by evaluations, in the "
    "colour of their limit."
)


def exploration(run: Run) -> list[str]:
    """Cost against target, episode by episode; nothing for a run that explored nothing."""
    rows = list(run.read_rows(EPISODES))
    if not rows:
        return []
    judged = [row for row in run.metrics() if "evaluation" in row]
    return [section("Exploration: cost against target", cost_against_target(rows, judged), CAPTION)]


def cost_against_target(rows: list[dict[str, Any]], judged: list[dict[str, Any]]) -> str:
    """One dot per episode, for the first constraint."""
    limits = {row["limit_name"]: row["limit"][0] for row in rows}
    shades = dict(zip(limits, colours(len(limits)), strict=True))
    with matplotlib.rc_context(STYLE):
        figure, (axis,) = canvas(1)
        numbers = [row["number"] + 1 for row in rows]
        axis.plot(numbers, [row["prompt"][0] for row in rows], "_", color=POINTS, ms=4, label="asked for")
        for row, number in zip(rows, numbers, strict=True):
            within = all(cost <= bound for cost, bound in zip(row["cost"], row["limit"], strict=True))
            inside = "none" if row["broke_ceiling"] else ACCEPTED if within else REJECTED
            edge = ACCEPTED if within else REJECTED
            axis.plot(number, row["cost"][0], "o", ms=3.5, mfc=inside, mec=edge, mew=0.8)
        for name, value in limits.items():
            axis.axhline(value, color=shades[name], lw=1, ls="--", label=f"limit {name}")
        for evaluation in judged:
            for name, found in evaluation["evaluation"].items():
                if name in shades:
                    axis.plot(evaluation["episodes"] + 0.5, found["cost"][0], "*", color=shades[name], ms=7)
        axis.set(xlabel="episode", ylabel="episode cost")
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return svg(figure)
