"""`saformer experiment`."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from saformer.cli.command import Command, terminal
from saformer.cli.progress import listening
from saformer.experiments.catalogue import EXPERIMENTS, find_experiments, render
from saformer.experiments.conduct import conduct
from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.machines import Machines
from saformer.experiments.plan import SCALES, SOURCES, Setting
from saformer.report.table import terminal_table
from saformer.training.loop.fit import InterruptedTrainingError


@dataclass(frozen=True, kw_only=True)
class ExperimentCommand(Command):
    """Make a table or figure of the paper again, on a page beside the published numbers.

    `saformer experiment` alone lists the names. Runs are trained as needed and kept under --runs:
    those that finished are never redone, interrupted ones go on, one that fails is reported and the
    others go on, and experiments share them. So the same command can be given again at any time.
    --render makes a page (NAME.html, NAME.md) again from the rows beside it (NAME.json).
    """

    name: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="NAME")]] = ""
    """An experiment, or all; without it, they are listed."""
    scale: Literal["smoke", "small", "paper"] = "smoke"
    """smoke: tiny models on scraps of data, minutes on two cores, shows that all works. small:
    preset small, hours on a CPU. paper: Table 6, 100,000 updates, wants a GPU."""
    seeds: tuple[int, ...] = (0,)
    """Each gives every model once more; tables pool them."""
    data: str = "behaviours"
    """behaviours: made on this machine. d4rl: D4RL's files (v2), with the paper's own limits in
    Table 1. dsrl: DSRL's. Else a folder of stores named hopper-medium and so on."""
    out: Path | None = None
    """Folder of rows and pages; by default results/SCALE."""
    updates: int | None = None
    """Of every run; by default the scale's."""
    machines: Machines = field(default_factory=Machines)
    """Where runs are made."""
    render: Path | None = None
    """Run nothing: make the pages again from the rows in this folder."""
    line: tyro.conf.Suppress[tyro.conf.Fixed[str]] = ""
    """the whole command, for the record"""

    @classmethod
    def defaults(cls, arguments: Sequence[str]) -> Self:
        if arguments and arguments[0] in {"-h", "--help"}:
            terminal().print(_listing())
        return cls(line=shlex.join(["saformer", "experiment", *arguments]))

    def run(self, console: Console) -> int:
        if not self.name:
            terminal().print(_listing())
            return 0
        experiments = find_experiments(self.name)
        if self.render is not None:
            return _render_again(experiments, self.render, console)
        data = self.data
        if self.machines.engine == "ray" and data not in SOURCES:
            data = str(Path(data).resolve())  # processes elsewhere have other working folders
        setting = Setting(SCALES[self.scale], self.seeds, data, self.updates)
        try:
            with self.machines.opened() as (engine, site), listening(console) as listener:
                record: dict[str, Any] = {"command": self.line, "listener": listener}
                results = conduct(experiments, setting, engine=engine, site=site, **record)
                return _write(results, self.out or Path("results") / self.scale, console)
        except KeyboardInterrupt:
            raise InterruptedTrainingError("interrupted; what was trained is saved") from None


def _write(results: Iterable[Results], folder: Path, console: Console) -> int:
    failed = list[dict[str, str]]()
    for result in results:
        result.write(folder)
        console.print(f"{render(folder, result.experiment)}", soft_wrap=True)
        failed += result.failed
    if failed:
        message = "some runs failed; the pages say which. The same command tries them again."
        console.print(Text(message, style="yellow"))
    return 1 if failed else 0


def _render_again(experiments: Sequence[Experiment], folder: Path, console: Console) -> int:
    there = [each for each in experiments if (folder / f"{each.name}.json").exists()]
    if not there:
        Results.read(folder, experiments[0].name)  # says what is missing
    for each in there:
        console.print(f"{render(folder, each.name)}", soft_wrap=True)
    return 0


def _listing() -> Table:
    rows = [(each.name, each.shows, each.description) for each in EXPERIMENTS.values()]
    rows.append(("all", "everything", "what they share is done once"))
    headings = ("name", "shows", "what is done")
    return terminal_table(headings, rows, title="experiments", justify="left")
