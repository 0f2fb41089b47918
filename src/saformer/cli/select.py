"""`saformer select`."""

from dataclasses import dataclass, field
from typing import Annotated

import tyro
from rich.console import Console

from saformer.api.loaded import Context
from saformer.cli.command import Command, show
from saformer.cli.judge import run_path
from saformer.cli.progress import listening
from saformer.report.selection import selection_table
from saformer.selection import MARGINS, select_policy
from saformer.trained import load


@dataclass(frozen=True, kw_only=True)
class SelectCommand(Command):
    """Choose among runs, rules and margins by the logs alone, without a simulator.

    Each is rolled out in a world learnt from its run's data. The one with the highest safe share is
    named: what it earns of the best logged return, 0 under limits that it misses or where the
    estimate is not supported. --check rolls out in the simulator too, where there is one.
    """

    runs: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN [RUN ...]")]]
    """Runs, or stores, for the latest run on each."""
    limits: tuple[str, ...] = ()
    """Percentiles of the data's episode costs (p10) or costs (4300); by default p10 p20 p30 p50."""
    rules: tuple[str, ...] = ()
    """Rules to try; by default all that an agent has."""
    margins: tuple[float, ...] = MARGINS
    """Shares of each limit to withhold from the policy, to be tried."""
    episodes: int = 20
    """Episodes under each limit."""
    check: bool = False
    """Also roll out in the simulator, and say what that would have chosen."""
    seed: int = 0
    """Decides initial states and proposals."""
    json: bool = False
    """Print JSON instead of the table."""
    context: Context = field(default_factory=Context)
    """Where."""

    def run(self, console: Console) -> int:
        names = ("limits", "rules", "margins", "episodes", "check", "seed")
        how = {name: getattr(self, name) for name in names}
        with listening(console) as listener:
            where = {**vars(self.context), "listener": listener}
            selection = select_policy([load(run_path(path), **where) for path in self.runs], **how)
        show(selection.plain(), selection_table, as_json=self.json)
        return 0
