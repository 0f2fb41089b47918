"""DSRL's 38 tasks: their files, their limits, and the scale on which their returns are told.

Facts of its `infos.py` (github.com/liuzuxin/DSRL, commit 71064f2, Apache-2.0). The data itself is
CC BY 4.0: Liu et al., Datasets and Benchmarks for Offline Safe Reinforcement Learning, 2023.
"""

from __future__ import annotations

import csv
import difflib
import os
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

from saformer.data.home import home
from saformer.data.sources.source import EnvironmentHints

PREFIX = "dsrl:"
"""Of a task, and of its environment: data of our own making, or a store's."""
FILE_PREFIX = "dsrl-hdf5:"
"""Of the data that DSRL's authors recorded on the task."""
HOST = "https://huggingface.co/datasets/YYY-45/DSRL/resolve/main"
NAME = re.compile(r"Offline(?:Metadrive-)?(\w+?)(?:Gymnasium)?-v\d")
Suite = Literal["bullet", "navigation", "velocity", "metadrive"]


@dataclass(frozen=True)
class DsrlTask:
    """One task as DSRL's authors define it."""

    name: str  # as in OfflineBallRun-v0
    file: str  # of its data
    horizon: int
    lowest_return: float  # of an episode in the file, as are the following
    highest_return: float
    highest_cost: float

    @property
    def brief(self) -> str:
        """The name in tables: BallRun."""
        match = NAME.fullmatch(self.name)
        assert match is not None, "the packaged table is as the test has seen it"
        return match[1]

    @property
    def suite(self) -> Suite:
        if "Metadrive" in self.name:
            return "metadrive"
        if "Gymnasium" not in self.name:
            return "bullet"
        return "velocity" if "Velocity" in self.name else "navigation"

    @property
    def environment(self) -> str | None:
        """By which it is made; MetaDrive's cannot be, here."""
        return None if self.suite == "metadrive" else PREFIX + self.name

    @property
    def limits(self) -> tuple[float, float, float]:
        """The three of the benchmark's protocol."""
        few, many = (10.0, 20.0, 40.0), (20.0, 40.0, 80.0)
        return few if self.suite in {"bullet", "metadrive"} else many

    @property
    def tight_limit(self) -> float:
        """Half of the least: the hardest of the settings that CAPS reports."""
        return self.limits[0] / 2

    def normalised_return(self, episode_return: float) -> float:
        """0 and 1 are the lowest and the highest return in DSRL's file."""
        span = self.highest_return - self.lowest_return
        return (episode_return - self.lowest_return) / span


@cache
def dsrl_tasks() -> dict[str, DsrlTask]:
    """All 38, by name."""
    text = resources.files("saformer").joinpath("assets", "dsrl.csv").read_text()
    _, *rows = csv.reader(text.splitlines())
    tasks = [DsrlTask(n, f, int(steps), *map(float, rest)) for n, f, steps, *rest in rows]
    return {task.name: task for task in tasks}


def find_dsrl(name: str) -> DsrlTask:
    """The task of DSRL's name, with or without a prefix."""
    plain = name.removeprefix(PREFIX).removeprefix(FILE_PREFIX)
    if plain not in dsrl_tasks():
        near = difflib.get_close_matches(plain, dsrl_tasks(), n=3) or list(dsrl_tasks())[:3]
        raise ValueError(f"DSRL has no task {plain!r}; did you mean {' or '.join(near)}?")
    return dsrl_tasks()[plain]


def hints_of_file(file: str, num_actions: int) -> EnvironmentHints:
    """What is known of the environment that a file of DSRL's was recorded in, by the file's name;
    nothing of other files."""
    task = next((task for task in dsrl_tasks().values() if task.file == file), None)
    if task is None:
        return EnvironmentHints()
    bounds = (-1.0,) * num_actions, (1.0,) * num_actions
    return EnvironmentHints(task.environment, task.horizon, *bounds)


def local_file(task: DsrlTask) -> tuple[Path, str]:
    """Where a task's file lies or belongs, and where it can be downloaded: in $DSRL_DATASET_DIR or
    DSRL's own folder if it is there, else in ours."""
    theirs = os.environ.get("DSRL_DATASET_DIR") or Path.home() / ".dsrl" / "datasets"
    path, ours = Path(theirs) / task.file, home() / "dsrl" / task.file
    return (path if path.exists() and not ours.exists() else ours), f"{HOST}/{task.file}"
