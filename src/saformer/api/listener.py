"""What a front end may want to hear of."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saformer.training.loop.trainer import Metrics

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Listener:
    """Every part is optional."""

    say: Callable[[str], None] = lambda message: None
    """one line for a person"""
    building: Progress | None = None
    """(steps made, steps wanted) while data is built or imported"""
    surveying: Progress | None = None
    """(files read, files in all) while logs are looked through"""
    training: Callable[[int, int, Metrics], None] = lambda update, updates, metrics: None
    """(update, of how many, latest metrics)"""
    row: Callable[[Path, dict[str, Any]], None] = lambda run, row: None
    """(run, row) for each row of metrics"""
    evaluating: Progress | None = None
    """(episodes finished, episodes in all)"""
