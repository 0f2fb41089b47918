"""All experiments, and their pages."""

from pathlib import Path

from saformer.experiments.ablation import ABLATION, SENSITIVITY
from saformer.experiments.adaptation import ADAPTATION
from saformer.experiments.appendix import HYPER_PARAMETERS, PAIR_PLOTS, THRESHOLDS_TABLE
from saformer.experiments.baselines import BASELINES
from saformer.experiments.beyond import EFFORT, SAFETY, SPEED
from saformer.experiments.dsrl import DSRL
from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.finetuning import EXPLORATION, FINETUNING
from saformer.experiments.offline import OFFLINE
from saformer.report.page import Caution, Facts, Page, Part, Remark

_PAPER = (THRESHOLDS_TABLE, HYPER_PARAMETERS, PAIR_PLOTS, BASELINES, ADAPTATION, FINETUNING)
_ALL = (*_PAPER, ABLATION, SENSITIVITY, EFFORT, EXPLORATION, SAFETY, SPEED)
EXPERIMENTS: dict[str, Experiment] = {each.name: each for each in (*_ALL, DSRL, OFFLINE)}
NO_MEANING = "At scale smoke: this shows that everything works, and its numbers mean nothing."


def find_experiments(name: str) -> list[Experiment]:
    """The experiment of this name, or every one that needs nobody else's simulators."""
    if name == "all":
        return list(_ALL)
    if name not in EXPERIMENTS:
        known = ", ".join(EXPERIMENTS)
        raise ValueError(f"unknown experiment {name!r}; there are {known}, and all")
    return [EXPERIMENTS[name]]


def render(folder: Path, name: str) -> Path:
    """The page of one experiment, from its rows in the folder, and the index."""
    experiment, results = EXPERIMENTS[name], Results.read(folder, name)
    lead = experiment.description + (f" {NO_MEANING}" if results.made["scale"] == "smoke" else "")
    failed = [f"{failure['what']}: {failure['why']}" for failure in results.failed]
    parts: list[Part] = [
        Remark((lead,), style="lead"),
        *([Caution("What is missing here, because it failed:", failed)] if failed else []),
        *experiment.present(results),
        Facts("How this was made", results.made),
    ]
    page = Page(f"{experiment.title} ({experiment.shows})", parts, broad=True, index="index.html")
    path = page.write_beside_markdown(folder, name)
    others = [each for each in EXPERIMENTS.values() if (folder / f"{each.name}.html").exists()]
    links = {each.title: f"{each.name}.html" for each in others}
    shown = {e.title: f"{e.shows}{_in_a_line(Results.read(folder, e.name))}" for e in others}
    about = [Remark((NO_MEANING,), style="lead")] if results.made["scale"] == "smoke" else []
    heading = "The paper's tables and figures"
    index = Page("Experiments", [*about, Facts("", shown, links)], heading=heading)
    index.write(folder / "index.html")
    return path


def _in_a_line(results: Results) -> str:
    """Of each way of acting, or else each agent: how many limits it met, of every seed's."""
    met: dict[str, list[bool]] = {}
    for row in results.rows["verdicts"]:
        met.setdefault(row["variant"] or row["agent"], []).append(row["met"])
    counts = [f"{name}: {sum(each)} of {len(each)}" for name, each in met.items()]
    counts = [each for each in counts if not each.startswith("N = ")] or counts  # less Figure 5
    return f". Limits met by {'; '.join(counts)}" if counts else ""
