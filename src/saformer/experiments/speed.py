"""Past the paper: a cost that no shield can enforce, because it is the next state's."""

from __future__ import annotations

from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.plan import Judging, Needs, Setting
from saformer.experiments.pooling import comparison
from saformer.experiments.ways import PROPOSED
from saformer.report.page import Part, Remark

TOO_FAST = {
    "halfcheetah-medium": "above(next_state[8], 4)",
    "walker2d-medium": "above(next_state[8], 2)",
    "hopper-medium": "above(next_state[5], 2)",
}
"""Speed forwards (m/s) in excess of a bound that about three quarters of the data's steps keep."""
UPDATES = {"paper": 40_000}


def _needs(setting: Setting) -> Needs:
    """A model for each robot that learns this cost, acting in three ways."""
    updates = UPDATES.get(setting.scale.name)
    judgings = [
        Judging(model, variant=name, options=options)
        for dataset, cost in TOO_FAST.items()
        for model in setting.each(dataset, criteria=(cost,), updates=updates)
        for name, options in PROPOSED.items()
    ]
    return Needs(judgings=tuple(judgings))


def _present(results: Results) -> list[Part]:
    """All in all, for each seed, and every cell."""
    costs = [f"{dataset}: a step costs {cost}." for dataset, cost in TOO_FAST.items()]
    percentiles = "Limits are percentiles of the stored episodes' sums of it."
    return [
        *comparison(results.rows["verdicts"], tuple(TOO_FAST), tuple(PROPOSED)),
        Remark((*costs, percentiles), "What it costs"),
    ]


EXPERIMENT = Experiment(
    name="speed",
    shows="past the paper",
    title="A limit on speed",
    description="SaFormer under a cost of the next state, speed above a bound, which no shield can "
    "foresee: by the paper's rule, without the critic, and by reserve.",
    needs=_needs,
    present=_present,
)
