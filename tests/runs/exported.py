"""A tiny run whose weights all matter, and exports of it."""

from __future__ import annotations

from pathlib import Path

import torch

from saformer.runs.checkpoint import Checkpoint
from saformer.runs.run import Run
from tests.cli.test_cli import tiny_run


def telling_run(path: Path, *more: str) -> Run:
    """Trained for a moment on Allowance, then given weights so large that rounding them shows."""
    assert tiny_run(path, *more) == 0
    run = Run(path)
    saved, generator = run.load(), torch.Generator().manual_seed(0)
    buffers = ("normalizer.", "action_low", "action_high", "outlook.")
    model = {
        name: value
        if name.startswith(buffers)
        else 0.3 * torch.randn(value.shape, generator=generator)
        for name, value in saved.groups["model"].items()
    }
    run.save(Checkpoint({**saved.groups, "model": model}, saved.facts))
    return run


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
