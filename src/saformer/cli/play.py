"""`saformer play`."""

from dataclasses import dataclass, field
from typing import Annotated

import tyro
from rich.console import Console

from saformer.cli.command import Command
from saformer.live.play.server import play
from saformer.live.play.settings import PlaySettings


@dataclass(frozen=True, kw_only=True)
class PlayCommand(Command):
    """Watch a policy act on a page of this machine, and move its budget while it does.

    The page has sliders for the limits, marked with the data's percentiles; start, pause, step,
    seed and speed; rules and their options; and two lanes side by side. `Save episode` writes what
    was played as one HTML page that plays by itself. A run that still learns shows its curves, and
    every episode is played by its newest checkpoint.
    """

    runs: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN [RUN ...]")]]
    """Folders of runs or exports, or pretrained:NAME (pretrained:halfcheetah-effort); lanes choose
    among them, and the first is played. Or one recorded episode (.html)."""
    settings: PlaySettings = field(default_factory=PlaySettings)
    """How."""

    def run(self, console: Console) -> int:
        play(self.runs, self.settings, lambda text: console.print(text, soft_wrap=True))
        return 0
