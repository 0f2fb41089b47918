"""Tasks by name: where their data comes from."""

import difflib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from saformer.data.folder import MANIFEST, one_maker
from saformer.data.home import data_home
from saformer.data.sources.dsrl import FILE_PREFIX, PREFIX, find_dsrl
from saformer.data.sources.names import is_hosted, open_source
from saformer.data.sources.source import import_source
from saformer.data.store import TrajectoryStore

Make = Callable[..., TrajectoryStore]
"""(path, *, steps, seed, workers=None, progress=None): makes a task's data there, and opens it."""
REPLAY_STEPS, EFFORT_STEPS, MIXTURE_STEPS = 300_000, 400_000, 1_000_000
ALLOWANCE_EPISODES, PLANT_EPISODES = 2000, 600
ROBOTS = ("hopper", "walker2d", "halfcheetah")
MIXTURES = ("medium", "medium-replay", "medium-expert")
MIXTURE_TASKS = tuple(f"{robot}-{mixture}" for robot in ROBOTS for mixture in MIXTURES)
EFFORT_TASKS = tuple(f"{robot}-effort" for robot in ROBOTS)
PLANT_TASKS = ("plant-room", "plant-battery", "plant-tank")


@dataclass(frozen=True)
class Task:
    """A dataset by name: one that is there already, or one that can be made."""

    name: str
    steps: int | None = None  # canonical size of the dataset; None if it has the size it has
    make: Make | None = None
    store: TrajectoryStore | None = None
    may_end: bool = False  # whether ending an episode early is a legitimate way to keep a limit


def task_names() -> list[str]:
    """Every task that can be built on this machine without a download."""
    return ["allowance", *MIXTURE_TASKS, *EFFORT_TASKS, *PLANT_TASKS]


def find_task(name: str) -> Task:
    """The task or hosted dataset of this name, or the trajectory store at this path."""
    if name == "allowance":
        from saformer.envs.allowance import HORIZON

        return Task(name, ALLOWANCE_EPISODES * HORIZON, _make_allowance, may_end=True)
    if name in PLANT_TASKS:
        return _plant_task(name)
    if name in EFFORT_TASKS or name in MIXTURE_TASKS:
        return _robot_task(name)
    if name.startswith(PREFIX):
        return _dsrl_task(name)
    if is_hosted(name):
        return Task(name, None, partial(_import_hosted, name))
    if is_store(name):
        store = TrajectoryStore.open(name)
        return Task(name, store=store, may_end=store.environment.may_end)
    raise ValueError(_unknown(name))


def mixture_of(name: str) -> tuple[str, str]:
    """The packaged behaviours of a robot's task, and how they are mixed."""
    if name in EFFORT_TASKS:
        return name, "medium-replay"
    robot, mixture = name.split("-", 1)
    return robot, mixture


def is_store(path: str | Path) -> bool:
    """Whether there is a trajectory store at this path."""
    return (Path(path) / MANIFEST).exists()


def locator(task: str) -> str:
    """The task by a name that leads to its data from any folder."""
    return str(Path(task).resolve()) if is_store(task) else task


def load_data(
    task: Task, *, steps: int | None = None, seed: int = 0, **how: Any
) -> TrajectoryStore:
    """The task's data: made on first use, as by `make_data`, and read from `data_home()` since.

    Of processes that want it at the same time one makes it, and the others wait.
    """
    if task.store is not None:
        return task.store
    path = data_path(task, steps=steps, seed=seed)
    if not path.exists():
        with one_maker(path):
            if not path.exists():
                return make_data(task, path, steps=steps, seed=seed, **how)
    return TrajectoryStore.open(path).with_environment(may_end=task.may_end)


def data_path(task: Task, *, steps: int | None = None, seed: int = 0) -> Path:
    """Where the data of a task lies once it was made."""
    if task.steps is None:
        return data_home() / task.name.replace(":", "-").replace("/", "-")
    return data_home() / f"{task.name.replace(':', '-')}-{steps or task.steps}-seed{seed}"


def make_data(
    task: Task, path: Path, *, steps: int | None = None, seed: int = 0, **how: Any
) -> TrajectoryStore:
    """Make the task's data at this path, in `workers` processes (by default one per core)."""
    assert task.make is not None, "a task has data or a way to make it"
    return task.make(path, steps=steps or task.steps or 0, seed=seed, **how)


def bundle_task(path: str, mixture: str) -> Task:
    """A mixture of the behaviour policies in a bundle (.npz)."""
    if mixture not in MIXTURES:
        raise ValueError(f"unknown mixture {mixture!r}; known are {', '.join(MIXTURES)}")
    return _mixture_task(f"{Path(path).stem}-{mixture}", path, mixture)


def _robot_task(name: str) -> Task:
    if name in EFFORT_TASKS:
        return replace(_mixture_task(name, *mixture_of(name)), steps=EFFORT_STEPS)
    return _mixture_task(name, *mixture_of(name), may_end=True)  # as in the paper's Eq. 1


def _mixture_task(name: str, robot: str, mixture: str, *, may_end: bool = False) -> Task:
    """Of the behaviour policies of a packaged robot, or of a bundle's file."""

    def make(path: Path, **how: Any) -> TrajectoryStore:
        from saformer.envs import behaviours

        return behaviours.build(robot, mixture, **how).with_environment(may_end=may_end).save(path)

    steps = REPLAY_STEPS if mixture == "medium-replay" else MIXTURE_STEPS
    return Task(name, steps, make, may_end=may_end)


def _make_allowance(path: Path, *, steps: int, seed: int, **_: Any) -> TrajectoryStore:
    from saformer.envs import allowance

    return allowance.dataset(episodes=max(1, steps // allowance.HORIZON), seed=seed).save(path)


def _plant_task(name: str) -> Task:
    from saformer.envs.plants import PLANTS

    def make(path: Path, *, steps: int, seed: int, **_: Any) -> TrajectoryStore:
        return plant.logs(episodes=max(1, steps // plant.horizon), seed=seed).save(path)

    plant = PLANTS[name]
    return Task(name, PLANT_EPISODES * plant.horizon, make)


def _dsrl_task(name: str) -> Task:
    """Of behaviours of our own; DSRL's own data has another name."""
    from saformer.envs.dsrl.behaviours import EPISODES, make_dsrl

    task = find_dsrl(name)
    if task.brief not in EPISODES:
        ours = ", ".join(EPISODES)
        theirs = f"DSRL's own data is {FILE_PREFIX}{task.name}"
        raise ValueError(f"{name} has no behaviours to make data with (there are {ours}); {theirs}")
    return Task(name, EPISODES[task.brief] * task.horizon, partial(make_dsrl, task))


def _import_hosted(
    name: str, path: Path, *, progress: Callable[[int, int], None] | None = None, **_: Any
) -> TrajectoryStore:
    imported = import_source(open_source(name, progress=progress), path, progress=progress)
    for note in imported.notes:
        warnings.warn(f"{name}: {note}", stacklevel=2)
    return imported.store


def _unknown(name: str) -> str:
    if Path(name).is_file():
        remedy = f"import it first with `saformer data import {name}`"
        return f"{name} is a file, not a trajectory store: {remedy}"
    if Path(name).is_absolute() or os.sep in name:
        remedy = "if a run's data was moved, say where it is now with --data"
        return f"there is no trajectory store at {name}; {remedy}"
    nearest = difflib.get_close_matches(name, task_names(), n=3, cutoff=0.5)
    known = f"known are {', '.join(task_names())}."
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else known
    others = "A path to a trajectory store works too, and dsrl:NAME, d4rl:NAME or minari:NAME."
    simulator = "Data of a simulator is made by `saformer data collect`."
    return f"there is no task, store or file {name!r}; {hint} {others} {simulator}"
