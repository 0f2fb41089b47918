"""Figures as SVG text."""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ACCEPTED, REJECTED, DATA = "#2a7f4f", "#b5342d", "#c4c8cf"
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


def learning_curves(rows: list[dict[str, Any]]) -> str:
    """Losses of both networks, and brief evaluations while training."""
    losses = [row for row in rows if "evaluation" not in row]
    watched = [row for row in rows if "evaluation" in row]
    with matplotlib.rc_context(STYLE):
        figure, axes = _canvas(4 if watched else 2)
        for term in ("cost_to_go", "return_to_go", "action"):
            _curve(axes[0], losses, f"actor/{term}", term.replace("_", "-"))
        axes[0].set_title("actor: negative log-likelihood (Eq. 5)")
        _curve(axes[1], losses, "critic/forecast_error", "forecast error (Eq. 6)")
        _curve(axes[1], losses, "critic/rising_forecast", "penalty (Eq. 7)")
        axes[1].set_yscale("log")
        axes[1].set_title("critic, model units")
        if watched:
            _watched(axes[2], watched, "cost")
            _watched(axes[3], watched, "return")
        for axis in axes:
            axis.set_xlabel("update")
            axis.legend()
        return _svg(figure)


def cost_and_return(evaluation: dict[str, Any]) -> str:
    """What episodes cost and earned, against the limit they were given."""
    verdicts, episodes = evaluation["verdicts"], evaluation["episodes"]
    limits = [verdict["limit"]["values"][0] for verdict in verdicts]
    given = [row["limit"][0] for row in episodes]
    with matplotlib.rc_context(STYLE):
        figure, (cost, earned) = _canvas(2)
        colours = [ACCEPTED if row["within"] else REJECTED for row in episodes]
        cost.scatter(given, [row["cost"][0] for row in episodes], s=9, c=colours, alpha=0.5, linewidths=0)
        cost.plot(limits, [verdict["mean_cost"][0] for verdict in verdicts], "k.-", lw=1, label="mean")
        cost.plot(limits, limits, "k--", lw=1, label="limit")
        cost.set(title="cost (green: within the limit)", xlabel="limit", ylabel="episode cost")
        earned.scatter(given, [row["episode_return"] for row in episodes], s=9, c=colours, alpha=0.5, linewidths=0)
        earned.plot(limits, [verdict["mean_return"] for verdict in verdicts], "k.-", lw=1, label="mean")
        earned.plot(limits, [verdict["frontier"] for verdict in verdicts], "k:", lw=1.2, label="frontier of the data")
        earned.set(title="return", xlabel="limit", ylabel="episode return")
        for axis in (cost, earned):
            axis.legend()
        return _svg(figure)


def among_the_data(evaluation: dict[str, Any], data: dict[str, Any]) -> str:
    """Return against cost: the policy's episodes among the stored trajectories."""
    with matplotlib.rc_context(STYLE):
        figure, (axis,) = _canvas(1)
        stored = np.array(data["cost"])[:, 0]
        axis.scatter(stored, data["return"], s=8, c=DATA, linewidths=0, label="stored trajectories")
        for verdict, colour in zip(evaluation["verdicts"], _colours(len(evaluation["verdicts"])), strict=True):
            name = verdict["limit"]["name"]
            rows = [row for row in evaluation["episodes"] if row["limit_name"] == name]
            found = [row["cost"][0] for row in rows], [row["episode_return"] for row in rows]
            axis.scatter(*found, s=12, color=colour, linewidths=0, label=f"policy under {name}")
            axis.axvline(verdict["limit"]["values"][0], color=colour, lw=0.8, ls="--")
        axis.set(xlabel=f"episode cost ({data['criteria'][0]})", ylabel="episode return")
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return _svg(figure)


def cost_paths(trace: dict[str, Any]) -> str:
    """How episodes spent their budgets, one panel per limit."""
    names = list(dict.fromkeys(path["limit_name"] for path in trace["paths"]))
    with matplotlib.rc_context(STYLE):
        figure, axes = _canvas(len(names), columns=min(3, len(names)))
        for name, axis, colour in zip(names, axes, _colours(len(names)), strict=True):
            paths = [path for path in trace["paths"] if path["limit_name"] == name]
            limit = paths[0]["limit"][0]
            for path in paths:
                spent = [0.0, *(row[0] for row in path["spent"])]
                axis.plot([0, *path["step"]], spent, color=colour, lw=1)
                axis.plot(path["step"][-1], spent[-1], ".", color=ACCEPTED if spent[-1] <= limit else REJECTED)
            axis.axhline(limit, color="k", lw=0.9, ls="--")
            axis.set(title=f"{name}: limit {limit:.0f}", xlabel="step", ylabel="spent", ylim=(0, None), xlim=(0, None))
        return _svg(figure)


def decision(moment: dict[str, Any]) -> str:
    """The candidates of one decision: what they promise, what the critic forecasts, which were rejected."""
    forecast = np.array(moment["forecast_cost"])[:, 0]
    asked, safe = np.array(moment["return_to_go"]), np.array(moment["safe"])
    with matplotlib.rc_context(STYLE):
        figure, (axis,) = _canvas(1)
        axis.scatter(forecast[~safe], asked[~safe], s=22, c=REJECTED, marker="x", linewidths=1, label="rejected")
        axis.scatter(forecast[safe], asked[safe], s=18, c=ACCEPTED, linewidths=0, label="accepted")
        chosen = moment["chosen"]
        axis.scatter(
            forecast[chosen], asked[chosen], s=110, facecolors="none", edgecolors="k", linewidths=1.2, label="executed"
        )
        axis.axvline(moment["remaining"][0], color="k", lw=0.9, ls="--", label="remaining budget")
        how = "the fallback decided" if moment["fell_back"] else f"{int(safe.sum())} of {len(safe)} accepted"
        axis.set(
            title=f"{moment['limit_name']}, step {moment['step']}: {how}",
            xlabel="forecast cost of the rest of the episode",
            ylabel="return asked for",
        )
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return _svg(figure)


def _canvas(panels: int, columns: int = 2) -> tuple[Figure, list[Axes]]:
    columns = min(columns, panels)
    rows = -(-panels // columns)
    width = 7.2 if panels == 1 else 9.0
    figure = Figure(figsize=(width, 3.1 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[panels:]:
        spare.remove()
    return figure, axes[:panels]


def _curve(axis: Axes, rows: list[dict[str, Any]], key: str, label: str) -> None:
    axis.plot([row["update"] for row in rows], [row[key] for row in rows], lw=1, label=label)


def _watched(axis: Axes, rows: list[dict[str, Any]], key: str) -> None:
    names = list(rows[0]["evaluation"])
    for name, colour in zip(names, _colours(len(names)), strict=True):
        found = [row["evaluation"][name] for row in rows]
        values = [entry[key][0] if key == "cost" else entry[key] for entry in found]
        axis.plot([row["update"] for row in rows], values, ".-", lw=1, color=colour, label=name)
        if key == "cost":
            axis.axhline(found[0]["limit"][0], color=colour, lw=0.8, ls="--")
    axis.set_title(f"{key} while training (three episodes a limit)")


def _colours(count: int) -> list[Any]:
    return list(matplotlib.colormaps["viridis"](np.linspace(0.05, 0.85, count)))


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return re.sub(r"^.*?(?=<svg)", "", text.getvalue(), flags=re.DOTALL)
