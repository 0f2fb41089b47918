"""Progress bars for long work; plain lines where there is no terminal."""

import time
from collections.abc import Mapping
from typing import Self

from rich import progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from saformer.runs.metrics import terms_by_phase

PLAIN_LINES = 10
"""How often progress is said when there is no terminal to draw a bar on."""
SHORT = 5.0  # seconds that nobody need be told of


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
        self._began: dict[str, tuple[float, int]] = {}  # when, and with how much done

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
        if name not in self._began or tenth < said:  # it falls when the next run begins
            self._began[name] = time.monotonic(), done
        if tenth > said:
            parts = (f"{name}: {done} of {total}", self._left(name, done, total), note)
            self.say("  ".join(part for part in parts if part))
        self._said[name] = tenth

    def _left(self, name: str, done: int, total: int) -> str:
        """How long it will take at this pace; nothing if that is less than some seconds."""
        began, first = self._began[name]
        rate = (done - first) / max(time.monotonic() - began, 1e-9)
        seconds = (total - done) / rate if rate else 0.0
        if seconds < SHORT:
            return ""
        return f"{seconds:.0f} s left" if seconds < 90 else f"{seconds / 60:.0f} min left"

    def say(self, message: str) -> None:
        self._console.print(message, soft_wrap=True)


def losses_line(metrics: Mapping[str, float]) -> str:
    """What each phase minimises: the sum of its terms."""
    terms = terms_by_phase(metrics).items()
    sums = {phase: sum(metrics[name] for name in names) for phase, names in terms}
    return "  ".join(f"{phase} {total:7.4f}" for phase, total in sums.items())
