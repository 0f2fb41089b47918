"""`saformer agents`."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from saformer.agents.registry import KINDS
from saformer.cli.command import Command


@dataclass(frozen=True, kw_only=True)
class AgentsCommand(Command):
    """List the methods that can be trained: `saformer train TASK --agent NAME`.

    Those that are trained for one limit need --limit with it; the others hear their limit when they
    act. `saformer train --agent NAME --help` shows what can be set, `docs/agents` says what each
    is.
    """

    def run(self, console: Console) -> int:
        table = Table(box=None, pad_edge=False)
        for heading in ("agent", "needs --limit", "what it is"):
            table.add_column(heading, overflow="fold")
        for name, kind in KINDS.items():
            table.add_row(name, "yes" if kind.has_one_limit else "no", kind.description)
        Console(highlight=False).print(table)
        return 0
