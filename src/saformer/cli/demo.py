"""`saformer demo`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.text import Text

from saformer.api import demo
from saformer.cli.progress import listening
from saformer.report.table import verdict_table
from saformer.runs.run import Run
from saformer.training.loop.fit import InterruptedTrainingError


@dataclass(frozen=True)
class DemoCommand:
    """Make a hopper-medium-replay dataset, train a small model, evaluate it under five limits,
    write a report.

    Takes a few minutes on two cores and needs no download. InterruptedTrainingError, it goes on
    where it stopped.
    """

    out: Path = Path("demo")
    """Where the run and report.html go."""
    scale: Literal["full", "smoke"] = "full"
    """smoke: the same steps with next to no data and training, to see that everything works."""
    seed: int = 0
    """Decides the weights, the windows and the evaluation."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""


def parse(arguments: Sequence[str]) -> DemoCommand:
    """Parse flags."""
    return tyro.cli(DemoCommand, args=list(arguments), prog="saformer demo")


def main(arguments: Sequence[str], console: Console) -> int:
    """Run the demo and show what it found."""
    command = parse(arguments)
    try:
        with listening(console) as listener:
            page = demo(
                command.out,
                scale=command.scale,
                seed=command.seed,
                device=command.device,
                listener=listener,
            )
    except InterruptedTrainingError as error:
        console.print(
            Text(f"{error}. The same command goes on from there.", style="yellow"), soft_wrap=True
        )
        return 130
    run = Run(command.out / f"run-{command.scale}-seed{command.seed}")
    Console().print(verdict_table(run.read_json("evaluation.json")))
    Console().print(f"Open {page.resolve()} in a browser.", soft_wrap=True)
    return 0
