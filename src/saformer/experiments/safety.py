"""Past the paper: limits kept by reserve and by a shield, beside the paper's rule, no critic and
CDT."""

from __future__ import annotations

from saformer.api.judge import REFERENCE
from saformer.experiments.experiment import Experiment, Result
from saformer.experiments.plan import DATASETS, Judging, Needs, Setting
from saformer.experiments.ways import PROPOSED, beside_each_other
from saformer.report.sheet import Part, Remark

CDT, SHIELDED = "CDT", "told what earns most + shield"
TOLD = (("rule", "reserve"), ("enforce", False), ("candidates", 1))
"""As policies act in a shield unless told otherwise."""
SHOWN = (*PROPOSED, CDT, SHIELDED, REFERENCE)
CDT_UPDATES = {"paper": 15_000}
"""Fewer than SaFormer's: nine of them to 100,000 would take longer than all else here."""


def needs(setting: Setting) -> Needs:
    """The nine models of Table 7, acting in four ways, and CDT on the same data."""
    models = list(setting.each(*DATASETS))
    rivals = setting.each(*DATASETS, agent="cdt", updates=CDT_UPDATES.get(setting.scale.name))
    return Needs(
        judgings=(
            *(
                Judging(model, variant=name, options=how)
                for model in models
                for name, how in PROPOSED.items()
            ),
            *(Judging(model, variant=SHIELDED, options=TOLD, shield=True) for model in models),
            *(Judging(rival, variant=CDT) for rival in rivals),
        )
    )


def present(result: Result) -> list[Part]:
    """All in all, for each seed, and every cell."""
    return [
        *beside_each_other(result.rows["verdicts"], DATASETS, SHOWN),
        Remark(
            (
                "In the first four rows of a limit every executed action is one that the policy "
                "proposed, unmodified; "
                "the shield makes actions cheaper where they would pass the limit, so that its "
                "rows prove nothing "
                "about what was learnt.",
                f"{SHIELDED}: the means, told the limit that earns most until the limit is "
                "spent, without reserve, "
                "since the limit is kept anyway.",
                f"{REFERENCE}: the same model told the largest cost of the data, acting by its "
                "mean, in a shield.",
                *(f"CDT was trained for {updates:,} updates." for updates in _cdt_updates(result)),
            ),
            "What the rows are",
        ),
    ]


def _cdt_updates(result: Result) -> list[int]:
    return sorted({row["updates"] for row in result.rows["verdicts"] if row["agent"] == "cdt"})


EXPERIMENT = Experiment(
    name="safety",
    shows="past the paper",
    title="Limits kept by reserve and by a shield",
    description=(
        "The nine SaFormer models verify by the paper's rule, not at all, by reserve, and act in "
        "a shield; "
        "CDT on the same data; and a policy that heeds no limit, in a shield."
    ),
    needs=needs,
    present=present,
)
