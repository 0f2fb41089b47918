"""Jobs on other machines, which may not see this one's files."""

from __future__ import annotations

import fcntl
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from saformer.api.listener import Listener
from saformer.data.home import data_home
from saformer.experiments.plan import WITHOUT_CHEAPEST, Training
from saformer.experiments.work import DataJob, Gathered, RunJob, carry_out, make_data_of
from saformer.files import is_unfinished, write_atomically
from saformer.runs.lock import LOCK
from saformer.runs.spec import stem_of

SIGN = ".seen-from-elsewhere"
Files = dict[str, bytes]
"""By their paths within the folder of runs."""


@dataclass(frozen=True)
class Sent:
    """A job for another machine."""

    job: RunJob
    token: str
    """what the sign in the folder of runs says, by which it is known to be the same folder"""
    files: Files | None = None
    """of the job's runs as far as they have come; None: the other machine sees the folder itself"""

    @property
    def name(self) -> str:
        """For a person to read."""
        return self.job.name

    def failures(self, why: str) -> list[dict[str, str]]:
        """If nothing came of it."""
        return self.job.failures(why)


@dataclass(frozen=True)
class Brought:
    """What came back."""

    gathered: Gathered
    files: Files


@contextmanager
def sent(jobs: Sequence[RunJob], runs: Path, nodes_runs: Path | None) -> Iterator[list[Sent]]:
    """Jobs to be carried out in the same folder, or in each node's own, from which runs are brought
    back."""
    if nodes_runs is not None:
        there = [replace(job, runs=str(nodes_runs)) for job in jobs]
        yield [Sent(job, "", files_of(job, runs)) for job in there]
        return
    runs, token = runs.resolve(), secrets.token_hex(8)
    runs.mkdir(parents=True, exist_ok=True)
    sign = runs / f"{SIGN}-{token}"
    sign.touch()
    try:
        yield [Sent(replace(job, runs=str(runs)), token) for job in jobs]
    finally:
        sign.unlink(missing_ok=True)


def carry_out_elsewhere(sent: Sent, listener: Listener | None = None) -> Brought:
    """On another machine: data is made if it is not there, and runs are brought back unless the
    folder is shared."""
    job, runs = sent.job, Path(sent.job.runs)
    if sent.files is None:
        if not (runs / f"{SIGN}-{sent.token}").exists():
            raise ValueError(
                f"this node does not see the folder {runs} of the machine that asked: keep runs "
                "in a folder that all "
                "of them share (--runs), or name one that every node has of its own (--node-runs)"
            )
        _make_data(job)
        return Brought(carry_out(job, listener), {})
    _unpack(sent.files, runs)
    _make_data(job)
    return Brought(carry_out(job, listener), files_of(job, runs))


def files_of(job: RunJob, runs: Path) -> Files:
    """All that is kept of a job's runs, and of what was made of them."""
    stems = tuple(_stem(training, job) for training in job.trainings)
    folders = [path for path in sorted(runs.glob("*/")) if path.name.startswith(stems)]
    found = [
        path
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != LOCK
    ]
    return {
        str(path.relative_to(runs)): path.read_bytes() for path in found if not is_unfinished(path)
    }


def receive(files: Files, runs: Path) -> None:
    """Keep what came back; that a run is finished is said last."""
    for name in sorted(files, key=lambda name: Path(name).name == "done.json"):
        path = runs / name
        if not path.exists() or path.read_bytes() != files[name]:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, files[name])


def _unpack(files: Files, runs: Path) -> None:
    """Take over runs that have finished, or that this machine has not begun."""
    for folder in {name.split("/", 1)[0] for name in files}:
        own = {name: content for name, content in files.items() if name.split("/", 1)[0] == folder}
        if f"{folder}/done.json" in own or not (runs / folder).exists():
            receive(own, runs)


def _make_data(job: RunJob) -> None:
    """One process of a machine at a time; what is there is not made again."""
    data_home().mkdir(parents=True, exist_ok=True)
    datasets = dict.fromkeys(training.dataset for training in job.trainings)
    with (data_home() / ".making").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for dataset in datasets:
            for one in dict.fromkeys((dataset.removesuffix(WITHOUT_CHEAPEST), dataset)):
                make_data_of(DataJob(job.setting, one, job.threads))


def _stem(training: Training, job: RunJob) -> str:
    """How the names of a training's folders begin."""
    task = job.setting.task(training.dataset)
    return stem_of(task, training.agent, training.seed, training.limit)
