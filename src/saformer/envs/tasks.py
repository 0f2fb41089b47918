"""Tasks by name: where their data comes from and what it costs."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from saformer.criteria import CostCriterion, torque
from saformer.data.store import MANIFEST, TrajectoryStore

Progress = Callable[[int, int], None]
REPLAY_STEPS, MIXTURE_STEPS = 300_000, 1_000_000
ALLOWANCE_EPISODES = 2000
ROBOTS = ("hopper", "walker2d", "halfcheetah")
MIXTURES = ("medium", "medium-replay", "medium-expert")


@dataclass(frozen=True)
class Task:
    """A named dataset and the costs that its episodes are judged by."""

    name: str
    criteria: tuple[CostCriterion, ...]
    steps: int
    """canonical size of the dataset"""
    build: Callable[..., TrajectoryStore] | None = None
    """build(steps=..., seed=..., progress=...) -> the data"""
    store: TrajectoryStore | None = None
    """the data, where it is there already"""


def task_names() -> list[str]:
    """Every task that can be built on this machine without a download."""
    return ["allowance", *(f"{robot}-{mixture}" for robot in ROBOTS for mixture in MIXTURES)]


def find_task(name: str) -> Task:
    """The task of this name, or of the trajectory store at this path."""
    if name == "allowance":
        from saformer.envs.allowance import HORIZON

        return Task(name, (torque,), ALLOWANCE_EPISODES * HORIZON, _build_allowance)
    if name in task_names():
        robot, mixture = name.split("-", 1)
        steps = REPLAY_STEPS if mixture == "medium-replay" else MIXTURE_STEPS

        def build(*, steps: int, seed: int, progress: Progress | None) -> TrajectoryStore:
            from saformer.envs import behaviours

            return behaviours.build(robot, mixture, steps=steps, seed=seed, progress=progress)

        return Task(name, (torque,), steps, build)
    if (Path(name) / MANIFEST).exists():
        store = TrajectoryStore.open(name)
        return Task(name, (torque,), store.num_steps, store=store)
    nearest = difflib.get_close_matches(name, task_names(), n=3, cutoff=0.3)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"known are {', '.join(task_names())}"
    raise ValueError(f"unknown task {name!r}; {hint} A path to a trajectory store works too.")


def load_data(
    task: Task, *, steps: int | None = None, seed: int = 0, progress: Progress | None = None
) -> TrajectoryStore:
    """The task's data: built on first use and kept under `data_home()` from then on."""
    if task.store is not None:
        return task.store
    assert task.build is not None, "a task has data or a way to build it"
    steps = steps or task.steps
    kept = data_home() / f"{task.name}-{steps}-seed{seed}"
    if kept.exists():
        return TrajectoryStore.open(kept)
    built = task.build(steps=steps, seed=seed, progress=progress)
    try:
        return built.save(kept)
    except OSError:
        if kept.exists():  # somebody else was faster
            return TrajectoryStore.open(kept)
        raise


def data_home() -> Path:
    """Where built datasets are kept: $SAFORMER_HOME, or .cache/saformer in the user's home."""
    return Path(os.environ.get("SAFORMER_HOME") or Path.home() / ".cache" / "saformer") / "data"


def _build_allowance(*, steps: int, seed: int, progress: Progress | None) -> TrajectoryStore:
    from saformer.envs import allowance

    return allowance.dataset(episodes=max(1, steps // allowance.HORIZON), seed=seed)
