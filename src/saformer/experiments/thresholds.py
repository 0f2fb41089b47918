"""Table 5 and Figure 6: thresholds of the datasets, and return against cost."""

from __future__ import annotations

from saformer.data.limits import THRESHOLDS
from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.plan import DATASETS, LIMITS, Needs
from saformer.experiments.pooling import rows_with
from saformer.experiments.published import published_cell
from saformer.report.figure import Panel, line_panels
from saformer.report.page import Part, Picture, Remark, Sheet
from saformer.report.table import numbers

ABOUT_THRESHOLDS = (
    "Episode cost (summed torque). The paper's datasets are D4RL's, ours by default rollouts of "
    "the bundled behaviours: they need not agree."
)
ABOUT_PLOTS = (
    "Up to 300 trajectories of each dataset; dashed: its 10, 20, 30 and 50% costs. The paper "
    "prints no numbers."
)


def _table(results: Results) -> list[Part]:
    """One row of ours and one of the paper's for each dataset."""
    rows = []
    for dataset in DATASETS:
        for row in rows_with(results.rows["data"], dataset=dataset):
            ours = [numbers([row["thresholds"][name]]) for name in THRESHOLDS]
            correlation = numbers([row["correlation"]])
            about = [str(row["num_trajectories"]), correlation, row["fingerprint"]]
            rows.append([dataset, "ours", *ours, *about])
        cells = [published_cell(5, dataset=dataset, limit_name=name) for name in THRESHOLDS]
        papers = [numbers([cell.limit if cell else None]) for cell in cells]
        rows.append([dataset, "paper", *papers, "", "", ""])
    headings = ("dataset", "", *THRESHOLDS, "episodes", "corr(return, cost)", "fingerprint")
    return [Sheet("Thresholds (Table 5)", headings, rows, ABOUT_THRESHOLDS)]


def _figure(results: Results) -> list[Part]:
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
    return [Picture("Return and cost of the datasets (Figure 6)", figure, ABOUT_PLOTS)]


THRESHOLDS_TABLE = Experiment(
    name="thresholds",
    shows="Table 5",
    title="Thresholds of the nine datasets",
    description="Lowest, 10th, 20th, 30th, 50th percentile and highest episode cost of each "
    "dataset.",
    needs=lambda setting: Needs(datasets=DATASETS),
    present=_table,
)
PAIR_PLOTS = Experiment(
    name="pair-plots",
    shows="Figure 6",
    title="Return and cost of the nine datasets",
    description="Every stored trajectory's return against its cost, with the limits.",
    needs=lambda setting: Needs(datasets=DATASETS),
    present=_figure,
)
