"""`saformer data collect`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.text import Text

from saformer.api.collect import collect
from saformer.cli.command import Command
from saformer.cli.progress import listening


@dataclass(frozen=True, kw_only=True)
class CollectCommand(Command):
    """Roll a policy of your own out in a simulator of your own, and store the episodes.

    Numbers in `info` become columns of the store, and info["cost"] what a step costs. Ctrl-C ends
    it and keeps the whole episodes.
    """

    environment: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="ENV")]]
    """A Gymnasium id, module:Name or ./file.py:Name (a class, a function that makes one, an id)."""
    policy: str
    """module:Name or ./file.py:Name: a function that makes an action of an observation, or a class
    whose instances do, made anew for every episode with a numpy Generator."""
    out: Path
    """The store's folder."""
    episodes: int = 200
    """How many."""
    criteria: tuple[str, ...] = ()
    """What a step costs, one per constraint: a number in info by its name, an expression such as
    "abs(action).sum()", ./file.py:function; by default info["cost"]."""
    seed: int = 0
    """Decides initial states, and what a policy's class is given."""
    horizon: int | None = None
    """Steps after which an episode is over, where the environment does not end it."""

    def run(self, console: Console) -> int:
        with listening(console) as listener:
            store = collect(**vars(self), listener=listener).store
        following = f"next: saformer data inspect {self.out}\n      saformer train {self.out}"
        console.print(Text(following), soft_wrap=True)
        return 0 if len(store) == self.episodes else 130
