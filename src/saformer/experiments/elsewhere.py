"""Jobs on other machines, which may not see this one's files."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from saformer.api.listener import Listener
from saformer.data.home import data_home
from saformer.experiments.datasets import make_data_of
from saformer.experiments.plan import DataJob, Files, Gathered, RunJob, whole_of
from saformer.experiments.work import carry_out
from saformer.files import is_unfinished, locked, write_atomically
from saformer.runs.lock import LOCK
from saformer.runs.spec import stem_of


@contextmanager
def sent(jobs: Sequence[RunJob], runs: Path, node_runs: Path | None) -> Iterator[list[RunJob]]:
    """Jobs to carry out in the same folder, or in each node's own, to bring runs back from."""
    if node_runs is not None:
        there = [replace(job, runs=str(node_runs)) for job in jobs]
        yield [replace(job, files=_files_of(job, runs)) for job in there]
        return
    sign = runs.resolve() / f".seen-from-elsewhere-{secrets.token_hex(8)}"
    sign.parent.mkdir(parents=True, exist_ok=True)
    sign.touch()
    try:
        yield [replace(job, runs=str(sign.parent), sign=sign.name) for job in jobs]
    finally:
        sign.unlink(missing_ok=True)


def carry_out_elsewhere(job: RunJob, listener: Listener | None = None) -> Gathered:
    """On another machine: make missing data; bring runs back unless the folder is shared."""
    runs = Path(job.runs)
    if job.files is not None:
        _unpack(job.files, runs)
    elif not (runs / job.sign).exists():
        raise ValueError(
            f"this node does not see the folder {runs} of the machine that asked: keep runs in a "
            "folder that all of them share (--runs), or name one that every node has of its own "
            "(--node-runs)"
        )
    _make_data(job)
    gathered = carry_out(job, listener)
    return gathered if job.files is None else replace(gathered, files=_files_of(job, runs))


def receive(files: Files, runs: Path) -> None:
    """Write files that came back; last those that say that a run is done."""
    for name in sorted(files, key=lambda name: Path(name).name == "done.json"):
        path = runs / name
        if not path.exists() or path.read_bytes() != files[name]:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, files[name])


def _files_of(job: RunJob, runs: Path) -> Files:
    """All files of a job's runs, and of runs that were made of them."""
    tasks = ((job.setting.task(each.dataset), each) for each in job.trainings)
    stems = tuple(stem_of(task, each.agent, each.seed, each.limit) for task, each in tasks)
    folders = [path for path in sorted(runs.glob("*/")) if path.name.startswith(stems)]
    paths = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    whole = (path for path in paths if path.name != LOCK and not is_unfinished(path))
    return {str(path.relative_to(runs)): path.read_bytes() for path in whole}


def _unpack(files: Files, runs: Path) -> None:
    """Take over runs that have finished, or that this machine has not begun."""
    for folder in {name.split("/", 1)[0] for name in files}:
        own = {name: content for name, content in files.items() if name.split("/", 1)[0] == folder}
        if f"{folder}/done.json" in own or not (runs / folder).exists():
            receive(own, runs)


def _make_data(job: RunJob) -> None:
    """One process of a machine at a time; data that is there is not made again."""
    data_home().mkdir(parents=True, exist_ok=True)
    datasets = dict.fromkeys(training.dataset for training in job.trainings)
    with locked(data_home() / ".making"):
        for dataset in datasets:
            for name in dict.fromkeys((whole_of(dataset), dataset)):
                make_data_of(DataJob(job.setting, name, job.threads))
