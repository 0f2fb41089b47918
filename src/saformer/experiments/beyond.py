"""Past the paper: limits by our rule and in a shield; and a cost that no shield can enforce."""

from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.plan import DATASETS, Judging, Needs, Setting, Training, in_each_way
from saformer.experiments.pooling import compare_ways
from saformer.experiments.ways import CDT, COMPARED, IN_SHIELD, PROPOSED, PUBLISHED_ROW, SHIELDED
from saformer.report.page import Part, Remark

CDT_UPDATES = {"paper": 15_000}
"""Fewer than SaFormer's: nine of them to 100,000 would take longer than all else here."""
TOO_FAST = {
    "halfcheetah-medium": "above(next_state[8], 4)",
    "walker2d-medium": "above(next_state[8], 2)",
    "hopper-medium": "above(next_state[5], 2)",
}
"""Speed forwards (m/s) in excess of a bound that about three quarters of the data's steps keep."""
SPEED_UPDATES = {"paper": 40_000}
ABOUT = (
    "The first three rows of a limit are one model; as published: another, with the paper's losses "
    "and rule. In the first five each executed action is one that the policy proposed, unmodified; "
    "the shield makes actions cheaper where they would pass the limit, so that its rows prove "
    "nothing about what was learnt.",
    f"{SHIELDED}: our rule with the expected action as its only candidate, in a shield.",
    f"{COMPARED[-1]}: the same model told the largest cost of the data, acting by its mean, in a "
    "shield.",
)


def _needs_safety(setting: Setting) -> Needs:
    """A model of ours on each dataset, acting in four ways; those of Table 7; CDT."""
    models = list(setting.each(*DATASETS, published=False))
    papers = [Judging(each, variant=PUBLISHED_ROW) for each in setting.each(*DATASETS)]
    rivals = setting.each(*DATASETS, agent="cdt", updates=CDT_UPDATES.get(setting.scale.name))
    shielded = [Judging(each, variant=SHIELDED, options=IN_SHIELD, shield=True) for each in models]
    other = [Judging(rival, variant=CDT) for rival in rivals]
    return Needs(judgings=(*in_each_way(models, PROPOSED), *papers, *shielded, *other))


def _present_safety(results: Results) -> list[Part]:
    verdicts = results.rows["verdicts"]
    counts = sorted({row["updates"] for row in verdicts if row["agent"] == "cdt"})
    trained = (f"CDT was trained for {count:,} updates." for count in counts)
    about = Remark((*ABOUT, *trained), "What the rows are")
    return [*compare_ways(verdicts, DATASETS, COMPARED), about]


SAFETY = Experiment(
    *("safety", "past the paper", "Limits kept by our rule and by a shield"),
    "A SaFormer of ours on each dataset acts by our rule, by the paper's, without a critic, and in "
    "a shield; as published, and CDT, on the same data; and a policy that heeds no limit, in one.",
    _needs_safety,
    _present_safety,
)


def _needs_speed(setting: Setting) -> Needs:
    """A model for each robot that learns this cost, acting in three ways."""
    updates, models = SPEED_UPDATES.get(setting.scale.name), list[Training]()
    for dataset, cost in TOO_FAST.items():
        models += setting.each(dataset, criteria=(cost,), updates=updates, published=False)
    return Needs(judgings=in_each_way(models, PROPOSED))


def _present_speed(results: Results) -> list[Part]:
    costs = [f"{dataset}: a step costs {cost}." for dataset, cost in TOO_FAST.items()]
    percentiles = "Limits are percentiles of the stored episodes' sums of it."
    about = Remark((*costs, percentiles), "What it costs")
    return [*compare_ways(results.rows["verdicts"], tuple(TOO_FAST), tuple(PROPOSED)), about]


SPEED = Experiment(
    *("speed", "past the paper", "A limit on speed"),
    "SaFormer under a cost of the next state, speed above a bound, which no shield can foresee: by "
    "our rule, by the paper's, and without the critic.",
    _needs_speed,
    _present_speed,
)
