"""`saformer export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from saformer.cli.command import Command
from saformer.cli.judge import run_path
from saformer.cli.progress import listening
from saformer.trained import load


@dataclass(frozen=True, kw_only=True)
class ExportCommand(Command):
    """Write what a run has learnt to a small folder, to act and be judged where its data is not.

    `saformer.load(OUT)`, `saformer evaluate OUT` and `saformer sweep OUT` read it. It holds the
    weights, what the run is, and what each stored trajectory earned and cost, so that limits such
    as p10 need no data; it holds no states, no actions, and nothing to train on with. In float32 it
    is calibrated as the run is; rounded, it must be calibrated again (`saformer calibrate OUT`).
    """

    path: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="RUN")]]
    """The run's folder, as `saformer train` printed it; or a store, for the latest run under runs/
    trained on it."""
    out: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="OUT")]]
    """A new folder."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Precision of matrices. bfloat16: half the size, three digits; float32: as they were
    trained."""
    command: str | None = None
    """The command that trained the run, for the record."""
    data: str | None = None
    """Where the run's store is now, if it was moved."""

    def run(self, console: Console) -> int:
        with listening(console) as listener:
            trained = load(run_path(self.path), listener=listener, device="cpu", data=self.data)
            trained.export(self.out, dtype=self.dtype, command=self.command)
        return 0
