"""`saformer data`: build, import, inspect and export."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tyro
from rich.console import Console
from rich.text import Text

from saformer.api.data import build_data, export_data, import_data, inspect_data
from saformer.cli.command import Command, peek, show, terminal
from saformer.cli.progress import listening
from saformer.criteria.code import typed
from saformer.data.home import data_home
from saformer.data.logs.logs import open_logs
from saformer.data.logs.mapping import LogMapping
from saformer.data.logs.proposal import propose_mapping
from saformer.data.sources.names import default_name
from saformer.data.store import TrajectoryStore
from saformer.envs.tasks import is_store, task_names
from saformer.report.table import Cell, terminal_table


@dataclass(frozen=True, kw_only=True)
class BuildCommand(Command):
    """Roll out behaviour policies until there is enough data; a seed always makes the same bytes.

    TASK is one of {hopper,walker2d,halfcheetah}-{effort,medium,medium-replay,medium-expert},
    plant-{room,battery,tank}, allowance (a toy with a known optimum: spend where prices are high),
    or a bundle of behaviours (.npz) that scripts/train_behaviours.py made.
    """

    task: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TASK")]]
    """What to build."""
    steps: int | None = None
    """Environment steps, in whole episodes; by default the size that the task is judged with."""
    seed: int = 0
    """Decides every episode."""
    mixture: Literal["medium", "medium-replay", "medium-expert"] = "medium"
    """Which snapshots of a bundle (.npz) to use."""
    environment: str | None = None
    """The environment that a bundle names, to vouch for it where that is code (module:Id)."""
    workers: int | None = None
    """Processes; by default one per core."""
    out: Path | None = None
    """Where to keep the data; by default where `saformer train` looks for it."""

    def run(self, console: Console) -> int:
        with listening(console) as listener:
            path = build_data(**vars(self), listener=listener)
        terminal().print(str(path), soft_wrap=True)
        return 0


@dataclass(frozen=True, kw_only=True)
class ImportCommand(Command):
    """Turn recorded data into a store, or say what is wrong with it; nothing is lost silently.

    CSV and Parquet logs have one row per step; flags or a TOML file (--mapping) say which columns
    are what: without either, one is proposed. D4RL, DSRL, NPZ and Minari data explain themselves.
    """

    sources: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="SOURCE")]]
    """Logs (files, folders, patterns), .hdf5, .npz, a Minari folder, d4rl:hopper-medium-v2,
    minari:mujoco/hopper/medium-v0."""
    out: Path | None = None
    """The store's folder; by default named after the first source (logs-store if that is logs/)."""
    mapping: Path | None = None
    """TOML file that says which columns are what; flags overrule it."""
    criteria: tuple[str, ...] = ()
    """Criteria, one per constraint: torque, a column's name, an expression, module:function,
    ./file.py:function."""
    drop_faulty: bool = False
    """Leave faulty episodes out (missing values, steps recorded twice), else the log is refused."""
    check: bool = False
    """Only read the logs and report; write nothing."""
    json: bool = False
    """Print the report on logs as JSON."""
    log: LogMapping = field(default_factory=LogMapping)
    """Columns of a log, and what is known of the machine."""

    @classmethod
    def defaults(cls, arguments: Sequence[str]) -> Self:
        """Those of the mapping file."""
        words = peek(arguments, "mapping", "environment")
        typed(words["environment"] or "")  # one in a file is not
        path = words["mapping"]
        log = LogMapping.from_toml(path) if path else LogMapping()
        return cls(sources=tyro.MISSING, log=log)

    def run(self, console: Console) -> int:
        out = self.out or Path(default_name(self.sources[0] if self.sources else ""))
        if not self.mapping and (proposal := propose_mapping(self.sources, self.log)):
            terminal().print(proposal.write(), soft_wrap=True)
            return 1
        how: dict[str, Any] = {"criteria": self.criteria}
        with listening(console) as listener:
            if self.check:
                from saformer.report.inspection import survey_tables

                logs = open_logs(self.sources, self.log, **how, progress=listener.surveying)
                survey = logs.survey.plain()
                show(survey, survey_tables, as_json=self.json)
                return 1 if survey["problems"] else 0
            how |= {"drop_faulty": self.drop_faulty, "listener": listener}
            imported = import_data(self.sources, out, mapping=self.log, **how)
        if self.json:
            facts = {"fingerprint": imported.store.fingerprint, "notes": imported.notes}
            show({"path": str(out), **facts}, str, as_json=True)
        following = f"next: saformer data inspect {out}\n      saformer train {out}"
        console.print(Text(following), soft_wrap=True)
        return 0


@dataclass(frozen=True, kw_only=True)
class InspectCommand(Command):
    """Which limits can this data support? Costs, returns, frontier, the paper's assumptions."""

    source: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="SOURCE")]]
    """A task, a trajectory store, d4rl:NAME, minari:NAME, or a file."""
    criteria: tuple[str, ...] = ()
    """Criteria, one per constraint: torque, energy, a column's name, an expression such as
    "abs(action).sum()", module:function, ./file.py:function."""
    cost_discount: float = 1.0
    """gamma_c: step t counts this to the power of t."""
    limits: tuple[str, ...] = ()
    """Limits to look at: p10, 4300; by default some percentiles."""
    steps: int | None = None
    """Size of a task's data."""
    seed: int = 0
    """Seed of a task's data."""
    mapping: Path | None = None
    """TOML file that says which columns of a log are what."""
    may_end: bool | None = None
    """Whether ending an episode early is a legitimate way to keep a limit, or a failure; by default
    as the task or store says."""
    json: bool = False
    """Print JSON instead of tables."""
    report: Path | None = None
    """Write a page with figures here."""

    def run(self, console: Console) -> int:
        from saformer.report.inspection import inspection_tables, write_inspection

        names = ("criteria", "cost_discount", "limits", "steps", "seed", "may_end")
        settings: dict[str, Any] = {name: getattr(self, name) for name in names}
        settings["mapping"] = self.mapping
        with listening(console) as listener:
            inspection = inspect_data(self.source, listener=listener, **settings).plain()
        show(inspection, inspection_tables, as_json=self.json)
        if self.report:
            title = f"{self.source}: which limits can this data support?"
            page = write_inspection(inspection, self.report, title=title)
            console.print(f"report written to {page}", soft_wrap=True)
        return 0


@dataclass(frozen=True, kw_only=True)
class ExportDataCommand(Command):
    """Write data as a Minari dataset, for other tools to load with minari.load_dataset(ID)."""

    source: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="SOURCE")]]
    """A task, a trajectory store, or a file."""
    dataset_id: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="ID")]]
    """Minari's id, as in mine/pump/july-v0; $MINARI_DATASETS_PATH says where datasets are kept."""

    def run(self, console: Console) -> int:
        with listening(console) as listener:
            export_data(self.source, self.dataset_id, listener=listener)
        return 0


@dataclass(frozen=True, kw_only=True)
class ListCommand(Command):
    """Tasks that can be built, and datasets that were."""

    def run(self, console: Console) -> int:
        out, home = terminal(), data_home()
        out.print(f"can be built: {', '.join(task_names())}", soft_wrap=True)
        headings = (f"in {home}", "trajectories", "steps", "fingerprint")
        rows = [_store_row(path) for path in sorted(home.glob("*")) if is_store(path)]
        out.print(terminal_table(headings, rows) if rows else f"nothing is kept in {home} yet")
        return 0


def _store_row(path: Path) -> list[Cell]:
    try:
        store = TrajectoryStore.open(path)
    except ValueError:
        return [path.name, "-", "-", ("damaged or of another version", "missed")]
    return [path.name, str(len(store)), str(store.num_steps), store.fingerprint]
