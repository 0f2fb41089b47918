"""All experiments, and their pages."""

from __future__ import annotations

from pathlib import Path

from saformer.experiments import (
    ablation,
    adaptation,
    baselines,
    finetuning,
    hyper_parameters,
    pair_plots,
    safety,
    sensitivity,
    speed,
    thresholds,
)
from saformer.experiments.experiment import Experiment, Result
from saformer.report.sheet import Document, write_document, write_index

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        *(
            thresholds,
            hyper_parameters,
            pair_plots,
            baselines,
            adaptation,
            finetuning,
            ablation,
            sensitivity,
        ),
        *(safety, speed),
    )
}


def find_experiments(name: str) -> list[Experiment]:
    """The experiment of this name, or every one."""
    if name == "all":
        return list(EXPERIMENTS.values())
    if name not in EXPERIMENTS:
        raise ValueError(
            f"unknown experiment {name!r}; there are {', '.join(EXPERIMENTS)}, and all"
        )
    return [EXPERIMENTS[name]]


def render(folder: Path, name: str) -> Path:
    """The page of one experiment, from the rows that the folder keeps of it, and the index."""
    experiment, result = EXPERIMENTS[name], Result.read(folder, name)
    lead = experiment.description
    if result.made["scale"] == "smoke":
        lead += " At scale smoke: this shows that everything works, and its numbers mean nothing."
    document = Document(
        name,
        f"{experiment.title} ({experiment.shows})",
        lead,
        experiment.present(result),
        result.failed,
        result.made,
    )
    page = write_document(document, folder)
    there = [each for each in EXPERIMENTS.values() if (folder / f"{each.name}.html").exists()]
    write_index(folder, [(each.name, each.shows, each.title) for each in there])
    return page
