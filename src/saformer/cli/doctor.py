"""`saformer doctor` and `saformer agents`."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch
from rich.console import Console

from saformer import __version__
from saformer.cli.command import Command, plain_table
from saformer.data.home import data_home
from saformer.runs.pretrained import PREFIX, pretrained_names

CORE = ("torch", "numpy", "safetensors", "tyro", "rich", "matplotlib")
EXTRAS = {
    "mujoco": (("gymnasium", "mujoco", "imageio"), "the nine tasks, rollouts, the demo"),
    "hdf5": (("h5py",), "D4RL and DSRL files"),
    "minari": (("minari",), "Minari datasets"),
    "logs": (("pyarrow",), "CSV and Parquet logs"),
    "behaviours": (("stable-baselines3",), "training behaviour policies"),
    "ray": (("ray",), "experiments on a cluster"),
    "track": (("tensorboard",), "TensorBoard metrics"),
}


@dataclass(frozen=True, kw_only=True)
class DoctorCommand(Command):
    """Say what is installed, which device will be used, and how to get what is missing."""

    def run(self, console: Console) -> int:
        out, python = Console(highlight=False), platform.python_version()
        machine = f"{platform.system()} {platform.machine()}"
        out.print(f"saformer {__version__} on Python {python}, {machine}")
        out.print(f"device: {_device()}")
        where = f"datasets are kept in {data_home()} (set SAFORMER_HOME to change it)"
        out.print(where, soft_wrap=True)
        out.print(f"pretrained policies: {_pretrained()}", soft_wrap=True)
        parts = {"core": (CORE, "everything"), **EXTRAS}
        rows = [
            row for name, (packages, use) in parts.items() for row in _rows(name, use, packages)
        ]
        out.print(plain_table(("part", "for", "package", "version"), rows))
        absent = {name for name in parts if any(_version(each) is None for each in parts[name][0])}
        for name in (name for name in EXTRAS if name in absent):
            out.print(f"for {EXTRAS[name][1]}: pip install 'saformer\\[{name}]'", soft_wrap=True)
        return 1 if "core" in absent else 0


@dataclass(frozen=True, kw_only=True)
class AgentsCommand(Command):
    """List the methods that can be trained: `saformer train TASK --agent NAME`.

    Those that are trained for one limit need --limit with it; the others hear their limit when they
    act. `saformer train --agent NAME --help` shows what can be set, `docs/agents` says what each
    is.
    """

    def run(self, console: Console) -> int:
        from saformer.agents.registry import KINDS

        rows = [
            (name, "yes" if kind.has_one_limit else "no", kind.description)
            for name, kind in KINDS.items()
        ]
        table = plain_table(("agent", "needs --limit", "what it is"), rows)
        Console(highlight=False).print(table)
        return 0


def _rows(part: str, purpose: str, packages: Sequence[str]) -> list[tuple[str, ...]]:
    versions = [(each, _version(each) or "[yellow]missing[/yellow]") for each in packages]
    return [(part, purpose, *versions[0]), *(("", "", *each) for each in versions[1:])]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _pretrained() -> str:
    names = [PREFIX + name for name in pretrained_names()]
    if not names:
        return "none come with this version"
    return f"{', '.join(names)} (saformer evaluate {names[0]})"


def _device() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()} (cuda)"
    return f"cpu, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
