"""Past the paper: our rule beside the paper's, rivals and a shield, where only ending an episode is
cheap and where effort is; and a cost that no shield can enforce."""

from saformer.experiments.ablation import needs_proposals, present_proposals
from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.plan import (
    DATASETS,
    EFFORT_DATASETS,
    LIMITS,
    Judging,
    Needs,
    Setting,
    Training,
    in_each_way,
)
from saformer.experiments.pooling import compare_ways
from saformer.experiments.ways import (
    BC_SAFE,
    CDT,
    COMPARED,
    IN_SHIELD,
    PROPOSED,
    PUBLISHED,
    SHIELDED,
)
from saformer.report.page import Part, Remark

TOO_FAST = {
    "halfcheetah-medium": "above(next_state[8], 4)",
    "walker2d-medium": "above(next_state[8], 2)",
    "hopper-medium": "above(next_state[5], 2)",
    "halfcheetah-effort": "above(next_state[8], 2)",
    "walker2d-effort": "above(next_state[8], 1)",
    "hopper-effort": "above(next_state[5], 0.5)",
}
"""Speed forwards (m/s) in excess of a bound that about three quarters of the data's steps keep; of
effort data one quarter, so that every limit but the least leaves some of it."""
SPEED_UPDATES = {"paper": 40_000}
ABOUT = (
    f"{', '.join(PROPOSED)}: one model; as published: another, with the paper's losses and rule. "
    "Whatever they, CDT and BC-Safe execute is an action that they proposed, unmodified; the "
    "shield makes actions cheaper where they would pass the limit, so that its rows prove nothing "
    "about what was learnt. All were trained for equally many updates; BC-Safe anew for each "
    "limit, on the episodes within it.",
    f"{SHIELDED}: our rule with the expected action as its only candidate, in a shield.",
    f"{COMPARED[-1]}: the same model told the largest cost of the data, acting by its mean, in a "
    "shield.",
)


def _needs_rows(setting: Setting, datasets: tuple[str, ...]) -> Needs:
    """A model of ours on each dataset, one as published, CDT, and BC-Safe for each limit."""
    datasets = setting.some(datasets)
    models = list(setting.each(*datasets, published=False))
    cloned = [
        Judging(Training(dataset, "bc_safe", limit, seed=seed), (limit,), BC_SAFE)
        for dataset in datasets
        for limit in LIMITS
        for seed in setting.seeds
    ]
    return Needs(
        judgings=(
            *in_each_way(models, PROPOSED),
            *in_each_way(setting.each(*datasets), PUBLISHED),
            *in_each_way(setting.each(*datasets, agent="cdt"), {CDT: ()}),
            *cloned,
            *(Judging(each, LIMITS, SHIELDED, IN_SHIELD, shield=True) for each in models),
        )
    )


def _present_rows(results: Results, datasets: tuple[str, ...]) -> list[Part]:
    verdicts = [row for row in results.rows["verdicts"] if row["variant"] in COMPARED]
    counts = sorted({f"{row['updates']:,}" for row in verdicts})
    about = Remark((*ABOUT, f"Updates: {', '.join(counts)}."), "What the rows are")
    return [*compare_ways(verdicts, datasets, COMPARED), about]


SAFETY = Experiment(
    *("safety", "past the paper", "Limits kept where only ending an episode is cheap"),
    "SaFormer by our rule, by the paper's, without a critic, as published, in a shield; CDT and "
    "BC-Safe; on the paper's nine datasets, whose episodes may end early.",
    lambda setting: _needs_rows(setting, DATASETS),
    lambda results: _present_rows(results, DATASETS),
)


def _needs_effort(setting: Setting) -> Needs:
    rows = _needs_rows(setting, EFFORT_DATASETS)
    return rows | needs_proposals(setting, setting.some(EFFORT_DATASETS)[0])


EFFORT = Experiment(
    *("effort", "Tables 2, 4, 7, 8 and Figure 5 on other data", "Limits kept where effort is"),
    "The same, and the paper's tables and Figure 5, on three datasets from standing to running, "
    "whose episodes may not end early. As published: Tables 2 and 7; and without a critic: 4 and "
    "8.",
    _needs_effort,
    lambda results: [
        *_present_rows(results, EFFORT_DATASETS),
        *present_proposals(results, EFFORT_DATASETS[0]),
    ],
)


def _needs_speed(setting: Setting) -> Needs:
    """A model for each dataset that learns this cost."""
    updates, models = SPEED_UPDATES.get(setting.scale.name), list[Training]()
    for dataset in setting.some(tuple(TOO_FAST)):
        cost = (TOO_FAST[dataset],)
        models += setting.each(dataset, criteria=cost, updates=updates, published=False)
    return Needs(judgings=in_each_way(models, PROPOSED))


def _present_speed(results: Results) -> list[Part]:
    costs = [f"{dataset}: a step costs {cost}." for dataset, cost in TOO_FAST.items()]
    percentiles = "Limits are percentiles of the stored episodes' sums of it."
    about = Remark((*costs, percentiles), "What it costs")
    return [*compare_ways(results.rows["verdicts"], tuple(TOO_FAST), tuple(PROPOSED)), about]


SPEED = Experiment(
    *("speed", "past the paper", "A limit on speed"),
    "SaFormer under a cost of the next state, speed above a bound, which no shield can foresee: by "
    "our rule, by the mean, by the paper's rule, and without the critic.",
    _needs_speed,
    _present_speed,
)
