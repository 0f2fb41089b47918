"""Runs that many tests begin with, trained once in a process and then copied."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from saformer.cli.main import main


def train(words: list[str], path: str | Path) -> int:
    """`saformer train WORDS --out PATH`; a run of the same words is copied to a new path."""
    if Path(path).exists() or {"--resume", "--criteria"} & set(words):
        return main(["train", *words, "--out", str(path)])
    shutil.copytree(_trained(tuple(words)), path)
    return 0


@cache
def _trained(words: tuple[str, ...]) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="saformer-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    assert main(["train", *words, "--out", str(folder / "run")]) == 0
    return folder / "run"
