"""`saformer sweep`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from saformer.api import sweep
from saformer.cli.evaluate import run_of
from saformer.cli.progress import listening
from saformer.report.table import numbers


@dataclass(frozen=True)
class SweepCommand:
    """Roll a trained policy out with one option at several values, and say which earned most.

    By default the option is the return that dt and cdt are asked for, tried from well within to
    beyond the data. Keeps sweep.json beside the run or in --out.
    """

    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """The run's folder, as `saformer train` printed it; or an export; or pretrained:NAME."""
    values: tuple[float, ...] = ()
    """Values to try; for target_return by default five spread over the data and beyond, and the
    usual one."""
    option: str = "target_return"
    """An option of the run's agent that takes a number: target_return (dt, cdt), temperature."""
    limits: tuple[str, ...] = ()
    """What to judge by; by default p10 p20 p30 p50, or the one limit that the run was trained
    for."""
    episodes: int = 20
    """Episodes under each limit, for each value."""
    data: str | None = None
    """Where the run's store is now, if it was moved."""
    out: Path | None = None
    """Where to keep what was found; by default the run's folder, for pretrained:NAME
    runs/pretrained-NAME."""
    seed: int = 0
    """Decides initial states."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    workers: int | Literal["auto"] = "auto"
    """Processes that step the environments; auto: one per core where that pays. 0: none beside this
    one."""
    json: bool = False
    """Print JSON instead of the table."""


def parse(arguments: Sequence[str]) -> SweepCommand:
    """Parse flags."""
    command = Annotated[SweepCommand, tyro.conf.FlagCreatePairsOff]
    return tyro.cli(command, args=list(arguments), prog="saformer sweep")


def main(arguments: Sequence[str], console: Console) -> int:
    """Sweep and print."""
    command = parse(arguments)
    with listening(console) as listener:
        found = sweep(
            run_of(command.run),
            command.values,
            option=command.option,
            limits=command.limits,
            episodes=command.episodes,
            data=command.data,
            out=command.out,
            seed=command.seed,
            device=command.device,
            workers=command.workers,
            listener=listener,
        ).plain()
    if command.json:
        print(json.dumps(found, indent=2))
    else:
        Console(highlight=False).print(_table(found))
    return 0


def _table(found: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in (found["option"], "return", "cost", "limits met", ""):
        table.add_column(heading, justify="right")
    for trial in found["trials"]:
        met = f"{trial['limits_met']} of {len(trial['verdicts'])}"
        best = "earns most" if trial["value"] == found["best"] else ""
        earned, cost = numbers([trial["mean_return"]]), numbers(trial["mean_cost"])
        table.add_row(numbers([trial["value"]]), earned, cost, met, best)
    return table
