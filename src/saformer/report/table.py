"""Tables for the terminal or for a page, and the verdicts as one."""

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, Literal

from rich.markup import escape
from rich.table import Table
from rich.text import Text

PROMISED: tuple[str, ...] = ("limit", "met", "cost", "worst", "within (95%)")
PROMISED += ("return", "frontier", "share")
HEADINGS = (*PROMISED, "redrawn", "fallback")
SHIELD = "shield"  # part of the name of a policy that had one
SHIELDED_HEADINGS = (*PROMISED, "shielded")
CALIBRATED_HEADINGS = (*PROMISED[:4], "passed (95% below)", "asked", "kept back", *PROMISED[5:])
"""Of an evaluation that was calibrated for a violation rate."""
CALIBRATION_HEADINGS = ("limit", "withheld", "passed", "bound", "cost", "return", "share", "")
MARKED = {"met", "cost"}  # columns that say whether the limit was met
TERMINAL_STYLES = {"met": "green", "missed": "red", "": ""}

Cell = str | tuple[str, str]  # a text, or a text and its mark: "met", "missed" or none
Rows = Sequence[Sequence[Cell]]


def text_and_mark(cell: Cell) -> tuple[str, str]:
    return (cell, "") if isinstance(cell, str) else cell


def summary(evaluation: dict[str, Any]) -> str:
    """The figures over all limits, in one line."""
    verdicts, criteria = evaluation["verdicts"], evaluation["criteria"]
    correlations = evaluation["rank_correlations"]
    name = f"{evaluation['name']}: " if evaluation["beside"] else ""
    obeyed = f"rank correlation of limit and cost {rounded(*correlations)}, "
    known = any(correlation is not None for correlation in correlations)
    costs = f"; costs: {', '.join(criteria)}" if len(criteria) > 1 else ""
    return (
        f"{name}{evaluation['limits_met']} of {len(verdicts)} limits met "
        f"(tolerance {evaluation['tolerance']:g}, {verdicts[0]['num_episodes']} episodes each), "
        f"{obeyed if known else ''}frontier share {rounded(evaluation['frontier_share'])}, "
        f"{evaluation['decisions_per_second']:.0f} decisions per second{costs}"
    )


def has_shield(evaluation: dict[str, Any]) -> bool:
    """Whether it was judged with a shield, or is compared with a policy that was."""
    return any(SHIELD in each["name"] for each in (evaluation, *evaluation["beside"]))


def verdict_table(evaluation: dict[str, Any]) -> Table:
    headings, rows = verdict_rows(evaluation)
    return terminal_table(headings, rows, caption=summary(evaluation))


def terminal_table(
    headings: Sequence[str],
    rows: Rows,
    *,
    caption: str = "",
    title: str | None = None,
    justify: Literal["left", "right"] = "right",
) -> Table:
    """Rows of cells, the first column to the left."""
    layout: Any = {"padding": (0, 1, 0, 0), "caption_justify": "left", "title_justify": "left"}
    table = Table(box=None, pad_edge=False, title=title, caption=escape(caption) or None, **layout)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify=justify if index else "left", overflow="fold")
    for row in rows:
        pairs = (text_and_mark(cell) for cell in row)
        table.add_row(*(Text(text, style=TERMINAL_STYLES[mark]) for text, mark in pairs))
    return table


def numbers(values: Iterable[float | None], *, sign: bool = False) -> str:
    """Three digits of each, whole numbers where they are large, "-" where there is none."""
    return ", ".join(_number(value, "+" if sign else "") for value in values)


def percent(share: float | None) -> str:
    """A share, or "-" if it is not known."""
    return "-" if share is None else f"{share:.0%}"


def verdict_rows(evaluation: dict[str, Any]) -> tuple[tuple[str, ...], list[list[Cell]]]:
    """Headings and rows: limit by limit, and under each every policy that was judged."""
    judged = [evaluation, *evaluation["beside"]]
    if evaluation.get("rate") is not None:
        headings, judged = CALIBRATED_HEADINGS, [evaluation]
    elif len(judged) == 1 and not has_shield(evaluation):
        headings = HEADINGS
    else:
        headings = SHIELDED_HEADINGS + (("policy",) if len(judged) > 1 else ())
    cells = [_cells(each, index) for index in range(len(evaluation["verdicts"])) for each in judged]
    return headings, [[row[heading] for heading in headings] for row in cells]


def _cells(evaluation: dict[str, Any], index: int) -> dict[str, Cell]:
    """By heading, for one limit."""
    verdict, name = evaluation["verdicts"][index], evaluation["name"]
    low, high = verdict["within_interval"]
    texts = {
        "limit": f"{verdict['limit']['name']} = {numbers(verdict['limit']['values'])}",
        "met": "yes" if verdict["met"] else "no",
        "cost": numbers(verdict["mean_cost"]),
        "worst": numbers(verdict["worst_cost"]),
        "within (95%)": f"{verdict['within']:.0%} ({100 * low:.0f}-{100 * high:.0f})",
        "return": numbers([verdict["mean_return"]]),
        "frontier": numbers([verdict["frontier"]]),
        "share": rounded(verdict["frontier_share"]),
        "redrawn": percent(verdict["resampled"]),
        "fallback": percent(verdict["fell_back"]),
        "shielded": percent(verdict["shielded"] if SHIELD in name else None),
        "policy": name,
    }
    if evaluation.get("rate") is not None:
        passed, bound = 1 - verdict["within"], verdict["violation_bound"]
        texts["passed (95% below)"] = f"{passed:.1%} ({bound:.1%})"
        texts["asked"] = f"{100 * evaluation['rate']:.3g}%"
        texts["kept back"] = f"{evaluation['margins'][index]:.0%}"
    mark = "met" if verdict["met"] else "missed"
    return {name: (text, mark if name in MARKED else "") for name, text in texts.items()}


def calibration_table(calibration: dict[str, Any]) -> Table:
    """Of each limit the margin that passed, or how near the best of them came."""
    rows: list[list[Cell]] = []
    for calibrated in calibration["limits"]:
        limit, tested = calibrated["limit"], calibrated["tested"]
        passed, shown = calibrated["margin"] is not None, min(tested, key=itemgetter("bound"))
        cells = (
            f"{limit['name']} = {numbers(limit['values'])}",
            f"{100 * shown['margin']:.3g}%",
            f"{shown['num_violations']} of {shown['num_episodes']}",
            f"{shown['bound']:.1%}",
            numbers(shown["mean_cost"]),
            numbers([shown["mean_return"]]),
            f"{shown['frontier_share']:.2f}",
            "" if passed else "not reached by any margin",
        )
        rows.append([*cells])
    caption = (
        f"at most {100 * calibration['rate']:.3g}% of episodes pass, with confidence "
        f"{calibration['confidence']:g} for each limit; {calibration['episodes']} fresh episodes "
        "for each margin"
    )
    return terminal_table(CALIBRATION_HEADINGS, rows, caption=caption)


def sweep_table(swept: dict[str, Any]) -> Table:
    rows: list[list[Cell]] = []
    for trial in swept["trials"]:
        met = f"{trial['limits_met']} of {len(trial['verdicts'])}"
        best = "earns most" if trial["value"] == swept["best"] else ""
        earned, cost = numbers([trial["mean_return"]]), numbers(trial["mean_cost"])
        rows.append([numbers([trial["value"]]), earned, cost, met, best])
    return terminal_table((swept["option"], "return", "cost", "limits met", ""), rows)


def rounded(*values: float | None) -> str:
    """Two digits of each, "-" where there is none."""
    return ", ".join("-" if value is None else f"{value:.2f}" for value in values)


def _number(value: float | None, sign: str) -> str:
    if value is None:
        return "-"
    return f"{value:{sign}.0f}" if abs(value) >= 100 else f"{value:{sign}.3g}"
