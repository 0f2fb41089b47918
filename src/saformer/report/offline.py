"""What held-out logs say of a model, as a table and as a page."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from rich.table import Table

from saformer.report import figure
from saformer.report.frame import how_it_was_made, learning, section, write_page
from saformer.report.table import Cell, html_table, numbers, percent, terminal_table
from saformer.runs.run import Run

HEADINGS = (
    "limit", "support", "frontier", "likelihood", "gain", "bias", "error", "missed", "before", "alarms"
)  # fmt: skip
ERROR_HEADINGS = ("expectation", "mean error", "bias", "root mean square", "deviation", "explained")
LEGEND = (
    "Support: training trajectories within the limit. Frontier: the mean of their five best returns. Near the limit, "
    "over the held-out trajectories whose cost lies nearest to it: likelihood of the logged actions when the limit is "
    "asked for (nats per step, action in model units), gain over one Gaussian that is blind to state and limit, and "
    "bias and mean absolute error of the forecast cost-to-go. Over all judged steps, forecast <= remaining budget, as "
    "when acting: missed, accepted though the trajectory went over the limit; before, the same where the limit was not "
    "yet passed; alarms, rejected though it stayed within."
)


def offline_summary(offline: dict[str, Any]) -> str:
    """What was judged, and the figures over all of it, in one line."""
    judged, steps = offline["num_judged"], offline["num_steps"]
    explained = ", ".join(
        f"{percent(errors['explained'])} of the variance of {name} (bias {numbers([errors['bias']], sign=True)})"
        for name, errors in zip(offline["criteria"], offline["critic"], strict=True)
    )
    return (
        f"{offline['num_held_out']} held-out trajectories beside {offline['num_training']} trained on, "
        f"{'all' if judged == steps else f'{judged} of'} {steps} steps judged; the critic explains {explained}, the "
        f"actor gains {_nats(offline['action']['gain'])} nats per step on a blind Gaussian"
    )


def offline_table(offline: dict[str, Any]) -> Table:
    """For the terminal."""
    caption = "\n".join(
        [offline_summary(offline), *(f"warning: {text}" for text in offline["warnings"])]
    )
    return terminal_table(HEADINGS, _rows(offline), caption=caption, title=offline["label"])


def write_offline_report(run: Run, path: str | Path, *, command: str | None = None) -> Path:
    """Describe what held-out logs say of a run's model. Needs nothing but the run's folder."""
    offline = run.read_json("offline.json")
    spec = run.spec
    kept = ("window", "cost_discount", "num_windows", "num_windows_judged")
    parts = [
        f"<h1>{html.escape(spec.task_name)}</h1>",
        f'<p class="note">{html.escape(spec.agent)}, seed {spec.seed}.</p>',
        f'<div class="caution"><b>{html.escape(offline["label"])}.</b></div>',
        f'<p class="lead">{html.escape(offline_summary(offline))}.</p>',
        *_warnings(offline),
        "<h2>Limits</h2>",
        html_table(HEADINGS, _rows(offline)),
        f'<p class="note">{html.escape(LEGEND)}</p>',
        section(
            "Support, and whether the critic can be believed",
            figure.limits_offline(offline),
            "Missed overruns: of the steps on the way to going over the limit, those that the critic accepted. False "
            "alarms: of the steps of trajectories within it, those that it rejected. A dash: there were none to judge.",
        ),
        "<h2>All held-out steps</h2>",
        html_table(ERROR_HEADINGS, _error_rows(offline)),
        f'<p class="note">{html.escape(_about_actions(offline))}</p>',
        section(
            "Forecast and logged cost-to-go",
            figure.calibration(offline),
            f"{len(offline['calibration']['forecast'])} steps, evenly drawn. Below the line the critic forecast too "
            "little: that is where limits get broken.",
        ),
        section("Error over the course of a trajectory", figure.error_by_progress(offline)),
        *learning(run),
        *how_it_was_made(run, command, {"judged": {name: offline[name] for name in kept}}),
    ]
    return write_page(path, f"{spec.task_name}: no rollout", parts)


def _rows(offline: dict[str, Any]) -> list[list[Cell]]:
    return [[(text, "") for text in _cells(evidence)] for evidence in offline["limits"]]


def _cells(evidence: dict[str, Any]) -> list[str]:
    support, near, verification = evidence["support"], evidence["near"], evidence["verification"]
    return [
        f"{evidence['limit']['name']} = {numbers(evidence['limit']['values'])}",
        f"{support['num_within']} ({percent(support['share'])})",
        numbers([support["frontier"]]),
        _nats(near["action"]["log_likelihood"]),
        _nats(near["action"]["gain"]),
        numbers([errors["bias"] for errors in near["critic"]], sign=True),
        numbers([errors["mean_absolute"] for errors in near["critic"]]),
        percent(verification["missed"]),
        percent(verification["missed_before"]),
        percent(verification["false_alarms"]),
    ]


def _nats(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def _error_rows(offline: dict[str, Any]) -> list[list[Cell]]:
    names = [f"critic: cost-to-go ({name})" for name in offline["criteria"]] + [
        "actor: return-to-go"
    ]
    return [
        [(text, "") for text in (name, *_error_cells(errors))]
        for name, errors in zip(names, [*offline["critic"], offline["return_to_go"]], strict=True)
    ]


def _error_cells(errors: dict[str, Any]) -> list[str]:
    return [
        numbers([errors["mean_absolute"]]),
        numbers([errors["bias"]], sign=True),
        numbers([errors["root_mean_square"]]),
        numbers([errors["deviation"]]),
        percent(errors["explained"]),
    ]


def _about_actions(offline: dict[str, Any]) -> str:
    action = offline["action"]
    return (
        "Bias: expected - logged. Explained: share of the variance, 1 - (root mean square / deviation) squared. "
        f"Logged actions: log-likelihood {_nats(action['log_likelihood'])} nats per step (action in "
        f"model units), {_nats(action['blind_log_likelihood'])} by a Gaussian that is blind to state "
        f"and limit; the expected action is off by {numbers(action['mean_absolute_error'])} per dimension."
    )


def _warnings(offline: dict[str, Any]) -> list[str]:
    if not offline["warnings"]:
        return []
    items = "".join(f"<li>{html.escape(text)}</li>" for text in offline["warnings"])
    return [f'<div class="caution">What these figures do not support:<ul>{items}</ul></div>']
