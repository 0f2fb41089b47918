"""Figure 6: return against cost in every dataset."""

from __future__ import annotations

from saformer.experiments.experiment import Experiment, Result
from saformer.experiments.plan import DATASETS, LIMITS, Needs
from saformer.report.panels import Cloud, cloud_panels
from saformer.report.sheet import Drawing, Part, Remark


def present(result: Result) -> list[Part]:
    """A panel for each dataset."""
    clouds = [
        Cloud(
            row["dataset"],
            row["cost"],
            row["return"],
            [(name, row["thresholds"][name]) for name in LIMITS],
            "episode cost",
            "episode return",
        )
        for row in result.rows["data"]
    ]
    if not clouds:
        return [Remark(("No dataset could be read.",))]
    note = "Up to 300 trajectories of each dataset; dashed: its 10, 20, 30 and 50% costs. The paper prints no numbers."
    return [
        Drawing("Return and cost of the datasets (Figure 6)", cloud_panels(clouds, columns=3), note)
    ]


EXPERIMENT = Experiment(
    name="pair-plots",
    shows="Figure 6",
    title="Return and cost of the nine datasets",
    description="Every stored trajectory's return against its cost, with the limits.",
    needs=lambda setting: Needs(datasets=DATASETS),
    present=present,
)
