"""`saformer doctor`."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch
import tyro
from rich.console import Console
from rich.table import Table

from saformer import __version__
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


@dataclass(frozen=True)
class DoctorCommand:
    """Say what is installed, which device will be used, and how to get what is missing."""


def main(arguments: Sequence[str], console: Console) -> int:
    """Print the findings; fails if something that everything needs is missing."""
    tyro.cli(DoctorCommand, args=list(arguments), prog="saformer doctor")
    out = Console(highlight=False)
    out.print(
        f"saformer {__version__} on Python {platform.python_version()}, {platform.system()} "
        f"{platform.machine()}"
    )
    out.print(f"device: {_device()}")
    out.print(
        f"datasets are kept in {data_home()} (set SAFORMER_HOME to change it)", soft_wrap=True
    )
    out.print(f"pretrained policies: {_pretrained()}", soft_wrap=True)
    table = Table("part", "for", "package", "version", box=None, pad_edge=False)
    missing = _fill(table, "core", "everything", CORE)
    absent = [
        extra
        for extra, (packages, purpose) in EXTRAS.items()
        if _fill(table, extra, purpose, packages)
    ]
    out.print(table)
    for extra in absent:
        out.print(f"for {EXTRAS[extra][1]}: pip install 'saformer\\[{extra}]'", soft_wrap=True)
    return 1 if missing else 0


def _fill(table: Table, part: str, purpose: str, packages: Sequence[str]) -> bool:
    """Add a row per package; answer whether any is missing."""
    missing = False
    for place, package in enumerate(packages):
        try:
            found = version(package)
        except PackageNotFoundError:
            found, missing = "[yellow]missing[/yellow]", True
        table.add_row(*((part, purpose) if place == 0 else ("", "")), package, found)
    return missing


def _pretrained() -> str:
    names = [PREFIX + name for name in pretrained_names()]
    return (
        f"{', '.join(names)} (saformer evaluate {names[0]})"
        if names
        else "none come with this version"
    )


def _device() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()} (cuda)"
    return f"cpu, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
