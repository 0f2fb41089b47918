"""Table 5: which limits the datasets have."""

from __future__ import annotations

from saformer.data.limits import THRESHOLDS
from saformer.experiments.experiment import Experiment, Result
from saformer.experiments.plan import DATASETS, Needs
from saformer.experiments.pooling import select
from saformer.experiments.published import published_cell
from saformer.report.sheet import Part, Sheet, plain_cell
from saformer.report.table import Cell, numbers


def present(result: Result) -> list[Part]:
    """One row of ours and one of theirs for each dataset."""
    rows: list[list[Cell]] = []
    for dataset in DATASETS:
        theirs = [published_cell(5, dataset=dataset, limit_name=name) for name in THRESHOLDS]
        for found in select(result.rows["data"], dataset=dataset):
            ours = [numbers([found["thresholds"][name]]) for name in THRESHOLDS]
            about = [
                str(found["num_trajectories"]),
                numbers([found["correlation"]]),
                found["fingerprint"],
            ]
            rows.append([plain_cell(text) for text in (dataset, "ours", *ours, *about)])
        rows.append(
            [
                plain_cell(text)
                for text in (
                    dataset,
                    "paper",
                    *(numbers([c.limit if c else None]) for c in theirs),
                    "",
                    "",
                    "",
                )
            ]
        )
    headings = ("dataset", "", *THRESHOLDS, "episodes", "corr(return, cost)", "fingerprint")
    note = (
        "Episode cost (summed torque). The paper's datasets are D4RL's, ours by default rollouts "
        "of the bundled "
        "behaviours: they need not agree."
    )
    return [Sheet("Thresholds (Table 5)", headings, rows, note)]


EXPERIMENT = Experiment(
    name="thresholds",
    shows="Table 5",
    title="Thresholds of the nine datasets",
    description="Lowest, 10th, 20th, 30th, 50th percentile and highest episode cost of each dataset.",
    needs=lambda setting: Needs(datasets=DATASETS),
    present=present,
)
