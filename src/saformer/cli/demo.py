"""`saformer demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from saformer.api.demo import demo, demo_run
from saformer.cli.command import Command
from saformer.cli.progress import listening
from saformer.report.table import verdict_table
from saformer.runs.run import Run


@dataclass(frozen=True, kw_only=True)
class DemoCommand(Command):
    """Make a hopper-medium-replay dataset, train a small model, evaluate it under five limits,
    write a report.

    Takes a few minutes on two cores and needs no download. Interrupted, it goes on where it
    stopped.
    """

    out: Path = Path("demo")
    """Where the run and report.html go."""
    scale: Literal["full", "smoke"] = "full"
    """smoke: the same steps with next to no data and training, to see that everything works."""
    seed: int = 0
    """Decides the weights, the windows and the evaluation."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""

    def run(self, console: Console) -> int:
        with listening(console) as listener:
            page = demo(**vars(self), listener=listener)
        run = Run(demo_run(self.out, self.scale, self.seed))
        Console().print(verdict_table(run.read_json("evaluation.json")))
        Console().print(f"Open {page.resolve()} in a browser.", soft_wrap=True)
        return 0
