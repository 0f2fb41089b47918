"""Make, import, inspect and export data."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from saformer.api.listener import Listener
from saformer.api.run_data import task_data
from saformer.criteria.code import typed
from saformer.data.inspection import Inspection, inspect
from saformer.data.limits import parse_limit
from saformer.data.logs.frames import as_list, is_log, log_sources
from saformer.data.logs.logs import open_logs
from saformer.data.logs.mapping import LogMapping, SomeMapping
from saformer.data.relabel import relabelled
from saformer.data.sources.minari import is_minari_folder, write_minari
from saformer.data.sources.names import open_source
from saformer.data.sources.source import Imported, import_source, merged
from saformer.data.store import TrajectoryStore
from saformer.envs import tasks
from saformer.files import check_is_new


def build_data(
    task: str,
    *,
    steps: int | None = None,
    seed: int = 0,
    mixture: str = "medium",
    environment: str | None = None,
    workers: int | None = None,
    out: str | Path | None = None,
    listener: Listener | None = None,
) -> Path:
    """Make the data of a named task, or of a bundle of behaviour policies (.npz), whose environment
    you vouch for if it is code; returns its folder. Without `out` that is where `train` looks for
    it, and it is not made twice."""
    listener, _ = listener or Listener(), typed(environment or "")
    if steps is not None and steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    is_bundle = task.endswith(".npz")
    task_to_make = tasks.bundle_task(task, mixture) if is_bundle else tasks.find_task(task)
    if task_to_make.make is None:
        raise ValueError(f"{task} is a store already: there is nothing to build")
    path = Path(out) if out else tasks.data_path(task_to_make, steps=steps, seed=seed)
    if out:
        check_is_new(path, "stores")
    elif path.exists():
        listener.say(f"already built: {path}")
        TrajectoryStore.open(path)
        return path
    make = partial(tasks.make_data, path=path) if out else tasks.load_data
    store = make(task_to_make, steps=steps, seed=seed, workers=workers, progress=listener.building)
    listener.say(f"{store.size}; fingerprint {store.fingerprint}")
    return path


def import_data(
    sources: Any,
    out: str | Path,
    *,
    mapping: SomeMapping = None,
    criteria: Sequence[str] = (),
    drop_faulty: bool = False,
    listener: Listener | None = None,
) -> Imported:
    """Make a store of logs (CSV, Parquet, pandas or polars frames, dictionaries of arrays), HDF5,
    NPZ or Minari data, one or several of a kind; `mapping` says which columns of a log are what,
    as a TOML file or a dictionary of its entries: {"state": ["level"], "action": ["valve"]}."""
    listener, how = listener or Listener(), LogMapping.of(mapping)
    check_is_new(Path(out), "stores")
    logged = log_sources(sources)
    if logged is not None:
        logs = open_logs(logged, how, criteria=criteria, progress=listener.surveying)
        source, criteria = logs.source(drop_faulty=drop_faulty), logs.criteria
    else:
        names = [str(name) for name in as_list(sources)]
        progress = listener.building
        source = merged([open_source(name, how.known, progress=progress) for name in names])
    imported = import_source(source, out, criteria=criteria or None, progress=listener.building)
    for note in imported.notes:
        listener.say(f"note: {note}")
    fingerprint = imported.store.fingerprint
    listener.say(f"imported {imported.summary()} to {out}; fingerprint {fingerprint}")
    return imported


def inspect_data(
    source: str,
    *,
    criteria: Sequence[str] = (),
    cost_discount: float = 1.0,
    limits: Sequence[str] = (),
    steps: int | None = None,
    seed: int = 0,
    mapping: SomeMapping = None,
    may_end: bool | None = None,
    listener: Listener | None = None,
) -> Inspection:
    """Which limits can this data support? `source` is a task, a store, a hosted name or a file;
    `may_end` says whether its episodes may end early, by default as the task or store does."""
    with open_data(source, steps=steps, seed=seed, mapping=mapping, listener=listener) as store:
        data = relabelled(store, criteria, cost_discount)
        data = data if may_end is None else data.with_environment(may_end=may_end)
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
    mapping: SomeMapping = None,
    listener: Listener | None = None,
) -> Iterator[TrajectoryStore]:
    """The data of a task, a store or a hosted name, or of a file, imported while this lasts."""
    listener = listener or Listener()
    if not (is_log(source) or Path(source).is_file() or is_minari_folder(source)):
        yield task_data(source, listener, steps, seed)
        return
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "store"
        yield import_data([source], out, mapping=mapping, listener=listener).store
