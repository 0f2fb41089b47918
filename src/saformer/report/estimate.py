"""What a policy would cost and earn, as its logs let us say: a table, and parts of a page."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from rich.table import Table

from saformer.report.figure import ACCEPTED, DATA, POINTS, REJECTED, canvas, styled, svg
from saformer.report.page import Part, Picture, Sheet, Tiles
from saformer.report.table import Cell, mark_of, numbers, percent, rounded, terminal_table

MARKS = {"supported": "safe", "extrapolates": "met", "do not trust": "missed"}
COLOURS = {"supported": ACCEPTED, "extrapolates": "#c78a1d", "do not trust": REJECTED}
HEADINGS = ("limit", "trust", "cost", "kept", "within", "ended", "return", "share")
PAGE_HEADINGS = (*HEADINGS, "best logged", "far", "spread")
ABOUT = (
    "No machine was used: the policy acts in a world that was learnt from the logs. Trust says "
    "whether logs speak of what it does: supported, extrapolates, or do not trust. Cost and return "
    "are means over episodes there; the machine's should lie within +- nine times out of ten where "
    "an estimate is supported. Kept: the mean cost is within the limit. Within: episodes "
    "whose cost is. Best logged: the mean of the five best logged returns within the limit. Far: "
    "steps that lie further from any logged step than 95% of logged steps do from those of other "
    "episodes. Spread: by how much worlds learnt from different episodes differ in cost, as a "
    "share of it or, if that is more, of 5% of the data's mean cost. Supported: far and twice "
    "the spread are at most 90% together; extrapolates: at most 180%."
)
ABOUT_LIMITS = (
    "Left: each estimate with its interval against the limit; below the line the limit is kept. "
    "Right: what is earned at that cost, and grey the best that was logged within it."
)
ABOUT_STEPS = (
    "Each dot is a step: grey as logged, coloured as the policy would have it, crosses where it is "
    "far from everything logged. Directions are those in which logged steps differ most, in "
    "deviations; each is named after the column that it is mostly of."
)
ABOUT_ALIKE = "Logged episodes that most steps of the policy are nearest to, by number from 0."


def estimate_summary(estimate: dict[str, Any]) -> str:
    """The figures over all limits, in one line."""
    trust = [each["trust"] for each in estimate["limits"]]
    kept = sum(each["verdict"]["met"] for each in estimate["limits"])
    words = ", ".join(f"{trust.count(word)} {word}" for word in MARKS if word in trust)
    return (
        f"estimated from {estimate['num_steps']} steps of {estimate['num_trajectories']} logged "
        f"episodes, {estimate['episodes']} episodes a limit in a learnt world: {kept} of "
        f"{len(trust)} limits kept; {words}"
    )


def estimate_table(estimate: dict[str, Any]) -> Table:
    """For the terminal."""
    rows = [[_cells(each)[name] for name in HEADINGS] for each in estimate["limits"]]
    title = "no rollout: estimated in a world learnt from the logs"
    return terminal_table(HEADINGS, rows, title=title, caption=estimate_summary(estimate))


def estimate_parts(estimate: dict[str, Any]) -> list[Part]:
    """Of a page, the most important first."""
    rows = [[_cells(each)[name] for name in PAGE_HEADINGS] for each in estimate["limits"]]
    names = [each["verdict"]["limit"]["name"] for each in estimate["limits"]]
    alike = [
        [name, *(_alike(estimate, index) for index in each["alike"])]
        for name, each in zip(names, estimate["limits"], strict=True)
    ]
    most = max(map(len, alike))
    headings = ("limit", *(f"{i}." for i in range(1, most)))
    padded = [row + ["-"] * (most - len(row)) for row in alike]
    return [
        _tiles(estimate),
        Picture("What it would cost and earn", _limits(estimate), ABOUT_LIMITS),
        Sheet("Limits, estimated", PAGE_HEADINGS, rows, ABOUT, ticked=False),
        Picture("Where it leaves the logs", _steps(estimate), ABOUT_STEPS),
        Sheet("Logged episodes most like it: cost; return", headings, padded, ABOUT_ALIKE),
    ]


def _tiles(estimate: dict[str, Any]) -> Tiles:
    limits, count = estimate["limits"], len(estimate["limits"])
    kept = sum(each["verdict"]["met"] for each in limits)
    supported = sum(each["trust"] == "supported" for each in limits)
    within = float(np.mean([each["verdict"]["within"] for each in limits]))
    mark, trusted = mark_of(kept == count, within), "" if supported else "missed"
    best = "of the best logged return within the limits"
    return Tiles(
        (
            (f"{kept} of {count}", "limits kept, as estimated", mark),
            (f"{supported} of {count}", "estimates that the logs support", trusted),
            (rounded(estimate["safe_share"]), best, ""),
        )
    )


def _cells(each: dict[str, Any]) -> dict[str, Cell]:
    """By heading."""
    verdict = each["verdict"]
    costs = zip(verdict["mean_cost"], each["cost_interval"], strict=True)
    mark = mark_of(verdict["met"], verdict["within"])
    return {
        "limit": f"{verdict['limit']['name']} = {numbers(verdict['limit']['values'])}",
        "trust": (each["trust"], MARKS[each["trust"]]),
        "cost": ("; ".join(_with_reach(*pair) for pair in costs), mark),
        "kept": ("yes" if verdict["met"] else "no", mark),
        "within": percent(verdict["within"]),
        "ended": percent(verdict["ended_early"]),
        "return": _with_reach(verdict["mean_return"], each["return_interval"]),
        "share": rounded(verdict["frontier_share"]),
        "best logged": numbers([verdict["frontier"]]),
        "far": percent(each["far"]),
        "spread": percent(each["spread"]),
    }


def _with_reach(value: float, interval: tuple[float, float]) -> str:
    return f"{numbers([value])} ± {numbers([(interval[1] - interval[0]) / 2])}"


def _alike(estimate: dict[str, Any], index: int) -> str:
    episode = estimate["alike"][str(index)]
    return f"{index}: {numbers(episode['cost'])}; {numbers([episode['return']])}"


@styled
def _limits(estimate: dict[str, Any]) -> str:
    figure, (cost, earned) = canvas(2)
    for each in sorted(estimate["limits"], key=lambda each: each["verdict"]["limit"]["values"]):
        verdict, look = each["verdict"], _look(each["trust"])
        limit, mean = verdict["limit"]["values"][0], verdict["mean_cost"][0]
        _point(cost, limit, mean, each["cost_interval"][0], look)
        _point(earned, mean, verdict["mean_return"], each["return_interval"], look)
        where: Any = {"xytext": (5, -10), "textcoords": "offset points", "fontsize": 8}
        cost.annotate(verdict["limit"]["name"], (limit, mean), **where)
    ends = np.array([each["verdict"]["limit"]["values"][0] for each in estimate["limits"]])
    span = [0.95 * ends.min(), 1.05 * ends.max()]
    cost.plot(span, span, "k--", lw=1, label="the limit")
    front = estimate["frontier"]
    earned.step(front["cost"], front["best"], where="post", color=DATA, lw=2, label="best logged")
    name = estimate["criteria"][0]
    cost.set(title="cost", xlabel=f"limit ({name})", ylabel=f"mean cost of an episode ({name})")
    earned.set(title="return", xlabel=f"mean cost ({name})", ylabel="mean return of an episode")
    for axis in (cost, earned):
        handles = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        axis.legend(handles.values(), handles.keys())
    return svg(figure)


def _look(trust: str) -> dict[str, Any]:
    marker = {"supported": "o", "extrapolates": "s", "do not trust": "x"}[trust]
    return {"color": COLOURS[trust], "marker": marker, "label": trust}


def _point(axis: Axes, x: float, y: float, interval: Any, look: dict[str, Any]) -> None:
    low, high = interval
    axis.errorbar([x], [y], [[max(y - low, 0)], [max(high - y, 0)]], capsize=3, lw=1.2, **look)


@styled
def _steps(estimate: dict[str, Any]) -> str:
    steps = estimate["steps"]
    logged, columns = np.array(steps["logged"]), steps["columns"]
    pairs = [(0, 1), (0, 2)] if len(columns) > 2 else [(0, min(1, len(columns) - 1))]
    figure, axes = canvas(len(pairs))
    visited = [each for each in steps["visited"].values() if each["points"]]
    points = np.concatenate([each["points"] for each in visited])
    far = np.concatenate([each["far"] for each in visited])
    for axis, (x, y) in zip(axes, pairs, strict=True):
        axis.scatter(logged[:, x], logged[:, y], s=7, c=POINTS, linewidths=0, label="logged")
        own, beyond = points[~far], points[far]
        axis.scatter(own[:, x], own[:, y], s=7, c=ACCEPTED, linewidths=0, label="as logged ones")
        axis.scatter(beyond[:, x], beyond[:, y], s=12, c=REJECTED, marker="x", lw=0.8, label="far")
        axis.set(xlabel=_direction(x, columns[x]), ylabel=_direction(y, columns[y]))
    axes[0].legend(markerscale=2)
    return svg(figure)


def _direction(index: int, column: str) -> str:
    return f"direction {index + 1}, mostly {column}"
