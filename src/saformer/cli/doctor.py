"""`saformer doctor` and `saformer agents`."""

import platform
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console

from saformer import __version__
from saformer.cli.command import Command, terminal
from saformer.data.home import data_home
from saformer.data.store import TrajectoryStore
from saformer.engine.device import device_description
from saformer.engine.installed import CORE, EXTRAS, command_for, version_of
from saformer.envs.tasks import is_store
from saformer.report.table import Cell, terminal_table
from saformer.runs.export import check_whole
from saformer.runs.pretrained import PREFIX, pretrained_names
from saformer.runs.run import find_run

MISSING = ("missing", "missed")


@dataclass(frozen=True, kw_only=True)
class DoctorCommand(Command):
    """Say what is installed, which device will be used, and how to get what is missing; or hold
    a store, a run or an export against its checksums."""

    path: tyro.conf.Positional[Annotated[str | None, tyro.conf.arg(metavar="PATH")]] = None
    """What to check."""

    def run(self, console: Console) -> int:
        out, machine = terminal(), f"{platform.system()} {platform.machine()}"
        if self.path is not None:
            is_data, path = is_store(self.path), self.path
            parts = TrajectoryStore.open(path).check() if is_data else check_whole(find_run(path))
            out.print(f"{path} is whole: {parts}", soft_wrap=True)
            return 0
        out.print(f"saformer {__version__} on Python {platform.python_version()}, {machine}")
        out.print(f"device: {device_description()}")
        out.print(f"datasets: {data_home()} (set SAFORMER_HOME to change it)", soft_wrap=True)
        out.print(f"pretrained policies: {_pretrained()}", soft_wrap=True)
        rows, absent = list[list[Cell]](), list[str]()
        for name, (packages, purpose) in {"core": (CORE, "everything"), **EXTRAS}.items():
            versions = [version_of(package) for package in packages]
            labels = [(name, purpose), *[("", "")] * (len(packages) - 1)]
            triples = zip(labels, packages, versions, strict=True)
            rows += [[*label, package, known or MISSING] for label, package, known in triples]
            absent += [name] if None in versions else []
        out.print(terminal_table(("part", "for", "package", "version"), rows, justify="left"))
        for name in (name for name in absent if name in EXTRAS):
            out.print(f"for {EXTRAS[name][1]}: {command_for(name)}", soft_wrap=True)
        return 1 if "core" in absent else 0


@dataclass(frozen=True, kw_only=True)
class AgentsCommand(Command):
    """List the methods that can be trained: `saformer train TASK --agent NAME`.

    Those that are trained for one limit need --limit; the others hear their limit when they act.
    `saformer train --agent NAME --help` shows what can be set, `docs/agents` says what each is.
    """

    def run(self, console: Console) -> int:
        from saformer.agents.registry import all_kinds

        facts = [(n, kind.has_one_limit, kind.description) for n, kind in all_kinds().items()]
        rows = [[name, "yes" if one_limit else "no", what] for name, one_limit, what in facts]
        table = terminal_table(("agent", "needs --limit", "what it is"), rows, justify="left")
        terminal().print(table)
        return 0


def _pretrained() -> str:
    names = [PREFIX + name for name in pretrained_names()]
    return f"{', '.join(names)} (saformer evaluate {names[0]})" if names else "none"
