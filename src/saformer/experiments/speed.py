"""Past the paper: a cost that no shield can enforce, because it is the next state's."""

from __future__ import annotations

from saformer.experiments.experiment import Experiment, Result
from saformer.experiments.plan import Judging, Needs, Setting
from saformer.experiments.ways import PROPOSED, beside_each_other
from saformer.report.sheet import Part, Remark

TOO_FAST = {
    "halfcheetah-medium": "above(next_state[8], 4)",
    "walker2d-medium": "above(next_state[8], 2)",
    "hopper-medium": "above(next_state[5], 2)",
}
"""By how much the robot is faster (m/s, forwards) than about three quarters of the data's steps
are."""
UPDATES = {"paper": 40_000}


def needs(setting: Setting) -> Needs:
    """A model for each robot that learns this cost, acting in three ways."""
    updates = UPDATES.get(setting.scale.name)
    models = [
        model
        for dataset, cost in TOO_FAST.items()
        for model in setting.each(dataset, criteria=(cost,), updates=updates)
    ]
    return Needs(
        judgings=tuple(
            Judging(model, variant=name, options=how)
            for model in models
            for name, how in PROPOSED.items()
        )
    )


def present(result: Result) -> list[Part]:
    """All in all, for each seed, and every cell."""
    costs = tuple(f"{dataset}: a step costs {cost}." for dataset, cost in TOO_FAST.items())
    return [
        *beside_each_other(result.rows["verdicts"], tuple(TOO_FAST), tuple(PROPOSED)),
        Remark(
            (*costs, "Limits are percentiles of the stored episodes' sums of it."), "What it costs"
        ),
    ]


EXPERIMENT = Experiment(
    name="speed",
    shows="past the paper",
    title="A limit on speed",
    description=(
        "SaFormer under a cost of the next state, speed above a bound, which no shield can "
        "foresee: by the paper's "
        "rule, without the critic, and by reserve."
    ),
    needs=needs,
    present=present,
)
