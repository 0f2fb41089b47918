"""`saformer compare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from saformer.cli.command import Command, show
from saformer.cli.judge import run_path
from saformer.report.compare import compare, comparison_tables


@dataclass(frozen=True, kw_only=True)
class CompareCommand(Command):
    """Hold runs of any tasks and agents against each other, by the latest evaluation of each.

    Prints one table, and writes comparison.html with curves and comparison.csv to --out.
    """

    runs: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN [RUN ...]")]]
    """Runs that `saformer evaluate` judged; or one of a run's earlier evaluations:
    RUN/evaluations/NAME.json."""
    out: Path = Path("comparison")
    """Folder of the page and the CSV file."""
    json: bool = False
    """Print JSON instead of the table."""

    def run(self, console: Console) -> int:
        comparison = compare([run_path(path) for path in self.runs])
        content = comparison.plain() if self.json else comparison
        show(content, comparison_tables, as_json=self.json)
        console.print(f"page written to {comparison.write(self.out)}", soft_wrap=True)
        return 0
