"""Tables 4 and 8: the same models with and without the critic's verification."""

from __future__ import annotations

from saformer.experiments.experiment import Experiment, Result
from saformer.experiments.plan import DATASETS, LIMITS, Judging, Needs, Setting
from saformer.experiments.pooling import (
    INTERVAL_NOTE,
    OURS,
    TALLY,
    THEIRS,
    our_cells,
    pooled,
    tally,
    their_cells,
)
from saformer.experiments.published import NOT_STATED, ODDITIES, published_cell
from saformer.report.sheet import MARK_NOTE, Part, Remark, Sheet, plain_cell

VARIANTS: dict[str, tuple[tuple[str, object], ...]] = {
    "critic": (),
    "no critic": (("rule", "none"),),
    "means alone": (("rule", "none"), ("candidates", 1)),
}
"""Options of the policy; the first of the candidates is the mean of both heads."""
Key = tuple[str, str, str]
"""Dataset, limit and variant."""


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
        (dataset, name, variant): pooled(
            result.rows["verdicts"], dataset=dataset, variant=variant, limit_name=name
        )
        for dataset in DATASETS
        for name in LIMITS
        for variant in VARIANTS
    }
    printed = {
        key: published_cell(8, dataset=key[0], limit_name=key[1], variant=key[2]) for key in cells
    }
    rows = [
        [plain_cell(key[0]), plain_cell(key[2]), *our_cells(cell), *their_cells(printed[key])]
        for key, cell in cells.items()
    ]
    parts = {"Table 4": _in_table_4, "Table 8": _in_table_8, "all four limits": lambda key: True}
    summary = []
    for part, belongs in parts.items():
        for variant in VARIANTS:
            keys = [key for key in cells if key[2] == variant and belongs(key)]
            theirs = [printed[key] for key in keys] if part != "all four limits" else []
            summary.append(tally(f"{part}, {variant}", [cells[key] for key in keys], theirs))
    headings = ("dataset", "variant", *OURS, *THEIRS)
    note = (
        f"{MARK_NOTE} {INTERVAL_NOTE} No critic: of N proposals the one that asks for the "
        "highest return is executed. "
        "Means alone: those of both heads, no proposals. Table 4 is the part on medium-expert data."
    )
    return [
        Sheet("In all", TALLY, summary),
        Sheet("With and without the critic (Tables 4 and 8)", headings, rows, note),
        Remark((*ODDITIES[4], *ODDITIES[8], NOT_STATED), "What is odd in the paper's"),
    ]


def _in_table_8(key: Key) -> bool:
    return key[1] != "p10"


def _in_table_4(key: Key) -> bool:
    return _in_table_8(key) and key[0].endswith("-medium-expert")


EXPERIMENT = Experiment(
    name="ablation",
    shows="Tables 4 and 8",
    title="Ablation of the critic",
    description="The nine SaFormer models act with the critic's verification, without it, and by their means alone.",
    needs=needs,
    present=present,
)
