"""Several ways to act beside each other: all in all, for each seed, and under every limit."""

from __future__ import annotations

from collections.abc import Sequence

from saformer.experiments.plan import LIMITS
from saformer.experiments.pooling import (
    INTERVAL_NOTE,
    OURS,
    TALLY,
    our_cells,
    pooled,
    select,
    tally,
)
from saformer.experiments.work import Row
from saformer.report.sheet import MARK_NOTE, Part, Sheet, plain_cell
from saformer.report.table import Cell

PROPOSED: dict[str, tuple[tuple[str, object], ...]] = {
    "paper's rule": (),
    "no critic": (("rule", "none"),),
    "by reserve": (("rule", "reserve"),),
}
"""Options of one model; what is executed is a proposal, unmodified."""


def beside_each_other(
    verdicts: Sequence[Row], datasets: Sequence[str], ways: Sequence[str]
) -> list[Part]:
    """The sheets that compare them."""
    rows = [
        [plain_cell(dataset), plain_cell(way), *our_cells(cell)]
        for dataset in datasets
        for name in LIMITS
        for way in ways
        for cell in [pooled(verdicts, dataset=dataset, variant=way, limit_name=name)]
    ]
    return [
        Sheet("In all", TALLY, _tallies(verdicts, datasets, ways)),
        *(
            Sheet(
                f"Seed {seed} alone", TALLY, _tallies(select(verdicts, seed=seed), datasets, ways)
            )
            for seed in sorted({row["seed"] for row in verdicts})
        ),
        Sheet("Every limit", ("dataset", "policy", *OURS), rows, f"{MARK_NOTE} {INTERVAL_NOTE}"),
    ]


def _tallies(
    verdicts: Sequence[Row], datasets: Sequence[str], ways: Sequence[str]
) -> list[list[Cell]]:
    return [
        tally(
            way,
            [
                pooled(verdicts, dataset=d, variant=way, limit_name=name)
                for d in datasets
                for name in LIMITS
            ],
        )
        for way in ways
    ]
