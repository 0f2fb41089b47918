"""Rows of several seeds as one cell, and cells as a table shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.evaluation.confidence import wilson_interval
from saformer.evaluation.verdict import TOLERANCE
from saformer.experiments.published import Published
from saformer.experiments.work import Row
from saformer.report.sheet import plain_cell
from saformer.report.table import Cell, numbers, percent

DRAWS = 2000
INTERVAL_NOTE = (
    "In brackets 95% intervals: of means by bootstrapping seeds and then episodes (of one seed, "
    "episodes alone), of "
    "shares by Wilson's formula. Share: (return - lowest stored return) / (frontier - lowest "
    "stored return), at most "
    "1.25, the frontier being the mean of the five best stored returns within the limit."
)


@dataclass(frozen=True)
class Estimate:
    """A mean and where it lies with 95% confidence."""

    mean: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """For a table."""
        return f"{numbers([self.mean])} [{numbers([self.low])}, {numbers([self.high])}]"


@dataclass(frozen=True)
class Pooled:
    """All episodes of one cell."""

    limit_name: str
    limit: float
    cost: Estimate
    episode_return: Estimate
    within: float
    within_interval: tuple[float, float]
    share: float | None
    """mean over the seeds of the frontier share; None where the data has no frontier"""
    num_seeds: int

    @property
    def met(self) -> bool:
        """Eq. 1 over all episodes."""
        return self.cost.mean <= self.limit + TOLERANCE

    @property
    def safe_share(self) -> float | None:
        """The share, or 0 where the limit is not met."""
        return self.share if self.met or self.share is None else 0.0


def select(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def pooled(rows: Sequence[Row], **wanted: Any) -> Pooled | None:
    """The cell of all rows that have these values, one for each seed; None if there are none."""
    chosen = select(rows, **wanted)
    if not chosen:
        return None
    costs = np.array([row["costs"] for row in chosen])  # [seeds, episodes]
    limit = float(chosen[0]["limit"])
    num_within = int((costs <= limit + TOLERANCE).sum())
    shares = [row["frontier_share"] for row in chosen if row["frontier_share"] is not None]
    return Pooled(
        limit_name=chosen[0]["limit_name"],
        limit=limit,
        cost=estimate(costs),
        episode_return=estimate(np.array([row["returns"] for row in chosen])),
        within=num_within / costs.size,
        within_interval=wilson_interval(num_within, costs.size),
        share=float(np.mean(shares)) if shares else None,
        num_seeds=len(chosen),
    )


def estimate(values: NDArray[Any]) -> Estimate:
    """The mean of [seeds, episodes], and its interval by resampling seeds, then episodes of
    each."""
    draw, (seeds, episodes) = np.random.default_rng(0), values.shape
    chosen = draw.integers(seeds, size=(DRAWS, seeds, 1))
    means = values[chosen, draw.integers(episodes, size=(DRAWS, seeds, episodes))].mean((1, 2))
    low, high = np.percentile(means, [2.5, 97.5]).tolist()
    return Estimate(float(values.mean()), low, high)


OURS = ("limit", "cost", "within", "return", "share")
THEIRS = ("paper: cost / limit", "paper: return")


def our_cells(cell: Pooled | None, *, judged: bool = True) -> list[Cell]:
    """What was found, under the headings of `OURS`; without a verdict for what heeds no limit."""
    if cell is None:
        return [plain_cell("missing"), *(plain_cell("-") for _ in OURS[1:])]
    low, high = cell.within_interval
    if not judged:
        return [
            plain_cell("-"),
            plain_cell(cell.cost.text),
            plain_cell("-"),
            plain_cell(cell.episode_return.text),
            plain_cell("-"),
        ]
    return [
        plain_cell(
            f"{cell.limit_name} = {numbers([cell.limit])}"
            if cell.limit_name[0] == "p"
            else numbers([cell.limit])
        ),
        (cell.cost.text, mark(cell.met)),
        plain_cell(f"{percent(cell.within)} [{100 * low:.0f}, {100 * high:.0f}]"),
        plain_cell(cell.episode_return.text),
        plain_cell("-" if cell.share is None else f"{cell.share:.2f}"),
    ]


def their_cells(cell: Published | None) -> list[Cell]:
    """What was printed, under the headings of `THEIRS`."""
    if cell is None:
        return [plain_cell("-") for _ in THEIRS]
    limit = "" if cell.limit is None else f" / {numbers([cell.limit])}"
    return [
        (_with_spread(cell.cost, cell.cost_spread) + limit, mark(cell.met)),
        plain_cell(_with_spread(cell.episode_return, cell.return_spread)),
    ]


TALLY = (
    "",
    "limits met",
    "paper: limits met",
    "episodes within",
    "share: mean",
    "median",
    "mean, 0 where missed",
)


def tally(
    what: str, cells: Sequence[Pooled | None], published: Sequence[Published | None] = ()
) -> list[Cell]:
    """How many limits were met and what was earned over several cells, under the headings of
    `TALLY`."""
    found, printed = (
        [cell for cell in cells if cell is not None],
        [cell for cell in published if cell is not None],
    )
    shares = [cell.share for cell in found if cell.share is not None]
    safe = [cell.safe_share for cell in found if cell.safe_share is not None]
    earned = (np.mean(shares), np.median(shares), np.mean(safe)) if shares else ()
    texts = (
        what,
        f"{sum(cell.met for cell in found)} of {len(found)}",
        f"{sum(bool(cell.met) for cell in printed)} of {len(printed)}" if printed else "-",
        percent(float(np.mean([cell.within for cell in found])) if found else None),
        *(f"{value:.2f}" for value in earned),
        *("-" for _ in range(3 - len(earned))),
    )
    return [plain_cell(text) for text in texts]


def mark(met: bool | None) -> str:
    """How a cell is coloured."""
    return "" if met is None else "met" if met else "missed"


def _with_spread(value: float | None, spread: float | None) -> str:
    if value is None:
        return "-"
    return numbers([value]) if spread is None else f"{numbers([value])} ± {numbers([spread])}"
