"""Tables 4 and 8: models with and without the critic. Figure 5: how many proposals they need."""

from saformer.experiments import pooling
from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.plan import DATASETS, LIMITS, Needs, Setting, in_each_way
from saformer.experiments.published import oddities, published_cell
from saformer.experiments.ways import ABLATED
from saformer.report.figure import Line, Panel, line_panels
from saformer.report.page import Part, Picture, Remark, Sheet
from saformer.report.table import Cell

DATASET = "hopper-medium-expert"
SHOWN_LIMITS = ("p20", "p30", "p50")
ABOUT_CURVES = (
    "Shaded: 95% intervals. The paper's curves have no printed numbers; its limits are 683, 742 "
    "and 856 on D4RL's data."
)
ABOUT_VARIANTS = (
    "No critic: of N proposals the one that asks for the highest return is executed. Means alone: "
    "those of both heads, no proposals. Table 4 is the part on medium-expert data."
)


def _needs_ablation(setting: Setting) -> Needs:
    """The nine models of Table 7, acting in three ways."""
    return Needs(judgings=in_each_way(setting.each(*DATASETS), ABLATED))


def _present_ablation(results: Results) -> list[Part]:
    """Three rows for each dataset and limit; p10 is not in the paper's."""
    keys = [(dataset, name, way) for dataset in DATASETS for name in LIMITS for way in ABLATED]
    names = ("dataset", "limit_name", "variant")
    wanted = {key: dict(zip(names, key, strict=True)) for key in keys}
    cells = {key: pooling.pooled(results.rows["verdicts"], **wanted[key]) for key in keys}
    printed = {key: published_cell(8, **wanted[key]) for key in keys}
    rows = [[key[0], key[2], *pooling.both_cells(cells[key], printed[key])] for key in keys]
    in_table_8 = [key for key in keys if key[1] != "p10"]
    in_table_4 = [key for key in in_table_8 if key[0].endswith("-medium-expert")]
    summary = []
    parts = {"Table 4": in_table_4, "Table 8": in_table_8, "all four limits": keys}
    for name, part in parts.items():
        for way in ABLATED:
            own = [key for key in part if key[2] == way]
            papers = [printed[key] for key in own if part is not keys]
            summary.append(pooling.tally(f"{name}, {way}", [cells[key] for key in own], papers))
    limits = [{"dataset": dataset, "limit_name": name} for dataset in DATASETS for name in LIMITS]
    summary += pooling.nothing_tally(results.rows["verdicts"], limits)
    title, headings = "With and without the critic (Tables 4 and 8)", ("dataset", "variant")
    return [
        Sheet("In all", pooling.TALLY, summary),
        Sheet(title, (*headings, *pooling.BOTH), rows, f"{pooling.NOTE} {ABOUT_VARIANTS}"),
        oddities(4, 8),
    ]


ABLATION = Experiment(
    *("ablation", "Tables 4 and 8", "Ablation of the critic"),
    "The nine SaFormer models act with the critic's verification, without it, and by their means "
    "alone.",
    _needs_ablation,
    _present_ablation,
)


def needs_proposals(setting: Setting, dataset: str) -> Needs:
    """One model, acting with N = 1, 2, 4, ... proposals."""
    ways = {f"N = {count}": (("candidates", count),) for count in setting.scale.candidates}
    return Needs(judgings=in_each_way(setting.each(dataset), ways, SHOWN_LIMITS))


def present_proposals(results: Results, dataset: str) -> list[Part]:
    """Figure 5, and its numbers."""
    verdicts = [row for row in results.rows["verdicts"] if row["variant"].startswith("N = ")]
    counts = sorted({int(row["variant"].removeprefix("N = ")) for row in verdicts})
    if not counts:
        return [Remark(("Nothing was measured.",))]
    rows, costs, returns = list[list[Cell]](), list[Line](), list[Line]()
    for name in SHOWN_LIMITS:
        under = pooling.rows_with(verdicts, limit_name=name)
        cells = {count: pooling.pooled(under, variant=f"N = {count}") for count in counts}
        rows += [[str(count), *pooling.our_cells(cell)] for count, cell in cells.items()]
        measured = {float(count): cell for count, cell in cells.items() if cell is not None}
        x, own = list(measured), list(measured.values())
        limit = own[0].limit if own else None
        costs.append(pooling.interval_line(name, x, [cell.cost for cell in own], limit))
        returns.append(pooling.interval_line(name, x, [cell.episode_return for cell in own]))
    cost = Panel("cost (dashed: the limits)", costs, "N", "episode cost")
    earned = Panel("return", returns, "N", "episode return")
    figure = line_panels([cost, earned], columns=2, log_x=True)
    shares = []
    for count in counts:
        own_rows = pooling.rows_with(verdicts, variant=f"N = {count}")
        totals = (sum(row[key] for row in own_rows) for key in ("resampled", "fell_back"))
        shares.append([str(count), *(f"{total / len(own_rows):.0%}" for total in totals)])
    title = "Steps that took more than one round, and steps that the fallback decided"
    return [
        Picture(f"Sensitivity to N on {dataset} (Figure 5)", figure, ABOUT_CURVES),
        Sheet("The same in numbers", ("N", *pooling.OURS), rows, pooling.NOTE),
        Sheet(title, ("N", "redrawn", "fallback"), shares),
    ]


SENSITIVITY = Experiment(
    *("sensitivity", "Figure 5", "Sensitivity to the number of proposals"),
    f"One SaFormer on {DATASET} acts with N = 1, 2, 4, ..., 512 proposals under three limits.",
    lambda setting: needs_proposals(setting, DATASET),
    lambda results: present_proposals(results, DATASET),
)
