"""Make, import, inspect and export data."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from saformer.api.listener import Listener
from saformer.api.run_data import relabelled, task_data
from saformer.criteria import CostCriterion, Step, criterion
from saformer.data.inspection import Inspection, inspect
from saformer.data.limits import parse_limit
from saformer.data.logs.logs import Logs, is_log, open_logs
from saformer.data.logs.mapping import LogMapping
from saformer.data.sources.minari import write_minari
from saformer.data.sources.names import open_source
from saformer.data.sources.source import EnvironmentHints, Imported, import_source, merged
from saformer.data.store import TrajectoryStore
from saformer.data.trajectory import Trajectory
from saformer.envs import tasks


def build_data(
    task: str,
    *,
    steps: int | None = None,
    seed: int = 0,
    mixture: str = "medium",
    workers: int | None = None,
    out: str | Path | None = None,
    listener: Listener | None = None,
) -> Path:
    """Make the data of a named task, or of a bundle of behaviour policies (.npz). Returns its
    folder.

    Without `out` that is where `train` looks for it, and it is not made twice.
    """
    listener = listener or Listener()
    if steps is not None and steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    task_to_make = _task(task, mixture)
    if task_to_make.make is None:
        raise ValueError(f"{task} is a store already: there is nothing to build")
    path = Path(out) if out else tasks.data_path(task_to_make, steps=steps, seed=seed)
    if out:
        _check_is_new(path)
    elif path.exists():
        listener.say(f"already built: {path}")
        TrajectoryStore.open(path)
        return path
    make = partial(tasks.make_data, path=path) if out else tasks.load_data
    store = make(task_to_make, steps=steps, seed=seed, workers=workers, progress=listener.building)
    size = f"{len(store)} trajectories, {store.num_steps} steps"
    listener.say(f"{size}; fingerprint {store.fingerprint}")
    return path


def import_data(
    sources: Sequence[str | Path],
    out: str | Path,
    *,
    mapping: LogMapping | None = None,
    known: EnvironmentHints | None = None,
    criteria: Sequence[str] = (),
    drop_faulty: bool = False,
    listener: Listener | None = None,
) -> Imported:
    """Turn logs (CSV, Parquet), HDF5, NPZ or Minari data, or several of a kind, into a store at
    `out`."""
    listener = listener or Listener()
    _check_is_new(Path(out))
    wanted = [criterion(name) for name in criteria]  # refuses a wrong one before anything is read
    names = [str(source) for source in sources]
    if all(is_log(name) or (Path(name).is_dir() and not _is_minari(name)) for name in names):
        source = survey_logs(names, mapping, listener=listener).source(drop_faulty=drop_faulty)
    else:
        source = merged([open_source(name, known, progress=listener.building) for name in names])
    source = replace(source, trajectories=partial(_that_can_be_costed, source.trajectories, wanted))
    imported = import_source(source, out, criteria=criteria or None, progress=listener.building)
    for note in imported.notes:
        listener.say(f"note: {note}")
    fingerprint = imported.store.fingerprint
    listener.say(f"imported {imported.summary()} to {out}; fingerprint {fingerprint}")
    return imported


def survey_logs(
    names: Sequence[str], mapping: LogMapping | None = None, *, listener: Listener | None = None
) -> Logs:
    """Read logs once to see what is wrong with them; nothing is written."""
    return open_logs(names, mapping, progress=listener.surveying if listener else None)


def inspect_data(
    source: str,
    *,
    criteria: Sequence[str] = (),
    cost_discount: float = 1.0,
    limits: Sequence[str] = (),
    steps: int | None = None,
    seed: int = 0,
    mapping: LogMapping | None = None,
    listener: Listener | None = None,
) -> Inspection:
    """Which limits can this data support? `source` is a task, a store, a hosted name or a file."""
    with open_data(source, steps=steps, seed=seed, mapping=mapping, listener=listener) as store:
        data = relabelled(store, criteria, cost_discount)
        return inspect(data, [parse_limit(limit, data) for limit in limits] or None)


def export_data(source: str, dataset_id: str, *, listener: Listener | None = None) -> Path:
    """Write a task's data or a store as a Minari dataset of this id. Returns its folder."""
    listener = listener or Listener()
    with open_data(source, listener=listener) as store:
        path = write_minari(store, dataset_id)
    listener.say(f"exported to {path}; load it with minari.load_dataset({dataset_id!r})")
    return path


@contextmanager
def open_data(
    source: str,
    *,
    steps: int | None = None,
    seed: int = 0,
    mapping: LogMapping | None = None,
    listener: Listener | None = None,
) -> Iterator[TrajectoryStore]:
    """The data of a task, a store or a hosted name; a file is imported for as long as the block
    lasts."""
    listener = listener or Listener()
    if not (is_log(source) or Path(source).is_file() or _is_minari(source)):
        yield task_data(source, listener, steps, seed)
        return
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "store"
        yield import_data([source], out, mapping=mapping, listener=listener).store


def _check_is_new(path: Path) -> None:
    if path.exists():
        raise FileExistsError(
            f"{path} exists; stores are never overwritten: choose another name or remove it"
        )


def _that_can_be_costed(
    trajectories: Callable[[], Iterable[Trajectory]], criteria: Sequence[CostCriterion]
) -> Iterator[Trajectory]:
    """The same trajectories; the first one must have all that the criteria read."""
    for index, trajectory in enumerate(trajectories()):
        if index == 0:
            state, columns = trajectory.state, trajectory.columns
            next_state = np.concatenate([state[1:], trajectory.final_state[None]])
            step = Step(trajectory.action, state, next_state, trajectory.reward, columns)
            for each in (c for c in criteria if c.missing(columns)):
                each(step)  # raises: it says what is missing and what is there
        yield trajectory


def _task(name: str, mixture: str) -> tasks.Task:
    if not name.endswith(".npz"):
        return tasks.find_task(name)
    if mixture not in tasks.MIXTURES:
        raise ValueError(f"unknown mixture {mixture!r}; known are {', '.join(tasks.MIXTURES)}")
    make = tasks.make_from_behaviours(name, mixture)
    return tasks.Task(f"{Path(name).stem}-{mixture}", tasks.canonical_steps(mixture), make)


def _is_minari(name: str) -> bool:
    return any((Path(name) / part).exists() for part in ("metadata.json", "data/metadata.json"))
