"""`saformer evaluate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from saformer.api.runs import DEFAULT_LIMITS, evaluate, evaluate_offline, has_environment, run_of_store
from saformer.cli.progress import listening
from saformer.core.execution import ActionNoise, PastReturn
from saformer.envs.tasks import is_store
from saformer.report.offline import offline_table, write_offline_report
from saformer.report.page import write_report
from saformer.report.table import verdict_table
from saformer.runs.run import Run


@dataclass(frozen=True)
class EvaluateCommand:
    """Roll a trained policy out under several limits, all in one batch, and judge each.

    Prints a table, keeps evaluation.json (every episode, too) beside the run, and writes a report. Where the data has
    no simulator, the model is judged on held-out trajectories instead, without any rollout (--offline).
    """

    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """The run's folder, as `saformer train` printed it; or a store, for the latest run under runs/ trained on it."""
    limits: tuple[str, ...] = DEFAULT_LIMITS
    """Percentiles of the data's episode costs (p10) or plain costs (4300); commas separate constraints (p20,350)."""
    episodes: int = 20
    """Episodes under each limit."""
    verification: Literal["paper", "off"] = "paper"
    """paper: reject candidates forecast to overrun the budget. off: take the highest return proposed."""
    fallback: Literal["mean", "least_cost", "likely"] = "mean"
    """When no candidate is safe: the mean of both heads, the least forecast overrun, or that among the likely ones."""
    candidates: int | None = None
    """N, returns and actions proposed per round; by default what the run was trained for."""
    temperature: float | None = None
    """Spread of the proposals, in deviations (1: as the paper samples); by default what the run was trained for."""
    action_noise: ActionNoise | None = None
    """normal: as the paper samples. two_point: one deviation above or below the mean; by default what the run was trained for."""  # noqa: E501
    past_return: PastReturn | None = None
    """Which return-to-go enters the past: selected, expected or highest; by default what the run was trained for."""
    rounds: int = 4
    """Rounds of proposals before the fallback decides."""
    offline: bool = False
    """No rollout: judge the model on trajectories that training held out."""
    data: str | None = None
    """Where the run's store is now, if it was moved."""
    seed: int = 0
    """Decides initial states and proposals."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    workers: int | Literal["auto"] = "auto"
    """Processes that step the environments; auto: one per core where that pays. 0: none beside this one."""
    json: bool = False
    """Print JSON instead of the table."""
    report: Path | None = None
    """Where to write the report; by default report.html in the run's folder."""


def parse(arguments: Sequence[str]) -> EvaluateCommand:
    """Parse flags."""
    command = Annotated[EvaluateCommand, tyro.conf.FlagCreatePairsOff]
    return tyro.cli(command, args=list(arguments), prog="saformer evaluate")


def main(arguments: Sequence[str], console: Console) -> int:
    """Evaluate, print and report."""
    command = parse(arguments)
    run = run_of_store(command.run) if is_store(command.run) else command.run
    if command.offline or not has_environment(run, data=command.data):
        return _offline(command, run, console)
    names = ("verification", "fallback", "rounds", "seed", "candidates", "temperature", "action_noise", "past_return")
    execution = {name: getattr(command, name) for name in names if getattr(command, name) is not None}
    with listening(console) as listener:
        found = evaluate(
            run,
            limits=command.limits,
            episodes=command.episodes,
            execution=execution,
            data=command.data,
            seed=command.seed,
            device=command.device,
            workers=command.workers,
            listener=listener,
        )
    if command.json:
        print(json.dumps(found.plain(), indent=2))
    else:
        Console().print(verdict_table(found.plain()))
    page = write_report(Run(run), command.report or run / "report.html")
    console.print(f"report written to {page}", soft_wrap=True)
    return 0


def _offline(command: EvaluateCommand, run: Path, console: Console) -> int:
    with listening(console) as listener:
        found = evaluate_offline(
            run, limits=command.limits, data=command.data, device=command.device, listener=listener
        ).plain()
    if command.json:
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        Console().print(offline_table(found))
    page = write_offline_report(Run(run), command.report or run / "report.html")
    console.print(f"report written to {page}", soft_wrap=True)
    return 0
