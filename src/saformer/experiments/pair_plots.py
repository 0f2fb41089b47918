"""Figure 6: return against cost in every dataset."""

from __future__ import annotations

from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.plan import DATASETS, LIMITS, Needs
from saformer.report.figure import Panel, line_panels
from saformer.report.page import Part, Picture, Remark

ABOUT = (
    "Up to 300 trajectories of each dataset; dashed: its 10, 20, 30 and 50% costs. The paper "
    "prints no numbers."
)


def _present(results: Results) -> list[Part]:
    """A panel for each dataset."""
    panels = [
        Panel(
            row["dataset"],
            x_label="episode cost",
            y_label="episode return",
            points=(row["cost"], row["return"]),
            marks=[row["thresholds"][name] for name in LIMITS],
        )
        for row in results.rows["data"]
    ]
    if not panels:
        return [Remark(("No dataset could be read.",))]
    figure = line_panels(panels, columns=3)
    return [Picture("Return and cost of the datasets (Figure 6)", figure, ABOUT)]


EXPERIMENT = Experiment(
    name="pair-plots",
    shows="Figure 6",
    title="Return and cost of the nine datasets",
    description="Every stored trajectory's return against its cost, with the limits.",
    needs=lambda setting: Needs(datasets=DATASETS),
    present=_present,
)
