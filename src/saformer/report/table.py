"""Tables for the terminal or for a page, and the verdicts as one."""

from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from operator import itemgetter
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

PROMISED: tuple[str, ...] = ("limit", "met", "cost", "worst", "within (95%)")
PROMISED += ("ended", "return", "frontier", "share")
HEADINGS = (*PROMISED, "fallback")
SHIELD = "shield"  # part of the name of a policy that had one
SHIELDED_HEADINGS = (*PROMISED, "shielded")
OF_A_RATE = ("passed (95% below)", "asked", "kept back")
CALIBRATED_HEADINGS = (*PROMISED[:3], *OF_A_RATE, "ended", "return", "share")
"""Of an evaluation that was calibrated for a violation rate."""
OF_A_MARGIN = ("withheld", "passed", "bound", "ended")
CALIBRATION_HEADINGS = ("limit", *OF_A_MARGIN, "cost", "return", "share", "")
SAFE_SHARE = 0.95  # of episodes within their limit, for a verdict to be green
MARKED = {"met", "cost"}  # columns that say whether the limit was met
TERMINAL_STYLES = {"safe": "green", "met": "yellow", "missed": "red", "": ""}

Cell = str | tuple[str, str]  # a text, or a text and its mark: "safe", "met", "missed" or none
Rows = Sequence[Sequence[Cell]]


def mark_of(met: bool, within: float) -> str:
    """safe: met, and nearly all episodes are within; met: the mean is; missed."""
    return ("safe" if within >= SAFE_SHARE else "met") if met else "missed"


def text_and_mark(cell: Cell) -> tuple[str, str]:
    return (cell, "") if isinstance(cell, str) else cell


def summary(evaluation: dict[str, Any]) -> str:
    """The figures over all limits, in one line."""
    verdicts, criteria = evaluation["verdicts"], evaluation["criteria"]
    correlations, count = evaluation["rank_correlations"], verdicts[0]["num_episodes"]
    episodes = "1 episode" if count == 1 else f"{count} episodes"
    name = f"{evaluation['name']}: " if evaluation["beside"] else ""
    obeyed = f"rank correlation of limit and cost {rounded(*correlations)}, "
    known = any(correlation is not None for correlation in correlations)
    costs = f"; costs: {', '.join(criteria)}" if len(criteria) > 1 else ""
    return (
        f"{name}{evaluation['limits_met']} of {len(verdicts)} limit{'s' * (len(verdicts) > 1)} met "
        f"(tolerance {evaluation['tolerance']:g}, {episodes} each), "
        f"{obeyed if known else ''}frontier share {rounded(evaluation['frontier_share'])}, "
        f"{evaluation['decisions_per_second']:.0f} decisions per second{costs}"
        f"{''.join(f'; {remark}' for remark in _remarks(evaluation))}"
    )


def endings_line(judged: dict[str, Any], ended_early: float) -> str:
    """How many episodes ended early, how many of the data's do, and whether they may."""
    shares = percent(ended_early), percent(judged["data_ended_early"])
    allowed = "they may" if judged["may_end"] else "none may"
    return f"{shares[0]} of episodes ended early (data {shares[1]}), which {allowed}"


def _remarks(evaluation: dict[str, Any]) -> Iterator[str]:
    """On endings and on doing nothing; evaluations of older versions know of neither."""
    if not {"may_end", "ended_early", "data_ended_early", "idle_limits"} <= set(evaluation):
        return
    yield endings_line(evaluation, evaluation["ended_early"])
    verdicts = evaluation["verdicts"]
    names = [each["limit"]["name"] for each in verdicts if each["frontier"] is None]
    if names and not evaluation["may_end"]:
        yield f"no recorded episode keeps {', '.join(names)} without ending early"
    if evaluation["idle_limits"]:
        limits = ", ".join(evaluation["idle_limits"])
        yield f"earns no more than doing nothing under {limits}"


def has_shield(evaluation: dict[str, Any]) -> bool:
    """Whether it was judged with a shield, or is compared with a policy that was."""
    return any(SHIELD in each["name"] for each in (evaluation, *evaluation["beside"]))


def verdict_table(evaluation: dict[str, Any]) -> Table | list[Table]:
    """Of several policies a table each, so that 80 columns hold it."""
    headings, rows = verdict_rows(evaluation)
    if headings[-1] != "policy":
        return terminal_table(headings, rows, caption=summary(evaluation))
    by_policy: dict[str, list[Sequence[Cell]]] = {}
    for *row, policy in rows:
        name = text_and_mark(policy)[0]
        by_policy.setdefault(name if name != "-" else [*by_policy][-1], []).append(row)
    tables = [terminal_table(headings[:-1], own, title=name) for name, own in by_policy.items()]
    tables[-1].caption = summary(evaluation)
    return tables


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
    table = Table(box=None, pad_edge=False, title=title, caption=caption or None, **layout)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify=justify if index else "left", overflow="fold")
    for row in rows:
        pairs = (text_and_mark(cell) for cell in row)
        table.add_row(*(Text(text, style=TERMINAL_STYLES[mark]) for text, mark in pairs))
    return table


def rendered(tables: Any, as_html: bool = False) -> str:
    """Tables or lines as text, or as HTML for a notebook."""
    page = StringIO()
    console = Console(file=page, width=120, record=True, highlight=False, markup=False, emoji=False)
    for each in tables if isinstance(tables, list) else [tables]:
        console.print(each, soft_wrap=isinstance(each, Text))
    if as_html:
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
    return console.export_text().rstrip()


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
    indices = range(len(evaluation["verdicts"]))
    cells = [verdict_cells(each, index) for index in indices for each in judged]
    if evaluation.get("nothing"):
        cells.append(nothing_cells(evaluation["nothing"]))
    return headings, [[row.get(heading, "-") for heading in headings] for row in cells]


def nothing_cells(nothing: dict[str, Any]) -> dict[str, Cell]:
    """By heading: one row for all limits, as it heeds none."""
    row, verdicts = verdict_cells(nothing, 0), nothing["verdicts"]
    same = {name: text_and_mark(row[name])[0] for name in ("cost", "worst", "ended")}
    met = f"{nothing['limits_met']}/{len(verdicts)}"
    return {**same, "limit": nothing["name"], "met": met, "return": row["return"]}


def verdict_cells(evaluation: dict[str, Any], index: int) -> dict[str, Cell]:
    """By heading, for one limit."""
    verdict, name = evaluation["verdicts"][index], evaluation["name"]
    low, high = verdict["within_interval"]
    texts = {
        "limit": f"{verdict['limit']['name']} = {numbers(verdict['limit']['values'])}",
        "met": "yes" if verdict["met"] else "no",
        "cost": numbers(verdict["mean_cost"]),
        "worst": numbers(verdict["worst_cost"]),
        "within (95%)": f"{verdict['within']:.0%} ({100 * low:.0f}-{100 * high:.0f})",
        "ended": percent(verdict.get("ended_early")),
        "return": numbers([verdict["mean_return"]]),
        "frontier": numbers([verdict["frontier"]]),
        "share": rounded(verdict["frontier_share"]),
        "fallback": percent(verdict["fell_back"]),
        "shielded": percent(verdict["shielded"] if SHIELD in name else None),
        "policy": name,
    }
    if evaluation.get("rate") is not None:
        passed, bound = 1 - verdict["within"], verdict["violation_bound"]
        texts["passed (95% below)"] = f"{passed:.1%} ({bound:.1%})"
        texts["asked"] = f"{100 * evaluation['rate']:.3g}%"
        texts["kept back"] = f"{evaluation['margins'][index]:.0%}"
    uncapped = verdict.get("uncapped_share")
    if uncapped is not None and uncapped > verdict["frontier_share"]:
        texts["share"] += f" ({rounded(uncapped)})"
    mark = mark_of(verdict["met"], verdict["within"])
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
            percent(shown.get("ended_early")),
            numbers(shown["mean_cost"]),
            numbers([shown["mean_return"]]),
            rounded(shown["frontier_share"]),
            "" if passed else "not reached by any margin",
        )
        rows.append([*cells])
    caption = (
        f"at most {100 * calibration['rate']:.3g}% of episodes pass, with confidence "
        f"{calibration['confidence']:g} for each limit; {calibration['episodes']} fresh episodes "
        f"for each margin{' in a world learnt from the data' if calibration['offline'] else ''}; "
        f"an episode {'may end early' if calibration['may_end'] else 'that ends early passes it'}"
    )
    return terminal_table(CALIBRATION_HEADINGS, rows, caption=caption)


def sweep_table(swept: dict[str, Any]) -> Table:
    rows: list[list[Cell]] = []
    for trial in (*swept["trials"], swept["nothing"]):
        met = f"{trial['limits_met']} of {len(trial['verdicts'])}"
        best = "earns most" if trial["value"] == swept["best"] else ""
        earned, cost = numbers([trial["mean_return"]]), numbers(trial["mean_cost"])
        name = "doing nothing" if trial is swept["nothing"] else numbers([trial["value"]])
        rows.append([name, earned, cost, met, percent(trial["ended_early"]), best])
    headings = (swept["option"], "return", "cost", "limits met", "ended", "")
    ended_early = sum(trial["ended_early"] for trial in swept["trials"]) / len(swept["trials"])
    return terminal_table(headings, rows, caption=endings_line(swept, ended_early))


def rounded(*values: float | None) -> str:
    """Two digits of each, "-" where there is none."""
    return ", ".join("-" if value is None else f"{value:.2f}" for value in values)


def _number(value: float | None, sign: str) -> str:
    if value is None:
        return "-"
    return f"{value:{sign}.0f}" if abs(value) >= 100 else f"{value:{sign}.3g}"
