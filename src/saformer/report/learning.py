"""How a run came to be: learning curves, explored episodes, and its spec to the letter."""

import json
import re
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from saformer import __version__
from saformer.report.figure import (
    ACCEPTED,
    POINTS,
    REJECTED,
    canvas,
    colours,
    styled,
    svg,
    write_plainly,
)
from saformer.report.page import Picture, Remark
from saformer.runs.metrics import terms_by_phase
from saformer.runs.run import Run

Rows = list[dict[str, Any]]
CAPTION = (
    "Each dot is an episode: green if it cost no more than its target by every criterion, red if "
    "more, hollow if it was ended at the ceiling. Lines are the targets, grey marks what was asked "
    "for. Stars are mean costs found by evaluations, in the colour of their limit."
)


def run_listing(run: Run, command: str | None, facts: dict[str, Any]) -> Remark:
    """The run's spec and these facts, to the letter."""
    done = run.read_json("done.json") if run.is_done else {"updates": "unfinished"}
    called = {"command": command} if command else {}
    whole = {"saformer": __version__, **called, "trained": done, **facts, **run.spec.plain()}
    return Remark((json.dumps(whole, indent=1),), "How this was made", "listing")


def training_pictures(run: Run) -> list[Picture]:
    """Cost against target of a run that explored, and the learning curves, where there are any."""
    episodes, metrics, pictures = list(run.read_rows("episodes.jsonl")), list(run.metrics()), []
    if episodes:
        evaluations = [row for row in metrics if "evaluation" in row]
        drawn = cost_against_target(episodes, evaluations, run.spec.criteria)
        pictures.append(Picture("Exploration: cost against target", drawn, CAPTION))
    if metrics:
        limit = run.spec.agent_config.get("limit", ())
        pictures.append(Picture("Learning curves", learning_curves(metrics, limit)))
    return pictures


@styled
def learning_curves(rows: Rows, limit: Sequence[float] = ()) -> str:
    """The terms of every phase's loss, other metrics, and evaluations while training, where there
    were several. `limit`: of an agent that is trained for one; its expected cost is held against
    it."""
    measured = [row for row in rows if "evaluation" not in row]
    judged = [row for row in rows if "evaluation" in row]
    judged = judged if len(judged) > 1 or not measured else []  # one is a dot on empty axes
    names = measured[-1] if measured else {}
    terms, watched = terms_by_phase(names), terms_by_phase(names, watched=True)
    metrics = [(phase, *each) for phase, own in watched.items() for each in _by_metric(own)]
    num_costs = len(next(iter(judged[0]["evaluation"].values()))["cost"]) if judged else 0
    figure, axes = canvas(len(terms) + len(metrics) + (num_costs + 1 if judged else 0))
    free = iter(axes)
    for phase, own in terms.items():
        _draw_terms(next(free), measured, phase, own)
    for phase, name, own in metrics:
        level = limit if name == "expected cost" else ()
        _draw_metric(next(free), measured, f"{phase}: {name}", own, level)
    for index in range(num_costs):
        cost = f"cost {index + 1}" if num_costs > 1 else "cost"
        _draw_evaluations(next(free), judged, cost, index)
    if judged:
        _draw_evaluations(next(free), judged, "return")
    for axis in axes:
        axis.set_xlabel("update")
        axis.legend()
    return svg(figure)


def _by_metric(names: list[str]) -> list[tuple[str, list[str]]]:
    """The columns of each metric: several where there are several constraints."""
    columns: dict[str, list[str]] = {}
    for name in names:
        metric = re.sub(r"_\d+$", "", name.rpartition("/")[2]).replace("_", " ")
        columns.setdefault(metric, []).append(name)
    return list(columns.items())


def _draw_terms(axis: Axes, rows: Rows, phase: str, terms: list[str]) -> None:
    for name in terms:
        _curve(axis, rows, name, name.partition("/")[2].replace("_", " "))
    if all((row.get(name) or 0) >= 0 for row in rows for name in terms):
        axis.set_yscale("log")
        write_plainly(axis.yaxis)
    axis.set_title(f"{phase}: terms of its loss, model units")


def _draw_metric(
    axis: Axes, rows: Rows, title: str, names: list[str], limit: Sequence[float]
) -> None:
    for index, (name, colour) in enumerate(zip(names, colours(len(names)), strict=True)):
        label = f"cost {index + 1}" if len(names) > 1 else "while training"
        _curve(axis, rows, name, label, color=colour)
        if limit:
            axis.axhline(limit[index], color=colour, lw=0.8, ls="--", label="limit")
    axis.set_title(title)


def _curve(axis: Axes, rows: Rows, key: str, label: str, **style: Any) -> None:
    own = [row for row in rows if row.get(key) is not None]
    axis.plot([row["update"] for row in own], [row[key] for row in own], lw=1, label=label, **style)


def _draw_evaluations(axis: Axes, rows: Rows, title: str, constraint: int | None = None) -> None:
    names = list(rows[0]["evaluation"])
    for name, colour in zip(names, colours(len(names)), strict=True):
        evaluations = [row["evaluation"][name] for row in rows]
        values = [e["return"] if constraint is None else e["cost"][constraint] for e in evaluations]
        axis.plot([row["update"] for row in rows], values, ".-", lw=1, color=colour, label=name)
        if constraint is not None:
            axis.axhline(evaluations[0]["limit"][constraint], color=colour, lw=0.8, ls="--")
    if constraint is not None:  # when all are drawn: the other end stays where it is then
        axis.set_ylim(bottom=0)
    axis.set_title(f"{title} while training (three episodes a limit)")


@styled
def cost_against_target(rows: Rows, evaluations: Rows, criteria: Sequence[str]) -> str:
    """One dot per explored episode, a panel for each criterion."""
    limits = {row["limit_name"]: row["limit"] for row in rows}
    shades = dict(zip(limits, colours(len(limits)), strict=True))
    figure, axes = canvas(len(criteria), columns=1)
    for index, (axis, criterion) in enumerate(zip(axes, criteria, strict=True)):
        _draw_episodes(axis, rows, index)
        for name, values in limits.items():
            axis.axhline(values[index], color=shades[name], lw=1, ls="--", label=f"limit {name}")
        for row in evaluations:
            for name in (name for name in shades if name in row["evaluation"]):
                cost = row["evaluation"][name]["cost"][index]
                axis.plot(row["episodes"] + 0.5, cost, "*", color=shades[name], ms=7)
        axis.set(xlabel="episode", ylabel=f"episode cost ({criterion})")
    axes[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return svg(figure)


def _draw_episodes(axis: Axes, rows: Rows, index: int) -> None:
    """The cost of each by this criterion, and its prompt; the colour is that of all criteria."""
    x, prompts = [row["number"] + 1 for row in rows], [row["prompt"][index] for row in rows]
    axis.plot(x, prompts, "_", color=POINTS, ms=4, label="asked for")
    for row in rows:
        within = all(cost <= bound for cost, bound in zip(row["cost"], row["limit"], strict=True))
        edge = ACCEPTED if within else REJECTED
        inside = "none" if row["broke_ceiling"] else edge
        axis.plot(row["number"] + 1, row["cost"][index], "o", ms=3.5, mfc=inside, mec=edge, mew=0.8)
