"""`saformer evaluate`."""

from __future__ import annotations

import json
from argparse import ArgumentError, ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import tyro
from rich.console import Console

from saformer.agents.registry import find_kind
from saformer.api.calibrated import kept_calibration
from saformer.api.findings import findings_of
from saformer.api.run_data import has_environment, run_of_store
from saformer.api.runs import evaluate, evaluate_offline, load
from saformer.cli.dressing import dressed, without_flags
from saformer.cli.progress import listening
from saformer.envs.tasks import is_store
from saformer.report.offline import offline_table, write_offline_report
from saformer.report.rollouts import write_report
from saformer.report.table import verdict_table
from saformer.rules.reserve import ReserveOptions
from saformer.runs.pretrained import folder_of
from saformer.runs.run import Run

Options = TypeVar("Options")


@dataclass(frozen=True)
class EvaluateCommand(Generic[Options]):
    """Roll a trained policy out under several limits, all in one batch, and judge each.

    Prints a table, keeps evaluation.json (every episode, too) beside the run or in --out, and
    writes a report. Where the data has no simulator, the model is judged on held-out trajectories
    instead, without any rollout (--offline). The flags under "acting options" are the agent's own:
    `saformer evaluate RUN --help` shows those of the run's agent.
    """

    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """The run's folder, as `saformer train` printed it; or a store, for the latest run under runs/
    trained on it; or an export; or pretrained:NAME for a policy that comes with the package
    (`saformer doctor` lists them)."""
    acting: Options
    """How the policy acts; by default as the run was trained for."""
    limits: tuple[str, ...] = ()
    """Percentiles of the data's episode costs (p10) or plain costs (4300); commas separate
    constraints (p20,350); by default p10 p20 p30 p50, or the one limit that the run was trained
    for."""
    episodes: int = 20
    """Episodes under each limit."""
    rate: float | None = None
    """Keep as much of each limit back as `saformer calibrate` found to be needed for this violation
    rate (0.05)."""
    shield: bool = False
    """Make actions cheaper where they would pass the limit: then no episode does, whatever was
    learnt. For costs of the action alone, such as torque."""
    both: bool = False
    """Judge the policy with and without the shield, side by side."""
    reference: bool = False
    """Also show the agent's mean action, prompted with the largest cost of the data, with the
    shield."""
    offline: bool = False
    """No rollout: judge the model on trajectories that training held out."""
    data: str | None = None
    """Where the run's store is now, if it was moved."""
    out: Path | None = None
    """Where to keep what was found; by default the run's folder, for pretrained:NAME
    runs/pretrained-NAME."""
    seed: int = 0
    """Decides initial states and proposals."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    workers: int | Literal["auto"] = "auto"
    """Processes that step the environments; auto: one per core where that pays. 0: none beside this
    one."""
    json: bool = False
    """Print JSON instead of the table."""
    report: Path | None = None
    """Where to write the report; by default report.html beside what was found."""


def parse(arguments: Sequence[str]) -> EvaluateCommand:
    """Parse flags."""
    usual = calibrated_options(arguments, usual_options(arguments))
    options = without_flags(type(usual), "seed")
    command = Annotated[
        EvaluateCommand[options], tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff
    ]  # type: ignore[valid-type]
    default = EvaluateCommand(tyro.MISSING, dressed(usual, options))
    return tyro.cli(command, args=list(arguments), default=default, prog="saformer evaluate")


def main(arguments: Sequence[str], console: Console) -> int:
    """Evaluate, print and report."""
    command = parse(arguments)
    run, usual = run_of(command.run), calibrated_options(arguments, usual_options(arguments))
    options = changes(command.acting, usual)
    if command.offline or not has_environment(run, data=command.data):
        return _offline(command, run, console)
    with listening(console) as listener:
        found = evaluate(
            run,
            limits=command.limits,
            episodes=command.episodes,
            execution={**options, **({"seed": command.seed} if hasattr(usual, "seed") else {})},
            data=command.data,
            out=command.out,
            rate=command.rate,
            shield=command.shield,
            both=command.both,
            reference=command.reference,
            seed=command.seed,
            device=command.device,
            workers=command.workers,
            listener=listener,
        )
    if command.json:
        print(json.dumps(found.plain(), indent=2))
    else:
        Console().print(verdict_table(found.plain()))
    kept = findings_of(run, command.out)
    page = write_report(kept, command.report or kept.path / "report.html")
    console.print(f"report written to {page}", soft_wrap=True)
    return 0


def usual_options(arguments: Sequence[str]) -> Any:
    """The options of the run that is named; SaFormer's where none is."""
    for argument in arguments:
        run = Run(folder_of(run_of(argument)))
        if run.spec_path.exists():
            return load(run.path, device="cpu").options()
    return ReserveOptions()


def changes(acting: Any, usual: Any) -> dict[str, Any]:
    """What was said to be done otherwise than usual."""
    return {name: value for name, value in asdict(acting).items() if value != getattr(usual, name)}


def calibrated_options(arguments: Sequence[str], usual: Any) -> Any:
    """The usual options, or where a violation rate is asked for, those that it was calibrated
    with."""
    try:
        asked, _ = _rate_parser().parse_known_args(list(arguments))
    except ArgumentError:  # the parser proper says what is wrong
        return usual
    if asked.rate is None:
        return usual
    for argument in arguments:
        path = run_of(argument)
        if Run(folder_of(path)).spec_path.exists():
            plain = dict(kept_calibration(path, asked.rate, out=asked.out).options)
            rules = find_kind(Run(folder_of(path)).spec.agent).rules
            return rules[plain.pop("rule")](**plain)
    return usual


def _rate_parser() -> ArgumentParser:
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--out")
    return parser


def run_of(path: str | Path) -> Path:
    """The run's folder; for a store, that of the latest run that was trained on it."""
    return run_of_store(path) if is_store(path) else Path(path)


def _offline(command: EvaluateCommand, run: Path, console: Console) -> int:
    asked = [
        f"--{name}" for name in ("rate", "shield", "both", "reference") if getattr(command, name)
    ]
    if asked:
        raise ValueError(
            f"{', '.join(asked)} {'needs' if len(asked) == 1 else 'need'} rollouts, but {run} is "
            "judged offline, on "
            "trajectories that are there already: leave it out, or give a run whose data has an "
            "environment"
        )
    with listening(console) as listener:
        found = evaluate_offline(
            run,
            limits=command.limits,
            data=command.data,
            out=command.out,
            device=command.device,
            listener=listener,
        ).plain()
    if command.json:
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        Console().print(offline_table(found))
    kept = findings_of(run, command.out)
    page = write_offline_report(kept, command.report or kept.path / "report.html")
    console.print(f"report written to {page}", soft_wrap=True)
    return 0
