"""Figures of an evaluation, as SVG text: costs have a panel for each constraint."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from saformer.report.figure import ACCEPTED, DATA, REJECTED, STYLE, canvas, colours, svg


def cost_and_return(evaluation: dict[str, Any]) -> str:
    """What episodes cost and earned, against the limit they were given; return against the first
    constraint's."""
    verdicts, episodes, criteria = (
        evaluation["verdicts"],
        evaluation["episodes"],
        evaluation["criteria"],
    )
    with matplotlib.rc_context(STYLE):
        figure, (*costs, earned) = canvas(len(criteria) + 1)
        for place, axis in enumerate(costs):
            given, spent = ([row[name][place] for row in episodes] for name in ("limit", "cost"))
            within = [cost <= limit for cost, limit in zip(spent, given, strict=True)]
            axis.scatter(given, spent, c=_colours(within), **_points(9))
            rising = _rising(verdicts, place)
            limits = [verdict["limit"]["values"][place] for verdict in rising]
            axis.plot(
                limits,
                [verdict["mean_cost"][place] for verdict in rising],
                "k.-",
                lw=1,
                label="mean",
            )
            axis.plot(limits, limits, "k--", lw=1, label="limit")
            name = criteria[place] if len(criteria) > 1 else "cost"
            axis.set(
                title=f"{name} (green: within the limit)", xlabel="limit", ylabel="episode cost"
            )
        rising, given = _rising(verdicts, 0), [row["limit"][0] for row in episodes]
        limits = [verdict["limit"]["values"][0] for verdict in rising]
        colour = _colours([row["within"] for row in episodes])
        earned.scatter(given, [row["episode_return"] for row in episodes], c=colour, **_points(9))
        earned.plot(
            limits, [verdict["mean_return"] for verdict in rising], "k.-", lw=1, label="mean"
        )
        frontier = np.array([verdict["frontier"] for verdict in rising], dtype=float)
        earned.plot(limits, frontier, "k:", lw=1.2, label="frontier of the data")
        of_first = f" ({criteria[0]})" if len(criteria) > 1 else ""
        earned.set(title="return", xlabel=f"limit{of_first}", ylabel="episode return")
        for axis in (*costs, earned):
            axis.legend()
        return svg(figure)


def among_the_data(evaluation: dict[str, Any], data: dict[str, Any]) -> str:
    """Return against each cost: the policy's episodes among the stored trajectories."""
    with matplotlib.rc_context(STYLE):
        figure, axes = canvas(len(data["criteria"]))
        for place, axis in enumerate(axes):
            axis.scatter(
                np.array(data["cost"])[:, place],
                data["return"],
                c=DATA,
                label="stored trajectories",
                s=8,
                lw=0,
            )
            for verdict, colour in zip(
                evaluation["verdicts"], colours(len(evaluation["verdicts"])), strict=True
            ):
                name = verdict["limit"]["name"]
                rows = [row for row in evaluation["episodes"] if row["limit_name"] == name]
                found = (
                    [row["cost"][place] for row in rows],
                    [row["episode_return"] for row in rows],
                )
                axis.scatter(*found, s=12, color=colour, linewidths=0, label=f"policy under {name}")
                axis.axvline(verdict["limit"]["values"][place], color=colour, lw=0.8, ls="--")
            axis.set(xlabel=f"episode cost ({data['criteria'][place]})", ylabel="episode return")
        axes[-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return svg(figure)


def cost_paths(trace: dict[str, Any]) -> str:
    """How episodes spent their budgets, one panel per limit and constraint."""
    names = list(dict.fromkeys(path["limit_name"] for path in trace["paths"]))
    criteria = trace["data"]["criteria"]
    panels = [
        (name, colour, place)
        for name, colour in zip(names, colours(len(names)), strict=True)
        for place in range(len(criteria))
    ]
    with matplotlib.rc_context(STYLE):
        figure, axes = canvas(
            len(panels), columns=min(3, len(names)) if len(criteria) == 1 else len(criteria)
        )
        for (name, colour, place), axis in zip(panels, axes, strict=True):
            paths = [path for path in trace["paths"] if path["limit_name"] == name]
            limit = paths[0]["limit"][place]
            for path in paths:
                spent = [0.0, *(row[place] for row in path["spent"])]
                axis.plot([0, *path["step"]], spent, color=colour, lw=1)
                axis.plot(
                    path["step"][-1],
                    spent[-1],
                    ".",
                    color=ACCEPTED if spent[-1] <= limit else REJECTED,
                )
            axis.axhline(limit, color="k", lw=0.9, ls="--")
            spending = "spent" if len(criteria) == 1 else f"spent ({criteria[place]})"
            axis.set(
                title=f"{name}: limit {limit:.0f}",
                xlabel="step",
                ylabel=spending,
                ylim=(0, None),
                xlim=(0, None),
            )
        return svg(figure)


def decision(moment: dict[str, Any], criteria: list[str]) -> str:
    """The candidates of one decision: what they promise, what the critic forecasts, which was
    executed."""
    with matplotlib.rc_context(STYLE):
        figure, axes = canvas(len(criteria))
        for place, axis in enumerate(axes):
            _candidates(axis, moment, place)
            of = f" ({criteria[place]})" if len(criteria) > 1 else ""
            axis.set(
                xlabel=f"forecast cost of the rest of the episode{of}", ylabel="return asked for"
            )
        safe = moment["safe"]
        how = (
            "the fallback decided"
            if moment["fell_back"]
            else f"{sum(safe)} of {len(safe)} forecast within"
        )
        axes[0].set(title=f"{moment['limit_name']}, step {moment['step']}: {how}")
        axes[-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return svg(figure)


def _candidates(axis: Axes, moment: dict[str, Any], place: int) -> None:
    forecast = np.array(moment["forecast_cost"])[:, place]
    asked, safe, chosen = (
        np.array(moment["return_to_go"]),
        np.array(moment["safe"]),
        moment["chosen"],
    )
    axis.scatter(
        forecast[~safe],
        asked[~safe],
        s=22,
        c=REJECTED,
        marker="x",
        linewidths=1,
        label="forecast beyond",
    )
    axis.scatter(
        forecast[safe], asked[safe], s=18, c=ACCEPTED, linewidths=0, label="forecast within"
    )
    axis.scatter(
        forecast[chosen],
        asked[chosen],
        s=110,
        facecolors="none",
        edgecolors="k",
        linewidths=1.2,
        label="executed",
    )
    axis.axvline(moment["remaining"][place], color="k", lw=0.9, ls="--", label="remaining budget")


def _rising(verdicts: list[dict[str, Any]], place: int) -> list[dict[str, Any]]:
    """By the limit of one constraint: pairs of limits have no order of their own."""
    return sorted(verdicts, key=lambda verdict: verdict["limit"]["values"][place])


def _colours(within: list[bool]) -> list[str]:
    return [ACCEPTED if kept else REJECTED for kept in within]


def _points(size: float) -> dict[str, Any]:
    return {"s": size, "alpha": 0.5, "linewidths": 0}
