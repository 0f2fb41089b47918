"""Rows of several seeds as one cell, and cells as a table shows them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from saformer.data.statistics import mean_known
from saformer.evaluation.confidence import wilson_interval
from saformer.evaluation.nothing import NOTHING
from saformer.evaluation.verdict import TOLERANCE, Endings
from saformer.experiments.plan import LIMITS, Row
from saformer.experiments.published import Published
from saformer.report.figure import Line
from saformer.report.page import MARK_NOTE, Part, Sheet
from saformer.report.table import Cell, mark_of, numbers, percent

DRAWS = 2000
INTERVAL_NOTE = (
    "In brackets 95% intervals: of means by bootstrapping seeds and then episodes (of one seed, "
    "episodes alone), of shares by Wilson's formula. Share: (return - lowest stored return) / "
    "(frontier - lowest stored return), at most 1.25, the frontier being the mean of the five best "
    "stored returns within the limit. Ended: episodes that terminated before the horizon, and the "
    "data's; they may in the paper's experiments. Doing nothing: the action of least cost, held."
)
NOTE = f"{MARK_NOTE} {INTERVAL_NOTE}"
OURS = ("limit", "cost", "within", "ended (data)", "return", "share")
PAPERS = ("paper: cost / limit", "paper: return")
BOTH = (*OURS, *PAPERS)
TALLY = (
    *("", "limits met", "paper: limits met", "episodes within", "ended early (data)"),
    *("share: mean", "median", "mean, 0 where missed"),
)


class MeanInterval(NamedTuple):
    """A mean and its 95% interval."""

    mean: float
    low: float
    high: float

    @property
    def text(self) -> str:
        return f"{numbers([self.mean])} [{numbers([self.low])}, {numbers([self.high])}]"


@dataclass(frozen=True)
class Pooled:
    """All episodes of one cell."""

    limit_name: str
    limit: float
    cost: MeanInterval
    episode_return: MeanInterval
    within: float
    within_interval: tuple[float, float]
    share: float | None  # of the frontier, mean over the seeds; None with nothing to earn
    ended_early: float  # share of episodes
    endings: Endings

    @property
    def met(self) -> bool:
        """Eq. 1 over all episodes; where none may end early, hardly more do than in the data."""
        is_cheap = self.cost.mean <= self.limit + TOLERANCE
        return is_cheap and self.endings.tolerates(self.ended_early)

    @property
    def ended(self) -> str:
        """Beside the data's share."""
        return _ended(self.ended_early, self.endings.data_share)

    @property
    def safe_share(self) -> float | None:
        """The share, or 0 where the limit is not met."""
        return self.share if self.met or self.share is None else 0.0


def rows_with(rows: Sequence[Row], **values: Any) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def pooled(rows: Sequence[Row], **values: Any) -> Pooled | None:
    """The cell of all rows that have these values, one for each seed; None if there are none."""
    chosen = rows_with(rows, **values)
    if not chosen:
        return None
    costs = np.array([row["costs"] for row in chosen])  # [seeds, episodes]
    limit = float(chosen[0]["limit"])
    may_end = chosen[0].get("may_end", True)
    shares_of_data = [row.get("data_ended_early") for row in chosen]
    known = [math.nan if share is None else share for share in shares_of_data]
    ended = np.array([row.get("ended_early", np.zeros(costs.shape[1])) for row in chosen], bool)
    num_within = int(((costs <= limit + TOLERANCE) & (may_end | ~ended)).sum())
    shares = [row["frontier_share"] for row in chosen if row["frontier_share"] is not None]
    within = (num_within / costs.size, wilson_interval(num_within, costs.size))
    returns = mean_interval(np.array([row["returns"] for row in chosen]))
    share = float(np.mean(shares)) if shares else None
    figures = (mean_interval(costs), returns, *within, share, float(ended.mean()))
    endings = Endings(may_end, mean_known(known))
    return Pooled(chosen[0]["limit_name"], limit, *figures, endings)


def nothing_rows(verdicts: Sequence[Row]) -> list[Row]:
    """Doing nothing as one more variant, once for each dataset, limit and seed."""
    own = [row for row in verdicts if row.get("nothing")]
    keys = ("dataset", "limit", "cost_discount", "seed", "criteria")
    first = {tuple(str(row.get(key)) for key in keys): row for row in reversed(own)}
    return [{**row, "variant": NOTHING, **row["nothing"]} for row in first.values()]


def nothing_tally(verdicts: Sequence[Row], keys: Sequence[Row], name: str = "") -> list[list[Cell]]:
    """A tally of doing nothing over the cells of these keys; none where older rows lack it."""
    rows = nothing_rows(verdicts)
    return [tally(NOTHING + name, [pooled(rows, **key) for key in keys])] if rows else []


def mean_interval(values: NDArray[Any]) -> MeanInterval:
    """The mean of [seeds, episodes]; the interval resamples seeds, then episodes of each."""
    draw, (seeds, episodes) = np.random.default_rng(0), values.shape
    chosen = draw.integers(seeds, size=(DRAWS, seeds, 1))
    means = values[chosen, draw.integers(episodes, size=(DRAWS, seeds, episodes))].mean((1, 2))
    low, high = np.percentile(means, [2.5, 97.5]).tolist()
    return MeanInterval(float(values.mean()), low, high)


def our_cells(cell: Pooled | None, *, judged: bool = True) -> list[Cell]:
    """Under the headings `OURS`; without a verdict for an agent that heeds no limit."""
    if cell is None:
        return ["missing", *("-" for _ in OURS[1:])]
    cost, earned = cell.cost.text, cell.episode_return.text
    if not judged:
        return ["-", cost, "-", cell.ended, earned, "-"]
    low, high = cell.within_interval
    name = f"{cell.limit_name} = " if cell.limit_name[0] == "p" else ""
    within = f"{percent(cell.within)} [{100 * low:.0f}, {100 * high:.0f}]"
    share = "-" if cell.share is None else f"{cell.share:.2f}"
    coloured = (cost, mark_of(cell.met, cell.within))
    return [name + numbers([cell.limit]), coloured, within, cell.ended, earned, share]


def paper_cells(cell: Published | None) -> list[Cell]:
    """Printed numbers, under the headings `PAPERS`."""
    if cell is None:
        return ["-" for _ in PAPERS]
    limit = "" if cell.limit is None else f" / {numbers([cell.limit])}"
    cost = _with_spread(cell.cost, cell.cost_spread) + limit
    return [(cost, mark(cell.met)), _with_spread(cell.episode_return, cell.return_spread)]


def both_cells(ours: Pooled | None, papers: Published | None, **options: bool) -> list[Cell]:
    return [*our_cells(ours, **options), *paper_cells(papers)]


def tally(
    name: str, cells: Sequence[Pooled | None], published: Sequence[Published | None] = ()
) -> list[Cell]:
    """Limits met and shares earned over several cells, under the headings `TALLY`."""
    ours = [cell for cell in cells if cell is not None]
    printed = [cell for cell in published if cell is not None]
    shares = [cell.share for cell in ours if cell.share is not None]
    safe = [cell.safe_share for cell in ours if cell.safe_share is not None]
    endings = zip(*((cell.ended_early, cell.endings.data_share) for cell in ours), strict=True)
    earned = (np.mean(shares), np.median(shares), np.mean(safe)) if shares else ()
    return [
        name,
        f"{sum(cell.met for cell in ours)} of {len(ours)}",
        f"{sum(bool(cell.met) for cell in printed)} of {len(printed)}" if printed else "-",
        percent(float(np.mean([cell.within for cell in ours])) if ours else None),
        _ended(*(mean_known(each) for each in endings)) if ours else "-",
        *(f"{value:.2f}" for value in earned),
        *("-" for _ in range(3 - len(earned))),
    ]


def mark(met: bool | None) -> str:
    return "" if met is None else "met" if met else "missed"


def interval_line(
    label: str, x: Sequence[float], estimates: Sequence[MeanInterval], level: float | None = None
) -> Line:
    """Means, and their intervals as a shade."""
    means, lows, highs = ([getattr(e, name) for e in estimates] for name in ("mean", "low", "high"))
    return Line(label, x, means, lows, highs, level)


def compare_ways(verdicts: list[Row], datasets: Sequence[str], ways: Sequence[str]) -> list[Part]:
    """Ways of acting beside each other, as far as there are rows: all in all, for each seed, and
    under every limit."""
    verdicts = [*verdicts, *nothing_rows(verdicts)]
    made, trained_on = ({row[key] for row in verdicts} for key in ("variant", "dataset"))
    ways = [way for way in (*ways, NOTHING) if way in made]
    datasets = [dataset for dataset in datasets if dataset in trained_on]
    keys = [{"dataset": dataset, "limit_name": name} for dataset in datasets for name in LIMITS]
    rows = [
        [key["dataset"], way, *our_cells(pooled(verdicts, variant=way, **key))]
        for key in keys
        for way in ways
    ]
    parts = {"In all": verdicts}
    for seed in sorted({row["seed"] for row in verdicts}):
        parts[f"Seed {seed} alone"] = rows_with(verdicts, seed=seed)
    sheets: list[Part] = []
    for title, own in parts.items():
        cells = {way: [pooled(own, variant=way, **key) for key in keys] for way in ways}
        sheets.append(Sheet(title, TALLY, [tally(way, cells[way]) for way in ways]))
    return [*sheets, Sheet("Every limit", ("dataset", "policy", *OURS), rows, NOTE)]


def _ended(share: float, of_data: float) -> str:
    return f"{percent(share)} ({percent(None if math.isnan(of_data) else of_data)})"


def _with_spread(value: float | None, spread: float | None) -> str:
    if value is None:
        return "-"
    return numbers([value]) if spread is None else f"{numbers([value])} ± {numbers([spread])}"
