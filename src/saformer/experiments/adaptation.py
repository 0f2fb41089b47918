"""Tables 2 and 7: one model for each dataset, four limits it was not retrained for, and DT for
reference."""

from __future__ import annotations

import math

from saformer.data.statistics import rank_correlation
from saformer.experiments.experiment import Experiment, Result
from saformer.experiments.plan import (
    CHEETAHS,
    DATASETS,
    LIMITS,
    TEN_LIMITS,
    UNHEEDED,
    Judging,
    Needs,
    Setting,
)
from saformer.experiments.pooling import (
    INTERVAL_NOTE,
    OURS,
    TALLY,
    THEIRS,
    mark,
    our_cells,
    pooled,
    select,
    tally,
    their_cells,
)
from saformer.experiments.published import NOT_STATED, ODDITIES, published_cell
from saformer.report.sheet import MARK_NOTE, Part, Remark, Sheet, plain_cell
from saformer.report.table import Cell, numbers

TEN = "ten limits"


def needs(setting: Setting) -> Needs:
    """Nine models of SaFormer, judged twice, and nine of DT."""
    models = list(setting.each(*DATASETS))
    return Needs(
        judgings=(
            *(Judging(model) for model in models),
            *(
                Judging(model, TEN_LIMITS, TEN, episodes=setting.scale.swept_episodes)
                for model in models
            ),
            *(Judging(model, UNHEEDED) for model in setting.each(*DATASETS, agent="dt")),
        )
    )


def present(result: Result) -> list[Part]:
    """Table 2 is the first twelve rows of Table 7."""
    verdicts = result.rows["verdicts"]
    cells = {
        (dataset, name): pooled(
            verdicts, dataset=dataset, agent="saformer", variant="", limit_name=name
        )
        for dataset in DATASETS
        for name in LIMITS
    }
    printed = {
        (dataset, name): published_cell(7, dataset=dataset, agent="saformer", limit_name=name)
        for dataset, name in cells
    }
    rows = [
        [plain_cell(key[0]), *our_cells(cell), *their_cells(printed[key])]
        for key, cell in cells.items()
    ]
    main = [key for key in cells if key[0] in CHEETAHS]
    summary = [
        tally(
            "Table 2 (HalfCheetah)", [cells[key] for key in main], [printed[key] for key in main]
        ),
        tally("Table 7 (all datasets)", list(cells.values()), list(printed.values())),
    ]
    return [
        Sheet("In all", TALLY, summary),
        Sheet(
            "Constraint adaptation (Tables 2 and 7)",
            ("dataset", *OURS, *THEIRS),
            rows,
            f"{MARK_NOTE} {INTERVAL_NOTE}",
        ),
        _ten_limits(result),
        _reference(result),
        Remark((*ODDITIES[7], NOT_STATED), "What is odd in the paper's"),
    ]


def _ten_limits(result: Result) -> Sheet:
    """Costs under ten limits, and whether they follow the limits."""
    rows: list[list[Cell]] = []
    for dataset in DATASETS:
        own = select(result.rows["verdicts"], dataset=dataset, agent="saformer", variant=TEN)
        found = [pooled(own, limit_name=name) for name in TEN_LIMITS]
        given = [row["limit"] for row in own for _ in row["costs"]]
        follows = (
            rank_correlation(given, [cost for row in own for cost in row["costs"]])
            if own
            else math.nan
        )
        cells = [
            ("-", "")
            if c is None
            else (f"{numbers([c.cost.mean])} / {numbers([c.limit])}", mark(c.met))
            for c in found
        ]
        rows.append(
            [
                plain_cell(dataset),
                plain_cell("-" if math.isnan(follows) else f"{follows:.2f}"),
                *cells,
            ]
        )
    note = (
        f"Mean cost / limit. {MARK_NOTE} Rank correlation: Spearman's, of the limit and an "
        "episode's cost. "
        "The paper has no such table."
    )
    return Sheet(
        "Ten limits from p5 to p95", ("dataset", "rank correlation", *TEN_LIMITS), rows, note
    )


def _reference(result: Result) -> Sheet:
    """DT, which heeds no limit."""
    rows = []
    for dataset in DATASETS:
        cell = pooled(result.rows["verdicts"], dataset=dataset, agent="dt")
        theirs = published_cell(7, dataset=dataset, agent="dt")
        ours = our_cells(cell, judged=False)
        rows.append([plain_cell(dataset), ours[1], ours[3], *their_cells(theirs)])
    headings = ("dataset", "cost", "return", "paper: cost", "paper: return")
    note = "Asked for a return of 6000 (HalfCheetah), 5000 (Walker2d) and 3600 (Hopper), as in the paper."
    return Sheet("DT, for reference (Tables 2 and 7)", headings, rows, note)


EXPERIMENT = Experiment(
    name="adaptation",
    shows="Tables 2 and 7",
    title="Constraint adaptation",
    description=(
        "One SaFormer for each of nine datasets keeps the 10th, 20th, 30th and 50th percentile "
        "of the data's costs "
        "without retraining; DT for reference; ten more limits from p5 to p95."
    ),
    needs=needs,
    present=present,
)
