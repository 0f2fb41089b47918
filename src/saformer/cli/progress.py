"""Progress bars for long work; plain lines where there is no terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Self

from rich import progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from saformer.api.listener import Listener
from saformer.report.tensorboard import tensorboard_writer
from saformer.runs.metrics import terms_by_phase
from saformer.training.loop.trainer import Metrics

PLAIN_LINES = 10
"""How often progress is said when there is no terminal to draw a bar on."""


class Bars:
    """One bar per kind of work, shown when it begins."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description:<12}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            progress.TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, progress.TaskID] = {}
        self._said: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, name: str, done: int, total: int, note: str = "") -> None:
        if self._console.is_terminal:
            if name not in self._tasks:
                self._tasks[name] = self._progress.add_task(name, total=total, note=note)
            self._progress.update(self._tasks[name], completed=done, total=total, note=note)
            return
        tenth, said = done * PLAIN_LINES // total, self._said.get(name, 0)
        if tenth > said:
            self.say(f"{name}: {done} of {total} {note}")
        self._said[name] = tenth  # it falls when the next run begins

    def say(self, message: str) -> None:
        self._console.print(message, soft_wrap=True)


@contextmanager
def listening(console: Console, *, tensorboard: bool = False) -> Iterator[Listener]:
    """A listener that draws bars and, if wanted, writes metrics for TensorBoard."""
    row = tensorboard_writer() if tensorboard else (lambda run, row: None)
    with Bars(console) as bars:

        def training(update: int, total: int, metrics: Metrics) -> None:
            bars.advance("training", update, total, _losses(metrics))

        yield Listener(
            say=bars.say,
            building=partial(bars.advance, "data"),
            surveying=partial(bars.advance, "survey"),
            training=training,
            row=row,
            evaluating=partial(bars.advance, "evaluation"),
        )


def _losses(metrics: Metrics) -> str:
    """What each phase minimises: the sum of its terms."""
    terms = terms_by_phase(metrics).items()
    sums = {phase: sum(metrics[name] for name in names) for phase, names in terms}
    return "  ".join(f"{phase} {total:7.4f}" for phase, total in sums.items())
