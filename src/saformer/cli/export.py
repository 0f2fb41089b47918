"""`saformer export`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from saformer.api import export
from saformer.cli.evaluate import run_of
from saformer.cli.progress import listening


@dataclass(frozen=True)
class ExportCommand:
    """Write what a run has learnt to a small folder, to act and be judged where its data is not.

    `saformer.load(OUT)`, `saformer evaluate OUT` and `saformer sweep OUT` read it. It holds the
    weights, what the run is, and what each stored trajectory earned and cost, so that limits such
    as p10 need no data; it holds no states, no actions, and nothing to train on with. In float32 it
    is calibrated as the run is; rounded, it must be calibrated again (`saformer calibrate OUT`).
    """

    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """The run's folder, as `saformer train` printed it; or a store, for the latest run under runs/
    trained on it."""
    out: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="OUT")]]
    """A new folder."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """What matrices are kept in. bfloat16: half the size, three digits; float32: as they were
    trained."""
    command: str | None = None
    """The command that trained the run, to be kept with it."""
    data: str | None = None
    """Where the run's store is now, if it was moved."""


def parse(arguments: Sequence[str]) -> ExportCommand:
    """Parse flags."""
    return tyro.cli(ExportCommand, args=list(arguments), prog="saformer export")


def main(arguments: Sequence[str], console: Console) -> int:
    """Export, and say where to and how large it is."""
    command = parse(arguments)
    with listening(console) as listener:
        export(
            run_of(command.run),
            command.out,
            dtype=command.dtype,
            command=command.command,
            data=command.data,
            listener=listener,
        )
    return 0
