"""`saformer experiment`."""

import shlex
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from saformer.cli.command import Command, terminal
from saformer.cli.progress import listening
from saformer.data.home import home
from saformer.engine.engine import Engine, LocalEngine
from saformer.experiments.catalogue import EXPERIMENTS, find_experiments, render
from saformer.experiments.conduct import Site, conduct, usual_engine
from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.plan import SCALES, Setting
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
    engine: Literal["local", "ray"] = "local"
    """Where runs are made. local: this machine; a GPU trains runs of one architecture as one
    program, else each core takes a run. ray: a Ray cluster (needs saformer[ray], on every node)."""
    address: str = "auto"
    """Of the Ray cluster: auto (this machine's), HOST:6379, ray://HOST:10001, local (begin one)."""
    job_cpus: int = 1
    """CPUs of each job on Ray."""
    job_gpus: float | None = None
    """GPUs of each job (runs of one architecture) on Ray; by default one where a node has any."""
    node_runs: Path | None = None
    """A folder that every node of the Ray cluster has of its own: runs are made there and brought
    back. By default nodes share --runs."""
    seeds: tuple[int, ...] = (0,)
    """Each gives every model once more; tables pool them."""
    data: str = "behaviours"
    """behaviours: made on this machine. d4rl: D4RL's files (v2), with the paper's own limits in
    Table 1. Else a folder of stores named hopper-medium and so on, as `saformer data import FILE
    FOLDER/hopper-medium` makes them."""
    out: Path | None = None
    """Folder of rows and pages; by default results/SCALE."""
    runs: Path = Path("runs")
    """Folder of runs."""
    processes: int | None = None
    """Runs at once on this machine (not Ray); by default one per core, on a GPU one by one."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
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
        if self.engine == "ray" and data not in {"behaviours", "d4rl"}:
            data = str(Path(data).resolve())  # processes elsewhere have other working folders
        setting = Setting(SCALES[self.scale], self.seeds, data)
        try:
            with _engine(self) as (engine, site), listening(console) as listener:
                record: dict[str, Any] = {"command": self.line, "listener": listener}
                results = conduct(experiments, setting, engine=engine, site=site, **record)
                return _write(results, self.out or Path("results") / self.scale, console)
        except KeyboardInterrupt:
            raise InterruptedTrainingError("interrupted; what was trained is saved") from None


def _write(results: Iterable[Results], folder: Path, console: Console) -> int:
    failed = False
    for result in results:
        result.write(folder)
        console.print(f"{render(folder, result.experiment)}", soft_wrap=True)
        failed |= bool(result.failed)
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


@contextmanager
def _engine(command: ExperimentCommand) -> Iterator[tuple[Engine, Site]]:
    if command.engine == "local":
        count = command.processes
        engine = usual_engine(command.device) if count is None else LocalEngine(count)
        yield engine, Site(command.runs, command.device)
        return
    from saformer.engine.ray import RayEngine

    environment = {"SAFORMER_HOME": str(home().resolve())}
    # jobs are to save, as they do on Ctrl-C
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        cpus, gpus = command.job_cpus, command.job_gpus
        with RayEngine(command.address, cpus=cpus, gpus=gpus, environment=environment) as ray:
            site = Site(command.runs, command.device, packed=ray.gpus > 0, elsewhere=True)
            yield ray, replace(site, node_runs=command.node_runs)
    finally:
        signal.signal(signal.SIGTERM, former)


def _listing() -> Table:
    rows = [(each.name, each.shows, each.description) for each in EXPERIMENTS.values()]
    rows.append(("all", "everything", "what they share is done once"))
    headings = ("name", "shows", "what is done")
    return terminal_table(headings, rows, title="experiments", justify="left")
