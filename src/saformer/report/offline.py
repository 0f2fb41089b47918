"""A model judged on held-out logs, as a table and as a page."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from saformer.report.estimate import estimate_parts, estimate_summary, estimate_table
from saformer.report.figure import (
    ACCEPTED,
    DATA,
    POINTS,
    REJECTED,
    canvas,
    colours,
    styled,
    svg,
)
from saformer.report.learning import run_listing, training_pictures
from saformer.report.page import Caution, Page, Part, Picture, Remark, Sheet
from saformer.report.table import numbers, percent, terminal_table
from saformer.runs.run import Run

EVIDENCE_HEADINGS: tuple[str, ...] = ("limit", "support", "frontier", "likelier")
EVIDENCE_HEADINGS += ("bias", "error", "missed", "before", "alarms")
ERROR_HEADINGS = ("expectation", "mean error", "bias", "root mean square", "deviation", "explained")
MOST_ACTIONS = 4  # that are drawn
SIZES = ("mean_absolute", "root_mean_square", "deviation")
LEGEND = (
    "Support: training trajectories within the limit. Frontier: the mean of their five best "
    "returns. Near the limit, over the held-out trajectories whose cost lies nearest to it: "
    "likelier, how many times as likely a logged action is by the actor, asked for the limit, as "
    "by one Gaussian that is blind to state and limit; bias and mean absolute error of forecast "
    "costs-to-go. Over all judged steps, forecast <= remaining budget, as when acting: missed, "
    "accepted though the trajectory went over the limit; before, the same where the limit was not "
    "yet passed; alarms, rejected though it stayed within."
)
ABOUT_LIMITS = (
    "Missed overruns: of the steps on the way to going over the limit, those that the critic "
    "accepted. False alarms: of the steps of trajectories within it, those that it rejected. "
    "A dash: there were none to judge."
)
ABOUT_DAY = (
    "A held-out trajectory of middling cost: grey what was done, coloured what the actor expects "
    "to do in the same logged states if the limit is asked for. Its own actions would lead to "
    "other states."
)
ABOUT_FORECASTS = (
    "evenly drawn. Below the line the critic forecast too little: that is where limits get broken."
)


def offline_summary(offline: dict[str, Any]) -> str:
    """The figures over all judged steps, in one line."""
    judged, steps = offline["num_judged"], offline["num_steps"]
    explained = ", ".join(
        f"{percent(errors['explained'])} of the variance of {name} "
        f"(bias {numbers([errors['bias']], sign=True)})"
        for name, errors in zip(offline["criteria"], offline["critic"], strict=True)
    )
    return (
        f"{offline['num_held_out']} held-out trajectories beside {offline['num_training']} trained "
        f"on, {'all' if judged == steps else f'{judged} of'} {steps} steps judged; the critic "
        f"explains {explained}; to the actor logged actions are {_times(offline['action'])} as "
        "likely as to one Gaussian that is blind to state and limit"
    )


def judged_tables(judged: dict[str, Any]) -> list[Table]:
    """What was estimated and, where trajectories were held out, how the model does on them."""
    held_out = judged.get("held_out")
    tables = [estimate_table(judged["estimate"])]
    return [*tables, *([offline_table(held_out)] if held_out else [])]


def offline_table(offline: dict[str, Any]) -> Table:
    """The evidence on each limit, for the terminal."""
    warnings = (f"warning: {text}" for text in offline["warnings"])
    caption = "\n".join([offline_summary(offline), *warnings])
    rows = [_cells(evidence) for evidence in offline["limits"]]
    return terminal_table(EVIDENCE_HEADINGS, rows, caption=caption, title=offline["label"])


def write_offline_report(run: Run, path: str | Path, *, command: str | None = None) -> Path:
    """Describe what logs say of a run's policy, and held-out ones of its model, as far as either
    was judged. Needs nothing but the run's folder."""
    spec, parts = run.spec, list[Part]()
    parts.append(Remark((f"{spec.agent}, seed {spec.seed}.",), style="note"))
    if (run.path / "estimate.json").exists():
        estimate = run.read_json("estimate.json")
        parts.append(Remark((f"{estimate_summary(estimate)}.",), style="lead"))
        parts += estimate_parts(estimate)
    judged: dict[str, Any] = {}
    if (run.path / "offline.json").exists():
        offline = run.read_json("offline.json")
        names = ("window", "cost_discount", "num_windows", "num_windows_judged")
        judged = {"judged": {name: offline[name] for name in names}}
        parts += _held_out_parts(offline)
    parts += [*training_pictures(run), run_listing(run, command, judged)]
    return Page(f"{spec.task_name}: no rollout", parts, heading=spec.task_name).write(path)


def _held_out_parts(offline: dict[str, Any]) -> list[Part]:
    warnings, evidence = offline["warnings"], [_cells(each) for each in offline["limits"]]
    drawn = f"{len(offline['calibration']['forecast'])} steps, {ABOUT_FORECASTS}"
    errors, about = _error_rows(offline), _about_actions(offline)
    return [
        Caution(f"{offline['label']}."),
        Remark((f"{offline_summary(offline)}.",), style="lead"),
        *(
            [Picture("One episode, logged and proposed", _day(offline), ABOUT_DAY)]
            if "day" in offline
            else []
        ),
        *([Caution("What these figures do not support:", warnings)] if warnings else []),
        Sheet("Limits", EVIDENCE_HEADINGS, evidence, LEGEND),
        Picture("Support, and whether the critic can be believed", _limits(offline), ABOUT_LIMITS),
        Sheet("All held-out steps", ERROR_HEADINGS, errors, about),
        Picture("Forecast and logged cost-to-go", _calibration(offline), drawn),
        Picture("Error over the course of a trajectory", _error_by_progress(offline)),
    ]


def _cells(evidence: dict[str, Any]) -> list[str]:
    support, near, verification = evidence["support"], evidence["near"], evidence["verification"]
    return [
        f"{evidence['limit']['name']} = {numbers(evidence['limit']['values'])}",
        f"{support['num_within']} ({percent(support['share'])})",
        numbers([support["frontier"]]),
        _times(near["action"]),
        numbers([errors["bias"] for errors in near["critic"]], sign=True),
        numbers([errors["mean_absolute"] for errors in near["critic"]]),
        *(percent(verification[name]) for name in ("missed", "missed_before", "false_alarms")),
    ]


def _times(action: dict[str, Any]) -> str:
    """How many times as likely a logged action is by the actor as by a blind Gaussian."""
    if action["gain"] is None:
        return "-"
    two_digits = float(f"{math.exp(min(action['gain'], 99)):.2g}")
    return f"{two_digits:g} times"  # 120, not 1.2e+02


def _error_rows(offline: dict[str, Any]) -> list[list[str]]:
    critics = [f"critic: cost-to-go ({name})" for name in offline["criteria"]]
    names, errors = [*critics, "actor: return-to-go"], [*offline["critic"], offline["return_to_go"]]
    rows = []
    for name, error in zip(names, errors, strict=True):
        absolute, *sizes = (numbers([error[key]]) for key in SIZES)
        bias = numbers([error["bias"]], sign=True)
        rows.append([name, absolute, bias, *sizes, percent(error["explained"])])
    return rows


def _about_actions(offline: dict[str, Any]) -> str:
    action = offline["action"]
    return (
        "Bias: expected - logged. Explained: share of the variance, 1 - (root mean square / "
        "deviation) squared. The expected action is off by "
        f"{numbers(action['mean_absolute_error'])} per dimension."
    )


@styled
def _day(offline: dict[str, Any]) -> str:
    day, proposed = offline["day"], offline["day"]["proposed"]
    names = day.get("actions", ())  # as the log calls them, where there was one
    logged = np.array(day["logged"])
    figure, axes = canvas(min(logged.shape[1], MOST_ACTIONS), columns=1)
    for index, axis in enumerate(axes):
        axis.plot(day["step"], logged[:, index], color=POINTS, lw=2.5, label="logged")
        for (name, actions), colour in zip(proposed.items(), colours(len(proposed)), strict=True):
            course = np.array(actions)[:, index]
            axis.plot(day["step"], course, color=colour, lw=1.2, label=f"proposed under {name}")
        axis.set(xlabel="step", ylabel=dict(enumerate(names)).get(index, f"action[{index}]"))
    axes[0].set_title(f"an episode that cost {numbers(day['cost'])}")
    axes[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return svg(figure)


@styled
def _calibration(offline: dict[str, Any]) -> str:
    forecasts = np.array(offline["calibration"]["forecast"])
    logged, names = np.array(offline["calibration"]["logged"]), offline["criteria"]
    figure, axes = canvas(len(names))
    for name, axis, y, x in zip(names, axes, forecasts.T, logged.T, strict=True):
        low = y < x
        for some, colour, label in ((~low, ACCEPTED, "too high"), (low, REJECTED, "too low")):
            axis.scatter(x[some], y[some], s=5, c=colour, alpha=0.5, linewidths=0, label=label)
        ends = [min(x.min(), y.min()), max(x.max(), y.max())]
        axis.plot(ends, ends, "k--", lw=1, label="exact")
        axis.set(title=name, xlabel="logged cost-to-go", ylabel="forecast cost-to-go")
        axis.legend(markerscale=2)
    return svg(figure)


@styled
def _error_by_progress(offline: dict[str, Any]) -> str:
    names, stretches = offline["criteria"], offline["by_progress"]
    course = [100 * stretch["progress"] for stretch in stretches]
    figure, axes = canvas(len(names))
    for index, (name, axis) in enumerate(zip(names, axes, strict=True)):
        absolute = [stretch["mean_absolute"][index] for stretch in stretches]
        bias = [stretch["bias"][index] for stretch in stretches]
        axis.axhline(0, color="k", lw=0.8)
        axis.plot(course, absolute, ".-", lw=1, color="k", label="mean absolute error")
        label = "bias (below 0: forecast too low)"
        axis.plot(course, bias, ".-", lw=1, color=REJECTED, label=label)
        axis.set(title=name, xlabel="percent of the trajectory gone", ylabel="cost", xlim=(0, 100))
        axis.legend()
    return svg(figure)


@styled
def _limits(offline: dict[str, Any]) -> str:
    limits = offline["limits"]
    x, supports = np.arange(len(limits)), [evidence["support"] for evidence in limits]
    figure, (supported, wrong) = canvas(2)
    bars = supported.bar(x, [100 * each["share"] for each in supports], width=0.6, color=DATA)
    supported.bar_label(bars, [each["num_within"] for each in supports], fontsize=8)
    label = "percent (above: how many)"
    supported.set(title="training trajectories within the limit", ylabel=label)
    kinds = (("missed_before", REJECTED, "missed overruns"), ("false_alarms", DATA, "false alarms"))
    for offset, (key, colour, label) in zip((-0.2, 0.2), kinds, strict=True):
        shares = [evidence["verification"][key] for evidence in limits]
        heights = [100 * (share or 0) for share in shares]
        bars = wrong.bar(x + offset, heights, 0.38, color=colour, label=label)
        wrong.bar_label(bars, [percent(share) for share in shares], fontsize=8)
    wrong.set(title="the critic's word on logged actions", ylabel="percent of steps")
    wrong.set(ylim=(0, 125), yticks=range(0, 101, 20))
    wrong.legend(loc="upper right", ncols=2)
    for axis in (supported, wrong):
        axis.set_xticks(x, [evidence["limit"]["name"] for evidence in limits])
        axis.set_xlabel("limit")
    return svg(figure)
