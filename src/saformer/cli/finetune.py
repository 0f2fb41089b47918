"""`saformer finetune`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from rich.console import Console

from saformer.cli.judge import RunCommand
from saformer.cli.progress import listening
from saformer.report.page import write_report
from saformer.report.table import verdict_table
from saformer.trained import load
from saformer.training.finetune_config import FinetuneConfig


@dataclass(frozen=True, kw_only=True)
class FinetuneCommand(RunCommand):
    """Let a trained SaFormer explore its environment until it keeps limits that its data never
    showed.

    It prompts for less than each limit, adds every episode with its true cost to the data, and goes
    on learning from old and new data. One line says what each episode cost. The new run stands
    beside the old one, which is not touched; Ctrl-C saves it, and the same command with --resume
    goes on. At the end every limit is judged and a report written.
    """

    usual_rule: ClassVar[str | None] = "paper"
    limit: tuple[str, ...] = ()
    """Limits to keep: costs (3700), or percentiles of the data's (p10); commas separate
    constraints."""
    rule: str | None = "paper"
    """How the policy is judged: paper (Algorithm 1), or reserve as `saformer evaluate` judges."""
    ceiling: str | None = None
    """Cost at which an episode of exploration is ended: a cost, or a percentile of the data's. By
    default none is."""
    out: Path | None = None
    """Where to write the new run; by default a folder under runs/ named after the old one."""
    seed: int = 0
    """Decides initial states, proposals and windows."""
    resume: bool = False
    """Go on with an interrupted run of the same settings."""
    tensorboard: bool = False
    """Write metrics for TensorBoard too, into the run's folder (needs saformer[track])."""
    config: FinetuneConfig = field(default_factory=FinetuneConfig)
    """How to explore and learn."""

    def run(self, console: Console) -> int:
        acting = {"rule": self.rule, "options": self.changes}
        with listening(console, tensorboard=self.tensorboard) as listener:
            tuned = self.load(listener).finetune(
                self.limit,
                ceiling=self.ceiling,
                config=self.config,
                out=self.out,
                seed=self.seed,
                resume=self.resume,
                **acting,
            )
        with listening(console) as listener:
            context = {"device": self.context.device, "workers": self.context.workers}
            trained = load(tuned.run.path, listener=listener, **context)
            evaluation = trained.evaluate(self.limit, seed=self.seed, **acting)
        Console().print(verdict_table(evaluation.plain()))
        page = write_report(tuned.run, tuned.run.path / "report.html")
        console.print(f"report written to {page}", soft_wrap=True)
        return 0
