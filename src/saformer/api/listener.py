"""What a front end may want to hear of."""

from collections.abc import Callable
from dataclasses import dataclass, replace
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
    finishing: Progress | None = None
    """(update, of how many) while the rule's outlook is fitted, after training"""
    row: Callable[[Path, dict[str, Any]], None] = lambda run, row: None
    """(run, row) for each row of metrics"""
    evaluating: Progress | None = None
    """(episodes finished, episodes in all)"""

    def with_tensorboard(self) -> "Listener":
        """Rows of metrics are also written for TensorBoard, into the run's folder."""
        from saformer.report.tensorboard import tensorboard_writer

        write, hear = tensorboard_writer(), self.row

        def row(run: Path, values: dict[str, Any]) -> None:
            hear(run, values)
            write(run, values)

        return replace(self, row=row)
