"""The page of a run that was rolled out, and its figures: costs have a panel per constraint."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from saformer.report.figure import (
    ACCEPTED,
    DATA,
    REJECTED,
    canvas,
    colours,
    styled,
    svg,
    with_hints,
)
from saformer.report.findings import read_findings
from saformer.report.learning import run_listing, training_pictures
from saformer.report.page import Facts, Page, Part, Picture, Remark, Sheet, Tiles
from saformer.report.table import (
    SAFE_SHARE,
    has_shield,
    mark_of,
    numbers,
    percent,
    summary,
    verdict_rows,
)
from saformer.runs.run import Run
from saformer.runs.spec import RunSpec

VERDICT = {True: ACCEPTED, False: REJECTED}
LEGEND = (
    "Met: the mean cost is within the limit, and where no episode may end early, at most 2 points "
    "more of them do than in the data, and 10%. Within: episodes whose cost is, and which did not "
    "end early unless they may. Green: at least 95% are within; amber: the limit is met. Ended: "
    "episodes that terminated before the horizon. Frontier: the mean of the five best stored "
    "returns within the limit. Share: (return - lowest stored return) / (frontier - lowest stored "
    "return), at most 1.25 (uncapped); none where the frontier lies within 5% of the range of "
    "returns. Doing nothing: the action of least cost, held, and the limits that it meets. "
    "Fallback: steps in which no round held a safe candidate; 0 for agents that propose nothing."
)
SHIELDED = (
    " Shielded: steps whose action was made cheaper so that no episode passes its limit. It says "
    "nothing of what was learnt: judge that without the shield."
)
WATCHED = {".html": "a page that plays by itself", ".mp4": "a video", ".gif": "a video"}
POOR = 0.5  # of the way to the data's best within the limit
ABOUT_DATA = (
    "Grey: recorded episodes. Coloured: episodes of the policy, each under the limit of its "
    "colour, dashed. Good is up, and left of the own line. Point at a dot for its figures."
)
ABOUT_PATHS = "Up to five episodes a limit; the dot marks the end, green if within the limit."
ABOUT_DECISION = (
    "Each point is a proposed return and action, at the cost that is forecast for it: the critic's "
    "by the paper's rule, by the rule feasible the least that is still to come. Candidates beyond "
    "the remaining budget are rejected."
)


def write_report(run: Run, path: str | Path, *, command: str | None = None) -> Path:
    """Describe an evaluated run for people to read. Needs nothing but the run's folder."""
    evaluation, trace = read_findings(run)
    spec = run.spec
    criteria, by_balance = trace["data"]["criteria"], lambda moment: moment["balance"]
    telling = sorted(trace["decisions"], key=by_balance, reverse=True)[:1]
    about = f"{spec.agent}, seed {spec.seed}; {_promise(spec, evaluation)}."
    legend = LEGEND + (SHIELDED if has_shield(evaluation) else "")
    facts = {"execution": evaluation["options"], "evaluation seed": evaluation["seed"]}
    parts: list[Part] = [
        Remark((about,), style="note"),
        Tiles(_tiles(evaluation)),
        Picture("Among the data", _among_the_data(evaluation, trace["data"]), ABOUT_DATA),
        Sheet("Limit by limit", *verdict_rows(evaluation), note=legend, ticked=False),
        Remark((f"{summary(evaluation)}.",), style="note"),
        *_to_watch(run, Path(path)),
        Picture("Cost and return against the limit", _cost_and_return(evaluation)),
        Picture("How episodes spent their budgets", _spending(trace), ABOUT_PATHS),
        *(Picture("One decision", _decision(each, criteria), ABOUT_DECISION) for each in telling),
        *training_pictures(run),
        run_listing(run, command, facts),
    ]
    return Page(spec.task_name, parts).write(path)


def _to_watch(run: Run, page: Path) -> list[Part]:
    """Links to recorded episodes, if there are any."""
    files = [file for file in run.recordings() if file.suffix in WATCHED]
    links = {file.name: os.path.relpath(file.resolve(), page.resolve().parent) for file in files}
    about = {file.name: WATCHED[file.suffix] for file in files}
    return [Facts("Episodes to watch", about, links)] if files else []


def _tiles(evaluation: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Limits kept, episodes within, and what is earned beside the best of the data."""
    verdicts, episodes = evaluation["verdicts"], evaluation["episodes"]
    met, within = evaluation["limits_met"], sum(row["within"] for row in episodes)
    kept = mark_of(met == len(verdicts), min(verdict["within"] for verdict in verdicts))
    share = evaluation["frontier_share"]
    poor = evaluation.get("idle_limits") or (share is not None and share < POOR)
    return [
        (f"{met} of {len(verdicts)}", "limits kept, on average over their episodes", kept),
        (
            percent(within / len(episodes)),
            f"of {len(episodes)} episodes within their limit",
            mark_of(within > 0, within / len(episodes)),
        ),
        (
            percent(share),
            "of the way from the worst return in the data to its best within the limit",
            "missed" if poor else "safe" if share and share >= SAFE_SHARE else "",
        ),
    ]


def _promise(spec: RunSpec, evaluation: dict[str, Any]) -> str:
    if spec.limit is not None:
        return f"trained for the limit {spec.limit} = {numbers(spec.agent_config['limit'])} alone"
    if spec.finetuning is not None:
        limits, source = spec.finetuning["limits"], spec.finetuning["from"]["run"]
        return f"fine-tuned to {', '.join(limits)} from {source}"
    return (
        f"one policy, asked to keep {len(evaluation['verdicts'])} limits it was not retrained for"
    )


@styled
def _cost_and_return(evaluation: dict[str, Any]) -> str:
    """Costs and returns of episodes against their limits; returns against the first one's."""
    verdicts, episodes, criteria = (evaluation[n] for n in ("verdicts", "episodes", "criteria"))
    points: Any = {"s": 9, "alpha": 0.5, "linewidths": 0}
    figure, (*costs, earned) = canvas(len(criteria) + 1)
    for index, axis in enumerate(costs):
        bounds, spent = ([row[name][index] for row in episodes] for name in ("limit", "cost"))
        cheap = [cost <= limit for cost, limit in zip(spent, bounds, strict=True)]
        shades = [
            VERDICT[each and not _fell(row)] for each, row in zip(cheap, episodes, strict=True)
        ]
        axis.scatter(bounds, spent, c=shades, **points)
        rising = _rising(verdicts, index)
        limits = [verdict["limit"]["values"][index] for verdict in rising]
        means = [verdict["mean_cost"][index] for verdict in rising]
        axis.plot(limits, means, "k.-", lw=1, label="mean")
        axis.plot(limits, limits, "k--", lw=1, label="limit")
        name = criteria[index] if len(criteria) > 1 else "cost"
        axis.set(title=f"{name} (green: within the limit)", xlabel="limit", ylabel="episode cost")
    rising, bounds = _rising(verdicts, 0), [row["limit"][0] for row in episodes]
    limits = [verdict["limit"]["values"][0] for verdict in rising]
    colour = [VERDICT[row["within"]] for row in episodes]
    earned.scatter(bounds, [row["episode_return"] for row in episodes], c=colour, **points)
    means = [verdict["mean_return"] for verdict in rising]
    earned.plot(limits, means, "k.-", lw=1, label="mean")
    frontier = np.array([verdict["frontier"] for verdict in rising], dtype=float)
    earned.plot(limits, frontier, "k:", lw=1.2, label="frontier of the data")
    of_first = f" ({criteria[0]})" if len(criteria) > 1 else ""
    earned.set(title="return", xlabel=f"limit{of_first}", ylabel="episode return")
    for axis in (*costs, earned):
        axis.legend()
    return svg(figure)


@styled
def _among_the_data(evaluation: dict[str, Any], data: dict[str, Any]) -> str:
    figure, axes = canvas(len(data["criteria"]))
    stored, verdicts = np.array(data["cost"]), evaluation["verdicts"]
    hints: dict[str, list[str]] = {}
    for index, axis in enumerate(axes):
        label, group = "stored trajectories", f"stored-{index}"
        hints[group] = _hints("recorded", stored[:, index], data["return"])
        axis.scatter(stored[:, index], data["return"], c=DATA, label=label, s=8, lw=0, gid=group)
        for verdict, colour in zip(verdicts, colours(len(verdicts)), strict=True):
            name = verdict["limit"]["name"]
            rows = [row for row in evaluation["episodes"] if row["limit_name"] == name]
            costs = [row["cost"][index] for row in rows]
            returns = [row["episode_return"] for row in rows]
            label, group = f"policy under {name}", f"policy-{index}-{len(hints)}"
            hints[group] = _hints(label, costs, returns)
            axis.scatter(costs, returns, s=12, color=colour, lw=0, label=label, gid=group)
            axis.axvline(verdict["limit"]["values"][index], color=colour, lw=0.8, ls="--")
        axis.set(xlabel=f"episode cost ({data['criteria'][index]})", ylabel="episode return")
    axes[-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    drawing = svg(figure)
    for group, texts in hints.items():
        drawing = with_hints(drawing, group, texts)
    return drawing


def _hints(name: str, costs: Iterable[float], returns: Iterable[float]) -> list[str]:
    pairs = zip(costs, returns, strict=True)
    return [f"{name}: cost {numbers([cost])}, return {numbers([earned])}" for cost, earned in pairs]


@styled
def _spending(trace: dict[str, Any]) -> str:
    names = list(dict.fromkeys(path["limit_name"] for path in trace["paths"]))
    criteria, shades = trace["data"]["criteria"], colours(len(names))
    coloured = zip(names, shades, strict=True)
    panels = [(*pair, index) for pair in coloured for index in range(len(criteria))]
    several = len(criteria) > 1
    figure, axes = canvas(len(panels), columns=len(criteria) if several else 2 + len(names) % 2)
    for (name, colour, index), axis in zip(panels, axes, strict=True):
        paths = [path for path in trace["paths"] if path["limit_name"] == name]
        limit = paths[0]["limit"][index]
        for path in paths:
            spent = [0.0, *(row[index] for row in path["spent"])]
            axis.plot([0, *path["step"]], spent, color=colour, lw=1)
            within = spent[-1] <= limit and not _fell(path)
            axis.plot(path["step"][-1], spent[-1], ".", color=VERDICT[within])
        axis.axhline(limit, color="k", lw=0.9, ls="--")
        label = f"spent ({criteria[index]})" if several else "spent"
        axis.set(title=f"{name}: limit {numbers([limit])}", xlabel="step", ylabel=label)
        axis.set(ylim=(0, None), xlim=(0, None))
    return svg(figure)


@styled
def _decision(moment: dict[str, Any], criteria: list[str]) -> str:
    figure, axes = canvas(len(criteria))
    for index, axis in enumerate(axes):
        _candidates(axis, moment, index)
        of = f" ({criteria[index]})" if len(criteria) > 1 else ""
        label = f"forecast cost of the rest of the episode{of}"
        axis.set(xlabel=label, ylabel="return asked for")
    safe, count = sum(moment["safe"]), len(moment["safe"])
    how = "the fallback decided" if moment["fell_back"] else f"{safe} of {count} forecast within"
    axes[0].set(title=f"{moment['limit_name']}, step {moment['step']}: {how}")
    axes[-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return svg(figure)


def _candidates(axis: Axes, moment: dict[str, Any], index: int) -> None:
    x, y = np.array(moment["forecast_cost"])[:, index], np.array(moment["return_to_go"])
    safe, chosen = np.array(moment["safe"]), moment["chosen"]
    beyond: Any = {"c": REJECTED, "marker": "x", "linewidths": 1, "label": "forecast beyond"}
    axis.scatter(x[~safe], y[~safe], s=22, **beyond)
    axis.scatter(x[safe], y[safe], s=18, c=ACCEPTED, linewidths=0, label="forecast within")
    ring: Any = {"facecolors": "none", "edgecolors": "k", "linewidths": 1.2, "label": "executed"}
    axis.scatter(x[chosen], y[chosen], s=110, **ring)
    axis.axvline(moment["remaining"][index], color="k", lw=0.9, ls="--", label="remaining budget")


def _fell(episode: dict[str, Any]) -> bool:
    """Whether it ended early, and may not."""
    return bool(episode.get("ended_early")) and not episode["may_end"]


def _rising(verdicts: list[dict[str, Any]], index: int) -> list[dict[str, Any]]:
    """By the limit of one constraint: pairs of limits have no order of their own."""
    return sorted(verdicts, key=lambda verdict: verdict["limit"]["values"][index])
