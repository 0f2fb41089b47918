"""Tables 4 and 8: the same models with and without the critic's verification."""

from __future__ import annotations

from saformer.experiments import pooling
from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.plan import DATASETS, LIMITS, Judging, Needs, Setting
from saformer.experiments.published import oddities, published_cell
from saformer.experiments.ways import ABLATED
from saformer.report.page import Part, Sheet

ABOUT = (
    "No critic: of N proposals the one that asks for the highest return is executed. Means alone: "
    "those of both heads, no proposals. Table 4 is the part on medium-expert data."
)


def _needs(setting: Setting) -> Needs:
    """The nine models of Table 7, acting in three ways."""
    judgings = [
        Judging(model, variant=variant, options=options)
        for model in setting.each(*DATASETS)
        for variant, options in ABLATED.items()
    ]
    return Needs(judgings=tuple(judgings))


def _present(results: Results) -> list[Part]:
    """Three rows for each dataset and limit; p10 is not in the paper's."""
    keys = [(dataset, name, way) for dataset in DATASETS for name in LIMITS for way in ABLATED]
    names = ("dataset", "limit_name", "variant")
    wanted = {key: dict(zip(names, key, strict=True)) for key in keys}
    cells = {key: pooling.pooled(results.rows["verdicts"], **wanted[key]) for key in keys}
    printed = {key: published_cell(8, **wanted[key]) for key in keys}
    rows = [
        [key[0], key[2], *pooling.our_cells(cells[key]), *pooling.paper_cells(printed[key])]
        for key in keys
    ]
    in_table_8 = [key for key in keys if key[1] != "p10"]
    in_table_4 = [key for key in in_table_8 if key[0].endswith("-medium-expert")]
    summary = []
    parts = {"Table 4": in_table_4, "Table 8": in_table_8, "all four limits": keys}
    for name, part in parts.items():
        for way in ABLATED:
            own = [key for key in part if key[2] == way]
            papers = [printed[key] for key in own if part is not keys]
            summary.append(pooling.tally(f"{name}, {way}", [cells[key] for key in own], papers))
    title, headings = "With and without the critic (Tables 4 and 8)", ("dataset", "variant")
    return [
        Sheet("In all", pooling.TALLY, summary),
        Sheet(title, (*headings, *pooling.OURS, *pooling.PAPERS), rows, f"{pooling.NOTE} {ABOUT}"),
        oddities(4, 8),
    ]


EXPERIMENT = Experiment(
    name="ablation",
    shows="Tables 4 and 8",
    title="Ablation of the critic",
    description="The nine SaFormer models act with the critic's verification, without it, and by "
    "their means alone.",
    needs=_needs,
    present=_present,
)
