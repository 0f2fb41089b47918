"""Table 5: the thresholds of the datasets."""

from __future__ import annotations

from saformer.data.limits import THRESHOLDS
from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.plan import DATASETS, Needs
from saformer.experiments.pooling import rows_with
from saformer.experiments.published import published_cell
from saformer.report.page import Part, Sheet
from saformer.report.table import numbers

ABOUT = (
    "Episode cost (summed torque). The paper's datasets are D4RL's, ours by default rollouts of "
    "the bundled behaviours: they need not agree."
)


def _present(results: Results) -> list[Part]:
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
    return [Sheet("Thresholds (Table 5)", headings, rows, ABOUT)]


EXPERIMENT = Experiment(
    name="thresholds",
    shows="Table 5",
    title="Thresholds of the nine datasets",
    description="Lowest, 10th, 20th, 30th, 50th percentile and highest episode cost of each "
    "dataset.",
    needs=lambda setting: Needs(datasets=DATASETS),
    present=_present,
)
