"""Tables 2 and 7: one model for each dataset, four limits without retraining, DT for reference."""

import math

from saformer.data.statistics import rank_correlation
from saformer.experiments import pooling
from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.plan import CHEETAHS, DATASETS, LIMITS, Judging, Needs, Row, Setting
from saformer.experiments.published import oddities, published_cell
from saformer.report.page import MARK_NOTE, Part, Sheet
from saformer.report.table import Cell, mark_of, numbers

TEN = "ten limits"
TEN_LIMITS = tuple(f"p{percent}" for percent in range(5, 100, 10))
ABOUT_TEN = (
    f"Mean cost / limit. {MARK_NOTE} Rank correlation: Spearman's, of the limit and an episode's "
    "cost. The paper has no such table."
)
ABOUT_DT = (
    "Asked for a return of 6000 (HalfCheetah), 5000 (Walker2d) and 3600 (Hopper), as in the paper."
)


def _needs(setting: Setting) -> Needs:
    models, episodes = list(setting.each(*DATASETS)), setting.scale.swept_episodes
    judgings = [Judging(model) for model in models]
    judgings += [Judging(model, TEN_LIMITS, TEN, episodes=episodes) for model in models]
    judgings += [Judging(model, LIMITS[:1]) for model in setting.each(*DATASETS, agent="dt")]
    return Needs(judgings=tuple(judgings))


def _present(results: Results) -> list[Part]:
    """Table 2 is the first twelve rows of Table 7."""
    own = pooling.rows_with(results.rows["verdicts"], agent="saformer", variant="")
    keys = [(dataset, name) for dataset in DATASETS for name in LIMITS]
    cells = {key: pooling.pooled(own, dataset=key[0], limit_name=key[1]) for key in keys}
    printed = {key: published_cell(7, dataset=key[0], limit_name=key[1]) for key in keys}
    rows = [[key[0], *pooling.both_cells(cells[key], printed[key])] for key in keys]
    main = [key for key in keys if key[0] in CHEETAHS]
    summary = [
        pooling.tally(name, [cells[key] for key in some], [printed[key] for key in some])
        for name, some in (("Table 2 (HalfCheetah)", main), ("Table 7 (all datasets)", keys))
    ]
    summary += pooling.nothing_tally(
        own, [{"dataset": key[0], "limit_name": key[1]} for key in keys]
    )
    title = "Constraint adaptation (Tables 2 and 7)"
    return [
        Sheet("In all", pooling.TALLY, summary),
        Sheet(title, ("dataset", *pooling.BOTH), rows, pooling.NOTE),
        _ten_limits(pooling.rows_with(results.rows["verdicts"], agent="saformer", variant=TEN)),
        _reference(pooling.rows_with(results.rows["verdicts"], agent="dt")),
        oddities(7),
    ]


def _ten_limits(verdicts: list[Row]) -> Sheet:
    """Costs under ten limits, and whether they follow the limits."""
    rows: list[list[Cell]] = []
    for dataset in DATASETS:
        own = pooling.rows_with(verdicts, dataset=dataset)
        limits = [row["limit"] for row in own for _ in row["costs"]]
        costs = [cost for row in own for cost in row["costs"]]
        follows = rank_correlation(limits, costs) if own else math.nan
        cells = [_cost(pooling.pooled(own, limit_name=name)) for name in TEN_LIMITS]
        rows.append([dataset, "-" if math.isnan(follows) else f"{follows:.2f}", *cells])
    headings = ("dataset", "rank correlation", *TEN_LIMITS)
    return Sheet("Ten limits from p5 to p95", headings, rows, ABOUT_TEN)


def _cost(cell: pooling.Pooled | None) -> Cell:
    if cell is None:
        return "-"
    text = f"{numbers([cell.cost.mean])} / {numbers([cell.limit])}"
    return text, mark_of(cell.met, cell.within)


def _reference(verdicts: list[Row]) -> Sheet:
    rows = []
    for dataset in DATASETS:
        ours = pooling.our_cells(pooling.pooled(verdicts, dataset=dataset), judged=False)
        papers = pooling.paper_cells(published_cell(7, dataset=dataset, agent="dt"))
        rows.append([dataset, ours[1], ours[4], *papers])
    headings = ("dataset", "cost", "return", "paper: cost", "paper: return")
    return Sheet("DT, for reference (Tables 2 and 7)", headings, rows, ABOUT_DT)


ADAPTATION = Experiment(
    *("adaptation", "Tables 2 and 7", "Constraint adaptation"),
    "One SaFormer for each of nine datasets keeps the 10th, 20th, 30th and 50th percentile of the "
    "data's costs without retraining; DT for reference; ten more limits from p5 to p95.",
    _needs,
    _present,
)
