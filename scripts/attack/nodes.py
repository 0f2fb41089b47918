"""Ray workers and nodes lost while they train.

Three trainings on a cluster of two nodes; at moments of the seed's choice the process that trains
one of them is killed, or a whole node, which another replaces. All must end as undisturbed ones.
"""

from __future__ import annotations

import atexit
import functools
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from scripts.attack.campaign import Campaign
from scripts.attack.kills import different, repeated
from scripts.attack.process import run
from scripts.attack.world import VERBS, command, content, copy, use, world

LOSSES, JOBS, SECONDS = 2, 3, 60.0
LONGEST = 8.0  # seconds from one loss to the next
NODES = 0.4  # of the losses; the others are workers
VERB, PID = VERBS["train"], "pid"


def train(folder: str) -> int:
    """What a worker does, or goes on with after another."""
    os.chdir(folder)
    use(Path(folder))
    Path(PID).write_text(str(os.getpid()))
    return command(repeated(VERB, Path(folder)))


def attempt(seed: int) -> str | None:
    """Three trainings, two losses."""
    from saformer.engine.ray import RayEngine

    cluster, expected = _whole_cluster(), [_undisturbed(number) for number in range(JOBS)]
    folders = [copy(f"job{number}", VERB.words) for number in range(JOBS)]
    lost, is_over = set[int](), threading.Event()
    arguments = (np.random.default_rng(seed), cluster, folders, lost, is_over)
    losses = threading.Thread(target=_lose, args=arguments)
    with RayEngine(cluster.address, retries=LOSSES + 1) as engine:
        losses.start()
        outcomes = list(engine.map(train, list(map(str, folders))))
        is_over.set()
        losses.join()
    for number, outcome in enumerate(sorted(outcomes, key=lambda outcome: outcome.job)):
        problem = outcome.error or (f"exit {outcome.result}" if outcome.result else None)
        problem = problem or different(VERB, Path(outcome.job), expected[number])
        if problem:
            return f"job {number}: {problem}"
    left = _left(lost)
    return f"{len(left)} lost workers are still there" if left else None


@functools.cache
def _undisturbed(number: int) -> dict[str, str]:
    """What a job leaves that nobody disturbs, in the same folder: a run knows where its data is."""
    folder = copy(f"job{number}", VERB.words)
    ended = run(lambda: train(str(folder)), folder)
    if ended.code:
        raise RuntimeError(f"training fails undisturbed: {ended.said}")
    return content(folder / VERB.result)


def _lose(
    rng: np.random.Generator,
    cluster: Any,
    folders: list[Path],
    lost: set[int],
    is_over: threading.Event,
) -> None:
    for _ in range(LOSSES):
        seconds, which, is_node = rng.uniform(0, LONGEST), int(rng.integers(JOBS)), rng.random()
        if is_over.wait(seconds):
            return
        file = folders[which] / PID
        pid = int((file.read_text() if file.exists() else "") or 0)
        if is_node < NODES:
            cluster.remove_node(sorted(cluster.worker_nodes, key=id)[0], allow_graceful=False)
        elif pid and "ray::" in _name_of(pid):
            os.kill(pid, signal.SIGKILL)
            lost.add(pid)


def _left(pids: set[int]) -> list[int]:
    end = time.monotonic() + SECONDS
    while (left := [pid for pid in pids if _name_of(pid)]) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def _name_of(pid: int) -> str:
    """What a living process is called; nothing of one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    except OSError:
        return ""


def _whole_cluster() -> Any:
    """A head that works on nothing and nodes of one CPU, one more than can be lost."""
    cluster = _cluster()
    while len(cluster.worker_nodes) <= LOSSES:
        cluster.add_node(num_cpus=1)
    return cluster


@functools.cache
def _cluster() -> Any:
    """Whose nodes can import what we can."""
    from ray.cluster_utils import Cluster

    world()
    root = Path(__file__).parents[2]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root / "src"), str(root)])
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    cluster = Cluster(True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    owner = os.getpid()
    atexit.register(lambda: os.getpid() == owner and cluster.shutdown())
    return cluster


CAMPAIGN = Campaign("Ray's workers and nodes", 12, attempt, per_try=LOSSES)
