"""Figures as SVG text."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from saformer.report.table import percent
from saformer.runs.metrics import figures_of, terms_of

EXPECTED_COST = "expected cost"
ACCEPTED, REJECTED, DATA, POINTS = "#2a7f4f", "#b5342d", "#c4c8cf", "#8a93a0"
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "saformer",
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


def learning_curves(rows: list[dict[str, Any]], limit: Sequence[float] = ()) -> str:
    """The terms of every phase's loss, what is watched beside them, and brief evaluations while
    training.

    `limit`: of an agent that is trained for one; what it expects to cost is held against it.
    """
    measured = [row for row in rows if "evaluation" not in row]
    judged = [row for row in rows if "evaluation" in row]
    names = measured[-1] if measured else {}
    terms = terms_of(names)
    figures = [
        (phase, each) for phase, own in figures_of(names).items() for each in _of_constraints(own)
    ]
    with matplotlib.rc_context(STYLE):
        num_costs = len(next(iter(judged[0]["evaluation"].values()))["cost"]) if judged else 0
        figure, axes = canvas(len(terms) + len(figures) + (num_costs + 1 if judged else 0))
        free = iter(axes)
        for phase, own in terms.items():
            _phase(next(free), measured, phase, own)
        for phase, (what, own) in figures:
            _figure(
                next(free),
                measured,
                f"{phase}: {what}",
                own,
                limit if what == EXPECTED_COST else (),
            )
        for place in range(num_costs):
            _judged(next(free), judged, f"cost {place + 1}" if num_costs > 1 else "cost", place)
        if judged:
            _judged(next(free), judged, "return")
        for axis in axes:
            axis.set_xlabel("update")
            axis.legend()
        return svg(figure)


def pair_plot(inspection: dict[str, Any], index: int) -> str:
    """Return against the cost of one constraint, with the spread of each, the limits and the
    frontier."""
    constraint, sample = inspection["constraints"][index], inspection["sample"]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 5.2), layout="constrained")
        grid = figure.add_gridspec(2, 2, width_ratios=(4, 1), height_ratios=(1, 4))
        axis = figure.add_subplot(grid[1, 0])
        above, beside = (
            figure.add_subplot(grid[0, 0], sharex=axis),
            figure.add_subplot(grid[1, 1], sharey=axis),
        )
        costs = [cost[index] for cost in sample["episode_cost"]]
        axis.scatter(
            costs, sample["episode_return"], s=8, c=POINTS, linewidths=0, label="trajectories"
        )
        curve = constraint["frontier"]
        last = max(curve["cost"][-1], constraint["thresholds"]["max"])
        axis.step(
            [*curve["cost"], last],
            [*curve["best"], curve["best"][-1]],
            "k-",
            where="post",
            lw=1.2,
            label="frontier",
        )
        axis.set(xlabel=f"episode cost ({constraint['criterion']})", ylabel="episode return")
        _bars(above, constraint["cost"])
        _bars(beside, inspection["episode_return"], orientation="horizontal")
        _limit_lines((axis, above), inspection["limits"], index)
        for margin in (above, beside):
            margin.label_outer(remove_inner_ticks=True)
        above.set_ylabel("number")
        beside.set_xlabel("number")
        corner = figure.add_subplot(grid[0, 1], frame_on=False, xticks=[], yticks=[])
        corner.legend(
            *axis.get_legend_handles_labels(),
            loc="upper left",
            ncols=2,
            borderpad=0,
            columnspacing=1,
        )
        return svg(figure)


def cost_distribution(inspection: dict[str, Any], index: int) -> str:
    """How many trajectories cost how much, and the share of them within each limit."""
    constraint = inspection["constraints"][index]
    percentiles = constraint["cost"]["percentiles"]
    with matplotlib.rc_context(STYLE):
        figure, (number, share) = canvas(2)
        _bars(number, constraint["cost"])
        number.set(title="trajectories of each cost", ylabel="number")
        share.plot(
            list(percentiles.values()),
            [float(name[1:]) / 100 for name in percentiles],
            "k-",
            lw=1.2,
        )
        share.yaxis.set_major_formatter(PercentFormatter(1.0))
        share.set(title="trajectories within a limit", ylabel="share", ylim=(0, 1.02))
        _limit_lines((number, share), inspection["limits"], index)
        for axis in (number, share):
            axis.set_xlabel(f"episode cost ({constraint['criterion']})")
        return svg(figure)


def _bars(axis: Axes, spread: dict[str, Any], **options: Any) -> None:
    axis.stairs(spread["counts"], spread["edges"], fill=True, color=DATA, **options)


def _limit_lines(axes: Sequence[Axes], limits: list[dict[str, Any]], index: int) -> None:
    for limit, colour in zip(limits, colours(len(limits)), strict=True):
        for axis in axes:
            axis.axvline(limit["values"][index], color=colour, lw=0.9, ls="--", label=limit["name"])


def calibration(offline: dict[str, Any]) -> str:
    """Forecast against logged cost-to-go, one panel per constraint."""
    forecasts, logged = (
        np.array(offline["calibration"]["forecast"]),
        np.array(offline["calibration"]["logged"]),
    )
    names = offline["criteria"]
    with matplotlib.rc_context(STYLE):
        figure, axes = canvas(len(names))
        for name, axis, expected, found in zip(names, axes, forecasts.T, logged.T, strict=True):
            low = expected < found
            axis.scatter(
                found[~low],
                expected[~low],
                s=5,
                c=ACCEPTED,
                alpha=0.5,
                linewidths=0,
                label="too high",
            )
            axis.scatter(
                found[low], expected[low], s=5, c=REJECTED, alpha=0.5, linewidths=0, label="too low"
            )
            ends = [min(found.min(), expected.min()), max(found.max(), expected.max())]
            axis.plot(ends, ends, "k--", lw=1, label="exact")
            axis.set(title=name, xlabel="logged cost-to-go", ylabel="forecast cost-to-go")
            axis.legend(markerscale=2)
        return svg(figure)


def error_by_progress(offline: dict[str, Any]) -> str:
    """The critic's error over the course of a trajectory, one panel per constraint."""
    names, stretches = offline["criteria"], offline["by_progress"]
    course = [100 * stretch["progress"] for stretch in stretches]
    with matplotlib.rc_context(STYLE):
        figure, axes = canvas(len(names))
        for place, (name, axis) in enumerate(zip(names, axes, strict=True)):
            absolute = [stretch["mean_absolute"][place] for stretch in stretches]
            bias = [stretch["bias"][place] for stretch in stretches]
            axis.axhline(0, color="k", lw=0.8)
            axis.plot(course, absolute, ".-", lw=1, color="k", label="mean absolute error")
            axis.plot(
                course, bias, ".-", lw=1, color=REJECTED, label="bias (below 0: forecast too low)"
            )
            axis.set(
                title=name, xlabel="percent of the trajectory gone", ylabel="cost", xlim=(0, 100)
            )
            axis.legend()
        return svg(figure)


def limits_offline(offline: dict[str, Any]) -> str:
    """What supports each limit, and how often the critic's word on it was wrong."""
    names = [evidence["limit"]["name"] for evidence in offline["limits"]]
    places = np.arange(len(names))
    with matplotlib.rc_context(STYLE):
        figure, (supported, wrong) = canvas(2)
        shares = [100 * evidence["support"]["share"] for evidence in offline["limits"]]
        bars = supported.bar(places, shares, width=0.6, color=DATA)
        supported.bar_label(
            bars, [evidence["support"]["num_within"] for evidence in offline["limits"]], fontsize=8
        )
        supported.set(
            title="training trajectories within the limit", ylabel="percent (above: how many)"
        )
        kinds = (
            ("missed_before", REJECTED, "missed overruns"),
            ("false_alarms", DATA, "false alarms"),
        )
        for offset, (key, colour, label) in zip((-0.2, 0.2), kinds, strict=True):
            found = [evidence["verification"][key] for evidence in offline["limits"]]
            bars = wrong.bar(
                places + offset,
                [100 * (share or 0) for share in found],
                0.38,
                color=colour,
                label=label,
            )
            wrong.bar_label(bars, [percent(share) for share in found], fontsize=8)
        wrong.set(
            title="the critic's word on logged actions",
            ylabel="percent of steps",
            ylim=(0, 125),
            yticks=range(0, 101, 20),
        )
        wrong.legend(loc="upper right", ncols=2)
        for axis in (supported, wrong):
            axis.set_xticks(places, names)
            axis.set_xlabel("limit")
        return svg(figure)


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


def _phase(axis: Axes, rows: list[dict[str, Any]], phase: str, terms: list[str]) -> None:
    for name in terms:
        _curve(axis, rows, name, name.partition("/")[2].replace("_", " "))
    if all(row[name] >= 0 for row in rows for name in terms if name in row):
        axis.set_yscale("log")
    axis.set_title(f"{phase}: terms of its loss, model units")


def _of_constraints(names: list[str]) -> list[tuple[str, list[str]]]:
    """What figures are called, and the names of each: several where there are several
    constraints."""
    found: dict[str, list[str]] = {}
    for name in names:
        what = re.sub(r"_\d+$", "", name.rpartition("/")[2]).replace("_", " ")
        found.setdefault(what, []).append(name)
    return list(found.items())


def _figure(
    axis: Axes, rows: list[dict[str, Any]], title: str, names: list[str], limit: Sequence[float]
) -> None:
    for place, (name, colour) in enumerate(zip(names, colours(len(names)), strict=True)):
        _curve(
            axis,
            rows,
            name,
            f"cost {place + 1}" if len(names) > 1 else "while training",
            color=colour,
        )
        if limit:
            axis.axhline(limit[place], color=colour, lw=0.8, ls="--", label="limit")
    axis.set_title(title)


def _curve(axis: Axes, rows: list[dict[str, Any]], key: str, label: str, **style: Any) -> None:
    own = [row for row in rows if key in row]
    axis.plot([row["update"] for row in own], [row[key] for row in own], lw=1, label=label, **style)


def _judged(
    axis: Axes, rows: list[dict[str, Any]], what: str, constraint: int | None = None
) -> None:
    names = list(rows[0]["evaluation"])
    for name, colour in zip(names, colours(len(names)), strict=True):
        found = [row["evaluation"][name] for row in rows]
        values = [
            seen["return"] if constraint is None else seen["cost"][constraint] for seen in found
        ]
        axis.plot([row["update"] for row in rows], values, ".-", lw=1, color=colour, label=name)
        if constraint is not None:
            axis.axhline(found[0]["limit"][constraint], color=colour, lw=0.8, ls="--")
    axis.set_title(f"{what} while training (three episodes a limit)")


def colours(count: int) -> list[Any]:
    """So many that can be told apart, in order."""
    return list(matplotlib.colormaps["viridis"](np.linspace(0.05, 0.85, count)))


def svg(figure: Figure) -> str:
    """As a page holds it."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return re.sub(r"^.*?(?=<svg)", "", text.getvalue(), flags=re.DOTALL)
