"""Past the paper: limits kept by reserve and by a shield, beside the paper's rule, no critic and CDT."""

from __future__ import annotations

from collections.abc import Sequence

from saformer.api.shielding import REFERENCE
from saformer.experiments.experiment import Experiment, Result
from saformer.experiments.plan import DATASETS, LIMITS, Judging, Needs, Setting
from saformer.experiments.pooling import INTERVAL_NOTE, OURS, TALLY, our_cells, pooled, select, tally
from saformer.experiments.work import Row
from saformer.report.sheet import MARK_NOTE, Part, Remark, Sheet, plain_cell

RESERVE = (("verification", "reserve"),)
VARIANTS: dict[str, tuple[tuple[str, object], ...]] = {
    "paper's rule": (),
    "no critic": (("verification", "off"),),
    "by reserve": RESERVE,
}
"""Options of the same models; what is executed is a proposal, unmodified."""
CDT, SHIELDED = "CDT", "by reserve + shield"
SHOWN = (*VARIANTS, CDT, SHIELDED, REFERENCE)


def needs(setting: Setting) -> Needs:
    """The nine models of Table 7, acting in four ways, and CDT on the same data."""
    models = list(setting.each(*DATASETS))
    return Needs(
        judgings=(
            *(Judging(model, variant=name, options=how) for model in models for name, how in VARIANTS.items()),
            *(Judging(model, variant=SHIELDED, options=RESERVE, shield=True) for model in models),
            *(Judging(model, variant=CDT) for model in setting.each(*DATASETS, agent="cdt")),
        )
    )


def present(result: Result) -> list[Part]:
    """All in all, for each seed, and every cell."""
    verdicts = result.rows["verdicts"]
    cells = {
        (dataset, name, variant): pooled(verdicts, dataset=dataset, variant=variant, limit_name=name)
        for dataset in DATASETS
        for name in LIMITS
        for variant in SHOWN
    }
    rows = [[plain_cell(key[0]), plain_cell(key[2]), *our_cells(cell)] for key, cell in cells.items()]
    return [
        Sheet("In all", TALLY, _tallies(verdicts)),
        *(
            Sheet(f"Seed {seed} alone", TALLY, _tallies(select(verdicts, seed=seed)))
            for seed in sorted({row["seed"] for row in verdicts})
        ),
        Sheet("Every limit", ("dataset", "policy", *OURS), rows, f"{MARK_NOTE} {INTERVAL_NOTE}"),
        Remark(
            (
                "In the first four rows of a limit every executed action is one that the policy proposed, unmodified; "
                "the shield makes actions cheaper where they would pass the limit, so that its rows prove nothing "
                "about what was learnt.",
                f"{REFERENCE}: the same model told the largest cost of the data, acting by its mean, in a shield.",
            ),
            "What the rows are",
        ),
    ]


def _tallies(verdicts: Sequence[Row]) -> list[list[tuple[str, str]]]:
    return [
        tally(
            variant,
            [pooled(verdicts, dataset=d, variant=variant, limit_name=name) for d in DATASETS for name in LIMITS],
        )
        for variant in SHOWN
    ]


EXPERIMENT = Experiment(
    name="safety",
    shows="past the paper",
    title="Limits kept by reserve and by a shield",
    description=(
        "The nine SaFormer models verify by the paper's rule, not at all, by reserve, and by reserve in a shield; "
        "CDT on the same data; and a policy that heeds no limit, in a shield."
    ),
    needs=needs,
    present=present,
)
