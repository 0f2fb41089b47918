"""Past the paper: limits kept by reserve and by a shield, beside other rules and CDT."""

from __future__ import annotations

from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.plan import DATASETS, Judging, Needs, Setting
from saformer.experiments.pooling import comparison
from saformer.experiments.ways import CDT, COMPARED, IN_SHIELD, PROPOSED, REFERENCE, SHIELDED
from saformer.report.page import Part, Remark

CDT_UPDATES = {"paper": 15_000}
"""Fewer than SaFormer's: nine of them to 100,000 would take longer than all else here."""
ABOUT = (
    "In the first four rows of a limit every executed action is one that the policy proposed, "
    "unmodified; the shield makes actions cheaper where they would pass the limit, so that its "
    "rows prove nothing about what was learnt.",
    f"{SHIELDED}: the means, told the limit that earns most until the limit is spent, without "
    "reserve, since the limit is kept anyway.",
    f"{REFERENCE}: the same model told the largest cost of the data, acting by its mean, in a "
    "shield.",
)


def _needs(setting: Setting) -> Needs:
    """The nine models of Table 7, acting in four ways, and CDT on the same data."""
    models = list(setting.each(*DATASETS))
    rivals = setting.each(*DATASETS, agent="cdt", updates=CDT_UPDATES.get(setting.scale.name))
    judgings = [
        Judging(model, variant=name, options=options)
        for model in models
        for name, options in PROPOSED.items()
    ]
    judgings += [Judging(each, variant=SHIELDED, options=IN_SHIELD, shield=True) for each in models]
    judgings += [Judging(rival, variant=CDT) for rival in rivals]
    return Needs(judgings=tuple(judgings))


def _present(results: Results) -> list[Part]:
    """All in all, for each seed, and every cell."""
    verdicts = results.rows["verdicts"]
    counts = sorted({row["updates"] for row in verdicts if row["agent"] == "cdt"})
    trained = (f"CDT was trained for {count:,} updates." for count in counts)
    about = Remark((*ABOUT, *trained), "What the rows are")
    return [*comparison(verdicts, DATASETS, COMPARED), about]


EXPERIMENT = Experiment(
    name="safety",
    shows="past the paper",
    title="Limits kept by reserve and by a shield",
    description="The nine SaFormer models verify by the paper's rule, not at all, by reserve, and "
    "act in a shield; CDT on the same data; and a policy that heeds no limit, in a shield.",
    needs=_needs,
    present=_present,
)
