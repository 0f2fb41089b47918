"""Table 3, Figure 4: limits below the data's, before and after online fine-tuning (Algorithm 3).

And the same where effort is cheap: the dearer half of two datasets is all that a run sees."""

from saformer.experiments import pooling
from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.plan import FROM, LIMITS, Judging, Needs, Row, Setting
from saformer.experiments.published import oddities, published
from saformer.report.figure import Line, Panel, line_panels
from saformer.report.page import Part, Picture, Sheet
from saformer.report.table import Cell, numbers

DATASET = "halfcheetah-medium-replay"
OUT_OF_SAMPLE = ("94.2", "95.5", "96.7", "98.0", "99.3")
"""Percents of p10: the paper's 3700, 3750, 3800, 3850 and 3900 of its 3928."""
VARIANTS = ("offline", "fine-tuned")
HEADINGS = (
    *("limit", "", "cost, offline", "cost, fine-tuned", "within, fine-tuned", "ended (data)"),
    *("return, offline", "return, fine-tuned", "paper: offline", "paper: fine-tuned"),
)


def _needs(setting: Setting) -> Needs:
    """A model that never saw the cheapest tenth, before and after fine-tuning."""
    below = (f"{float(percent) * setting.scale.below:.1f}" for percent in OUT_OF_SAMPLE)
    limits, judgings = (*below, *LIMITS), list[Judging]()
    for model in setting.each(f"{DATASET}{FROM}p10"):
        judgings += [Judging(model, limits, each, finetuned=each != "offline") for each in VARIANTS]
    return Needs(judgings=tuple(judgings))


def _present(results: Results) -> list[Part]:
    verdicts = results.rows["verdicts"]
    limits = sorted({(row["limit"], row["limit_name"]) for row in verdicts})
    cells, printed = {}, {}
    for variant in VARIANTS:
        own = pooling.rows_with(verdicts, variant=variant)
        cells[variant] = [pooling.pooled(own, limit_name=name) for _, name in limits]
        printed[variant] = sorted(published(3, variant=variant), key=lambda cell: cell.limit or 0)
    rows = []
    for index, (limit, _) in enumerate(limits):
        before, after = (pooling.our_cells(cells[variant][index]) for variant in VARIANTS)
        papers = [pooling.paper_cells(printed[variant][index])[0] for variant in VARIANTS]
        kind = "out of sample" if index < len(OUT_OF_SAMPLE) else "in sample"
        ours = (before[1], after[1], after[2], after[3], before[4], after[4])
        rows.append([numbers([limit]), kind, *ours, *papers])
    levels = [limit for limit, _ in limits]
    costs = [_line(cells[each], each, "cost") for each in VARIANTS]
    returns = [_line(cells[each], each, "episode_return") for each in VARIANTS]
    cost = Panel("cost", [*costs, Line("limit", levels, levels)], "limit", "episode cost")
    earned = Panel("return", returns, "limit", "episode return")
    figure = line_panels([cost, earned], columns=2)
    summary = [pooling.tally(each, cells[each], printed[each]) for each in VARIANTS]
    summary += pooling.nothing_tally(verdicts, [{"limit_name": name} for _, name in limits])
    return [
        Sheet("In all", pooling.TALLY, summary),
        Sheet("Below the data's costs (Table 3)", HEADINGS, rows, pooling.NOTE),
        Picture("Cost against limit (Figure 4)", figure, "Shaded: 95% intervals."),
        oddities(3),
    ]


def _line(cells: list[pooling.Pooled | None], variant: str, key: str) -> Line:
    own = [cell for cell in cells if cell is not None]
    limits = [cell.limit for cell in own]
    return pooling.interval_line(variant, limits, [getattr(cell, key) for cell in own])


FINETUNING = Experiment(
    *("finetuning", "Table 3, Figure 4", "Online constraint fine-tuning"),
    f"SaFormer on {DATASET} without its cheapest trajectories, before and after fine-tuning for "
    "limits below them.",
    _needs,
    _present,
)

EFFORT_DATASETS = ("halfcheetah-effort", "walker2d-effort")
BELOW = ("p20", "p30")
BELOW_HEADINGS = ("dataset", "", *pooling.OURS, "share of the whole")
ABOUT_BELOW = (
    "The runs saw only episodes that cost at least the median. Limits are percentiles of the "
    "whole data; so is the frontier that the last column is a share of, which no run saw."
)


def _needs_below(setting: Setting) -> Needs:
    """Models of the dearer halves, before and after fine-tuning for limits below them."""
    datasets, judgings = setting.some(EFFORT_DATASETS), list[Judging]()
    for model in setting.each(*(f"{name}{FROM}p50" for name in datasets), published=False):
        judgings += [Judging(model, BELOW, each, finetuned=each != "offline") for each in VARIANTS]
    return Needs(datasets, tuple(judgings))


def _present_below(results: Results) -> list[Part]:
    verdicts, rows = results.rows["verdicts"], list[list[Cell]]()
    verdicts = [*verdicts, *pooling.nothing_rows(verdicts)]
    ways = [way for way in (*VARIANTS, pooling.NOTHING) if pooling.rows_with(verdicts, variant=way)]
    for data in results.rows["data"]:
        own = pooling.rows_with(verdicts, dataset=f"{data['dataset']}{FROM}p50")
        limits = sorted({(row["limit"], row["limit_name"]) for row in own})
        for (_, name), percentile in zip(limits, BELOW, strict=True):
            for way in ways:
                cell = pooling.pooled(own, limit_name=name, variant=way)
                share = _share_of_whole(cell, data, percentile)
                rows.append([data["dataset"], way, *pooling.our_cells(cell), share])
    return [Sheet("Below the dearer half", BELOW_HEADINGS, rows, f"{ABOUT_BELOW} {pooling.NOTE}")]


def _share_of_whole(cell: pooling.Pooled | None, data: Row, percentile: str) -> str:
    lowest, frontier = data["lowest_return"], data["frontier"][percentile]
    if cell is None or frontier is None:
        return "-"
    return f"{(cell.episode_return.mean - lowest) / (frontier - lowest):.2f}"


EXPLORATION = Experiment(
    *("exploration", "Table 3 on other data", "Limits below the data, explored"),
    "SaFormer by our rule on the dearer half of two datasets from standing to running, before and "
    "after fine-tuning for limits below that half.",
    _needs_below,
    _present_below,
)
