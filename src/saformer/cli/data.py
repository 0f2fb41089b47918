"""`saformer data`: build, import, inspect and export."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from saformer.api.datasets import build_data, export_data, import_data, inspect_data, survey_logs
from saformer.cli.progress import listening
from saformer.data.home import data_home
from saformer.data.logs.mapping import LogMapping
from saformer.data.sources.names import is_hosted
from saformer.data.sources.source import EnvironmentHints
from saformer.data.store import TrajectoryStore
from saformer.envs.tasks import is_store, task_names
from saformer.report.inspection import inspection_tables, write_inspection

VERBS = {
    "build": "make a task's data on this machine, without a download",
    "import": "turn logs (CSV, Parquet), HDF5, NPZ or Minari data into a store",
    "inspect": "which limits can this data support?",
    "export": "write data as a Minari dataset",
    "list": "what can be built, and what is there already",
}
SOURCES = (
    "a task, a trajectory store, d4rl:NAME, minari:NAME, or a file (.csv, .parquet, .hdf5, .npz)"
)


@dataclass(frozen=True)
class BuildCommand:
    """Roll out behaviour policies until there is enough data. It is seeded: any number of cores
    makes the same bytes.

    TASK is one of allowance, {hopper,walker2d,halfcheetah}-{medium,medium-replay,medium-expert}, or
    a bundle of behaviours (.npz) that scripts/train_behaviours.py made.
    """

    task: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TASK")]]
    """What to build."""
    steps: int | None = None
    """Environment steps; by default 300,000 for medium-replay, else 1,000,000. Episodes are run to
    their end."""
    seed: int = 0
    """Decides every episode."""
    mixture: Literal["medium", "medium-replay", "medium-expert"] = "medium"
    """Which snapshots of a bundle (.npz) to use."""
    workers: int | None = None
    """Processes; by default one per core."""
    out: Path | None = None
    """Where to keep the data; by default where `saformer train` looks for it."""


@dataclass(frozen=True)
class ImportCommand:
    """Turn recorded data into a trajectory store, or say what is wrong with it. Nothing is lost
    silently.

    CSV and Parquet logs have one row per step; the flags below, or a TOML file with the same
    entries (--mapping), say which columns are what. D4RL, DSRL, NPZ and Minari data explain
    themselves.
    """

    sources: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="SOURCE")]]
    """Logs (files, folders, patterns), .hdf5, .npz, a Minari folder, d4rl:hopper-medium-v2,
    minari:mujoco/hopper/medium-v0."""
    out: Path | None = None
    """Where to write the store; by default a folder named after the first source (logs-store after
    a folder logs)."""
    mapping: Path | None = None
    """TOML file that says which columns are what; flags overrule it."""
    criteria: tuple[str, ...] = ()
    """Criteria, one per constraint, that this data is judged by: torque, a column's name, an
    expression, module:function."""
    drop_faulty: bool = False
    """Leave out episodes with missing values, steps recorded twice, and the like, instead of
    refusing the log."""
    check: bool = False
    """Only read the logs and report; write nothing."""
    json: bool = False
    """Print the report on logs as JSON."""
    log: LogMapping = field(default_factory=LogMapping)
    """Columns of a log, and what is known of the machine."""


@dataclass(frozen=True)
class InspectCommand:
    """Which limits can this data support? Costs, returns, the frontier, and whether the paper's
    assumptions hold."""

    source: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="SOURCE")]]
    """A task, a trajectory store, d4rl:NAME, minari:NAME, or a file."""
    criteria: tuple[str, ...] = ()
    """Criteria, one per constraint: torque, energy, a column's name, an expression such as
    "abs(action).sum()", module:function."""
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
    json: bool = False
    """Print JSON instead of tables."""
    report: Path | None = None
    """Write a page with figures here."""


@dataclass(frozen=True)
class ExportCommand:
    """Write data as a Minari dataset, for other tools to load with minari.load_dataset(ID)."""

    source: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="SOURCE")]]
    """A task, a trajectory store, or a file."""
    dataset_id: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="ID")]]
    """Minari's id, as in mine/pump/july-v0; $MINARI_DATASETS_PATH says where Minari keeps
    datasets."""


@dataclass(frozen=True)
class ListCommand:
    """Tasks that can be built, and datasets that were."""


def main(arguments: Sequence[str], console: Console) -> int:
    """Run one of the verbs."""
    if not arguments or arguments[0] in {"-h", "--help"}:
        _show_help(Console(highlight=False))
        return 0
    if arguments[0] not in VERBS:
        console.print(
            Text(
                f"saformer data: unknown command {arguments[0]!r}; there are {', '.join(VERBS)}",
                style="red",
            )
        )
        return 2
    verbs: dict[str, Callable[[Sequence[str], Console], int]] = {
        "build": _build,
        "import": _import,
        "inspect": _inspect,
        "export": _export,
        "list": _list,
    }
    return verbs[arguments[0]](arguments[1:], console)


def parse(verb: str, arguments: Sequence[str]) -> Any:
    """Parse the flags of one verb."""
    commands = {
        "build": BuildCommand,
        "import": ImportCommand,
        "inspect": InspectCommand,
        "export": ExportCommand,
        "list": ListCommand,
    }
    plain = Annotated[commands[verb], tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff]  # type: ignore[valid-type]
    default = (
        {"default": ImportCommand(tyro.MISSING, log=_mapping(arguments))}
        if verb == "import"
        else {}
    )
    return tyro.cli(plain, args=list(arguments), prog=f"saformer data {verb}", **default)  # type: ignore[call-overload]


def _build(arguments: Sequence[str], console: Console) -> int:
    command = parse("build", arguments)
    with listening(console) as listener:
        path = build_data(
            command.task,
            steps=command.steps,
            seed=command.seed,
            mixture=command.mixture,
            workers=command.workers,
            out=command.out,
            listener=listener,
        )
    Console().print(str(path), soft_wrap=True)
    return 0


def _import(arguments: Sequence[str], console: Console) -> int:
    command = parse("import", arguments)
    if not command.sources:
        raise ValueError(f"what is to be imported? Give {SOURCES}")
    if command.check:
        with listening(console) as listener:
            found = survey_logs(command.sources, command.log, listener=listener).survey.plain()
        print(json.dumps(found, indent=2)) if command.json else _show_survey(found)
        return 1 if found["problems"] else 0
    out = command.out or Path(_default_name(command.sources[0]))
    log = command.log
    known = EnvironmentHints(log.environment, log.horizon, log.action_low, log.action_high)
    with listening(console) as listener:
        imported = import_data(
            command.sources,
            out,
            mapping=log,
            known=known,
            criteria=command.criteria,
            drop_faulty=command.drop_faulty,
            listener=listener,
        )
    if command.json:
        print(
            json.dumps(
                {
                    "path": str(out),
                    "fingerprint": imported.store.fingerprint,
                    "notes": imported.notes,
                },
                indent=2,
            )
        )
    console.print(
        Text(f"next: saformer data inspect {out}\n      saformer train {out}"), soft_wrap=True
    )
    return 0


def _inspect(arguments: Sequence[str], console: Console) -> int:
    command = parse("inspect", arguments)
    with listening(console) as listener:
        found = inspect_data(
            command.source,
            criteria=command.criteria,
            cost_discount=command.cost_discount,
            limits=command.limits,
            steps=command.steps,
            seed=command.seed,
            mapping=LogMapping.from_toml(command.mapping) if command.mapping else None,
            listener=listener,
        ).plain()
    if command.json:
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        for part in inspection_tables(found):
            Console().print(part)
    if command.report:
        page = write_inspection(
            found, command.report, title=f"{command.source}: which limits can this data support?"
        )
        console.print(f"report written to {page}", soft_wrap=True)
    return 0


def _export(arguments: Sequence[str], console: Console) -> int:
    command = parse("export", arguments)
    with listening(console) as listener:
        export_data(command.source, command.dataset_id, listener=listener)
    return 0


def _list(arguments: Sequence[str], console: Console) -> int:
    parse("list", arguments)
    out = Console(highlight=False)
    out.print(f"can be built: {', '.join(task_names())}", soft_wrap=True)
    kept = sorted(path for path in data_home().glob("*") if is_store(path))
    table = Table(
        "kept in " + str(data_home()),
        "trajectories",
        "steps",
        "fingerprint",
        box=None,
        pad_edge=False,
    )
    for path in kept:
        try:
            store = TrajectoryStore.open(path)
        except ValueError:
            table.add_row(path.name, "-", "-", "[yellow]damaged or of another version[/yellow]")
            continue
        table.add_row(path.name, str(len(store)), str(store.num_steps), store.fingerprint)
    out.print(table if kept else f"nothing is kept in {data_home()} yet")
    return 0


def _mapping(arguments: Sequence[str]) -> LogMapping:
    """The mapping file must be read before the other flags: it decides their defaults."""
    for place, argument in enumerate(arguments):
        if argument == "--mapping" and place + 1 < len(arguments):
            return LogMapping.from_toml(arguments[place + 1])
        if argument.startswith("--mapping="):
            return LogMapping.from_toml(argument.partition("=")[2])
    return LogMapping()


def _default_name(source: str) -> str:
    name = source.partition(":")[2] if is_hosted(source) else Path(source.rstrip("/*")).name
    plain = name.split(".")[0].replace("/", "-").replace("*", "") or "store"
    return (
        f"{plain}-store" if Path(source).is_dir() and plain == name else plain
    )  # never the folder that is read


def _show_survey(found: dict[str, Any]) -> None:
    out = Console(highlight=False)
    lengths = found["episode_lengths"]
    out.print(
        f"{found['files']} files, {found['rows']} rows, {found['episodes']} episodes of "
        f"{lengths['min']} to "
        f"{lengths['max']} steps (median {lengths['median']:g})"
    )
    table = Table("column", "role", "least", "greatest", "missing", box=None, pad_edge=False)
    for name, column in found["columns"].items():
        bounds = ["-" if column[key] is None else f"{column[key]:.4g}" for key in ("min", "max")]
        table.add_row(Text(name), column["role"], *bounds, str(column["missing"]))
    out.print(table)
    for problem in found["problems"]:
        out.print(Text(f"problem: {problem}", style="red"), soft_wrap=True)
    for warning in found["warnings"]:
        out.print(Text(f"note: {warning}", style="yellow"), soft_wrap=True)
    if not found["problems"]:
        out.print(Text("nothing stands in the way of importing this", style="green"))


def _show_help(console: Console) -> None:
    console.print("saformer data: make, import, inspect and export trajectories.\n")
    for verb, summary in VERBS.items():
        console.print(Text(f"  saformer data {verb:<10}{summary}"), soft_wrap=True)
    console.print("\n`saformer data COMMAND --help` explains each.")
