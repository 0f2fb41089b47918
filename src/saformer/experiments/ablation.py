"""Tables 4 and 8: the same models with and without the critic's verification."""

from __future__ import annotations

from saformer.experiments.experiment import Experiment, Result
from saformer.experiments.plan import DATASETS, LIMITS, Judging, Needs, Setting
from saformer.experiments.pooling import INTERVAL_NOTE, OURS, THEIRS, our_cells, pooled, tally, their_cells
from saformer.experiments.published import NOT_STATED, ODDITIES, published_cell
from saformer.report.sheet import MARK_NOTE, Part, Remark, Sheet, plain_cell

VARIANTS: dict[str, tuple[tuple[str, object], ...]] = {
    "critic": (),
    "no critic": (("verification", "off"),),
    "no critic, N = 1": (("verification", "off"), ("candidates", 1)),
}
"""Options of the policy; with one candidate it acts by the means of both heads."""
IN_TABLE_4 = ("halfcheetah-medium-expert", "walker2d-medium-expert", "hopper-medium-expert")


def needs(setting: Setting) -> Needs:
    """The nine models of Table 7, acting in three ways."""
    return Needs(
        judgings=tuple(
            Judging(model, variant=variant, options=options)
            for model in setting.each(*DATASETS)
            for variant, options in VARIANTS.items()
        )
    )


def present(result: Result) -> list[Part]:
    """Three rows for each dataset and limit; p10 is not in the paper's."""
    cells = {
        (dataset, name, variant): pooled(result.rows["verdicts"], dataset=dataset, variant=variant, limit_name=name)
        for dataset in DATASETS
        for name in LIMITS
        for variant in VARIANTS
    }
    printed = {key: published_cell(8, dataset=key[0], limit_name=key[1], variant=key[2]) for key in cells}
    rows = [
        [plain_cell(key[0]), plain_cell(key[2]), *our_cells(cell), *their_cells(printed[key])]
        for key, cell in cells.items()
    ]
    summary = [
        tally(
            [c for k, c in cells.items() if k[2] == variant],
            [c for k, c in printed.items() if k[2] == variant],
            what=f"Table 8, {variant}",
        )
        for variant in VARIANTS
    ] + [
        tally(
            [cells[k] for k in _of_table_4(cells, variant)],
            [printed[k] for k in _of_table_4(cells, variant)],
            what=f"Table 4, {variant}",
        )
        for variant in VARIANTS
    ]
    headings = ("dataset", "variant", *OURS, *THEIRS)
    note = (
        f"{MARK_NOTE} {INTERVAL_NOTE} No critic: of N proposals the one that asks for the highest return is executed. "
        "N = 1: the means of both heads. Table 4 is the part on medium-expert data."
    )
    return [
        Remark(tuple(summary)),
        Sheet("With and without the critic (Tables 4 and 8)", headings, rows, note),
        Remark((*ODDITIES[4], *ODDITIES[8], NOT_STATED), "What is odd in the paper's"),
    ]


def _of_table_4(cells: dict[tuple[str, str, str], object], variant: str) -> list[tuple[str, str, str]]:
    return [key for key in cells if key[0] in IN_TABLE_4 and key[1] != "p10" and key[2] == variant]


EXPERIMENT = Experiment(
    name="ablation",
    shows="Tables 4 and 8",
    title="Ablation of the critic",
    description="The nine SaFormer models act with the critic's verification, without it, and by their means alone.",
    needs=needs,
    present=present,
)
