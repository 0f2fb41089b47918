"""Which limits a dataset can support: tables for the terminal, and one self-contained page."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from rich.console import RenderableType
from rich.text import Text

from saformer import __version__
from saformer.report.figure import DATA, POINTS, canvas, colours, styled, svg
from saformer.report.page import Caution, Page, Part, Picture, Remark, Sheet
from saformer.report.table import numbers, rounded, terminal_table

TITLE = "Which limits can this data support?"
OF_THRESHOLDS = ("episode", "min", "10%", "20%", "30%", "50%", "max", "mean")
OF_ASSUMPTIONS = ("episode cost", "correlation", "of ranks", "spread", "variation", "with length")
OF_ENDINGS = ("episodes", "number", "share", "mean return", "mean cost")
OF_LIMITS = ("limit", "within", "share", "frontier", "median return")
ALL_WELL = (
    "No warnings: return and cost are correlated, costs are spread, and every limit has its "
    "examples."
)
ABOUT_THRESHOLDS = (
    "A tenth of the trajectories cost what stands under 10%, or less, and so on; the last row is "
    "their return."
)
ABOUT_ASSUMPTIONS = (
    "Correlation of return and cost, and of their ranks; spread: (p90 - p10) / median of the cost; "
    "variation: its deviation / mean; correlation of cost with the episode's length."
)
ABOUT_ENDINGS = {
    True: "Episodes may end early: that is a legitimate way to keep a limit here.",
    False: "No episode may end early: one that terminates before the horizon is within no limit, "
    "and none is on the frontier.",
}
ABOUT_LIMITS = (
    "Trajectories within each limit, of every constraint at once. Frontier: the mean of the five "
    "best stored returns within the limit. Median return: of all trajectories within it."
)
ABOUT_PAIRS = "dashed: the limits; line: the mean of the five best returns within each cost."


def inspection_tables(inspection: dict[str, Any]) -> list[RenderableType]:
    """For the terminal: an overview, the tables, and the warnings last, where they are seen."""
    shown: list[RenderableType] = [Text(_overview(inspection))]
    for sheet in _sheets(inspection):
        title = Text(f"\n{sheet.title}", style="bold")
        caption = sheet.note if sheet.headings is OF_ENDINGS else ""
        shown += [title, terminal_table(sheet.headings, sheet.rows, caption=caption)]
    texts = [warning["text"] for warning in inspection["warnings"]]
    warnings = [Text.assemble(("warning: ", "bold yellow"), text) for text in texts]
    return [*shown, Text(), *(warnings or [Text(ALL_WELL, style="green")])]


def survey_tables(survey: dict[str, Any]) -> list[RenderableType]:
    """For the terminal: what logs hold, and what is wrong with them."""
    lengths = survey["episode_lengths"]
    counts = (_counted(survey[f"{what}s"], what) for what in ("file", "row", "episode"))
    overview = (
        f"{', '.join(counts)} of "
        f"{lengths['min']} to {lengths['max']} steps (median {lengths['median']:g})"
    )
    rows: list[list[str]] = []
    for name, column in survey["columns"].items():
        bounds = ["-" if column[key] is None else f"{column[key]:.4g}" for key in ("min", "max")]
        rows.append([name, column["role"], *bounds, str(column["missing"])])
    problems = [Text(f"problem: {text}", style="red") for text in survey["problems"]]
    problems += [Text(survey["remedy"], style="red")] if problems else []
    notes = [Text(f"note: {text}", style="yellow") for text in survey["warnings"]]
    fine = Text("nothing stands in the way of importing this", style="green")
    table = terminal_table(("column", "role", "least", "greatest", "missing"), rows)
    return [Text(overview), table, *problems, *notes, *([] if problems else [fine])]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def write_inspection(inspection: dict[str, Any], path: str | Path, *, title: str = TITLE) -> Path:
    """The same as a page, with figures."""
    constraints = inspection["constraints"]
    facts = {"saformer": __version__, "data fingerprint": inspection["fingerprint"]}
    facts["criteria"] = [constraint["criterion"] for constraint in constraints]
    facts["cost_discount"] = inspection["cost_discount"]
    warnings = [warning["text"] for warning in inspection["warnings"]]
    pictures = [_pictures(inspection, index) for index in range(len(constraints))]
    parts: list[Part] = [
        Remark((_overview(inspection),), style="note"),
        Caution("", warnings) if warnings else Remark((ALL_WELL,), style="lead"),
        *(pair for pair, _ in pictures),
        *_sheets(inspection),
        *(costs for _, costs in pictures),
        Remark((json.dumps(facts, indent=1),), "How this was made", "listing"),
    ]
    return Page(title, parts).write(path)


def _overview(inspection: dict[str, Any]) -> str:
    number, missing = inspection["num_trajectories"], inspection["num_left_out"]
    length, discount = inspection["length"], inspection["cost_discount"]
    left_out = f", {missing} unfinished left out" if missing else ""
    discounted = f"; costs discounted by {discount:g}" if discount != 1 else ""
    return (
        f"{number} trajector{'y' if number == 1 else 'ies'}{left_out}, {inspection['num_steps']} "
        f"steps; {length['min']:g} to {length['max']:g} steps an episode, median "
        f"{length['median']:g}{discounted}"
    )


def _sheets(inspection: dict[str, Any]) -> list[Sheet]:
    constraints, earned = inspection["constraints"], inspection["episode_return"]
    returns = [earned["percentiles"][name] for name in ("p0", "p10", "p20", "p30", "p50", "p100")]
    spreads = {c["criterion"]: [*c["thresholds"].values(), c["cost"]["mean"]] for c in constraints}
    spreads["return"] = [*returns, earned["mean"]]
    costs = [[name, *_each(values)] for name, values in spreads.items()]
    keys = ("correlation", "rank_correlation", "relative_spread", "variation", "length_correlation")
    assumptions = [[c["criterion"], *(rounded(c[key]) for key in keys)] for c in constraints]
    groups = {"ended early": inspection["ended_early"], "all others": inspection["whole"]}
    endings = []
    for name, each in groups.items():
        figures = (numbers([each["mean_return"]]), numbers(each["mean_cost"]))
        endings.append([name, str(each["number"]), f"{each['share']:.1%}", *figures])
    limits = []
    for limit in inspection["limits"]:
        name, count = f"{limit['name']} = {numbers(limit['values'])}", str(limit["num_within"])
        earnings = _each([limit["frontier"], limit["median_return"]])
        limits.append([name, count, f"{limit['share_within']:.1%}", *earnings])
    return [
        Sheet("Thresholds", OF_THRESHOLDS, costs, ABOUT_THRESHOLDS),
        Sheet("Assumptions", OF_ASSUMPTIONS, assumptions, ABOUT_ASSUMPTIONS),
        Sheet("Endings", OF_ENDINGS, endings, ABOUT_ENDINGS[inspection["may_end"]]),
        Sheet("Limits", OF_LIMITS, limits, ABOUT_LIMITS),
    ]


def _pictures(inspection: dict[str, Any], index: int) -> tuple[Picture, Picture]:
    name = inspection["constraints"][index]["criterion"]
    alone = " Frontier of this constraint alone." if len(inspection["constraints"]) > 1 else ""
    shown, count = len(inspection["sample"]["episode_return"]), inspection["num_trajectories"]
    about = f"{shown} of {count} trajectories; {ABOUT_PAIRS}{alone}"
    pairs, costs = _pair_plot(inspection, index), _cost_distribution(inspection, index)
    pair = Picture(f"Return and cost ({name})", pairs, about)
    return pair, Picture(f"Episode cost ({name})", costs, "Dashed: the limits, as above.")


def _each(values: Iterable[float | None]) -> list[str]:
    return [numbers([value]) for value in values]


@styled
def _pair_plot(inspection: dict[str, Any], index: int) -> str:
    constraint, sample = inspection["constraints"][index], inspection["sample"]
    figure = Figure(figsize=(9.0, 5.2), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(4, 1), height_ratios=(1, 4))
    axis = figure.add_subplot(grid[1, 0])
    above = figure.add_subplot(grid[0, 0], sharex=axis)
    beside = figure.add_subplot(grid[1, 1], sharey=axis)
    costs, returns = [cost[index] for cost in sample["episode_cost"]], sample["episode_return"]
    axis.scatter(costs, returns, s=8, c=POINTS, linewidths=0, label="trajectories")
    curve = constraint["frontier"]
    x = [*curve["cost"], max([*curve["cost"][-1:], constraint["thresholds"]["max"]])]
    y = [*curve["best"], *(curve["best"][-1:] or [math.nan])]
    axis.step(x, y, "k-", where="post", lw=1.2, label="frontier")
    axis.set(xlabel=f"episode cost ({constraint['criterion']})", ylabel="episode return")
    _bars(above, constraint["cost"])
    _bars(beside, inspection["episode_return"], orientation="horizontal")
    _limit_lines((axis, above), inspection["limits"], index)
    for margin in (above, beside):
        margin.label_outer(remove_inner_ticks=True)
    above.set_ylabel("number")
    beside.set_xlabel("number")
    corner = figure.add_subplot(grid[0, 1], frame_on=False, xticks=[], yticks=[])
    layout: Any = {"loc": "upper left", "ncols": 2, "borderpad": 0, "columnspacing": 1}
    corner.legend(*axis.get_legend_handles_labels(), **layout)
    return svg(figure)


@styled
def _cost_distribution(inspection: dict[str, Any], index: int) -> str:
    constraint = inspection["constraints"][index]
    percentiles = constraint["cost"]["percentiles"]
    figure, (count, share) = canvas(2)
    _bars(count, constraint["cost"])
    count.set(title="trajectories of each cost", ylabel="number")
    shares = [float(name[1:]) / 100 for name in percentiles]
    share.plot(list(percentiles.values()), shares, "k-", lw=1.2)
    share.yaxis.set_major_formatter(PercentFormatter(1.0))
    share.set(title="trajectories within a limit", ylabel="share", ylim=(0, 1.02))
    _limit_lines((count, share), inspection["limits"], index)
    for axis in (count, share):
        axis.set_xlabel(f"episode cost ({constraint['criterion']})")
    return svg(figure)


def _bars(axis: Axes, spread: dict[str, Any], **options: Any) -> None:
    axis.stairs(spread["counts"], spread["edges"], fill=True, color=DATA, **options)


def _limit_lines(axes: Sequence[Axes], limits: list[dict[str, Any]], index: int) -> None:
    for limit, colour in zip(limits, colours(len(limits)), strict=True):
        for axis in axes:
            axis.axvline(limit["values"][index], color=colour, lw=0.9, ls="--", label=limit["name"])
