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
from scripts.attack.kills import different, repeated, undisturbed
from scripts.attack.world import VERBS, command, copy, use, world

LOSSES, JOBS, SECONDS = 2, 3, 60.0
LONGEST = 8.0  # seconds from one loss to the next
NAME, PID = "train", "pid"


def train(folder: str) -> int:
    """What a worker does, or goes on with after another."""
    os.chdir(folder)
    use(Path(folder))
    Path(PID).write_text(str(os.getpid()))
    return command(repeated(VERBS[NAME], Path(folder)))


def attempt(seed: int) -> str | None:
    """Three trainings, two losses."""
    from saformer.engine.ray import RayEngine

    rng = np.random.default_rng(seed)
    expected, _, _ = undisturbed(NAME)
    folders = [copy(f"job{number}", VERBS[NAME].words) for number in range(JOBS)]
    seen, is_over = set[int](), threading.Event()
    losses = threading.Thread(target=_lose, args=(rng, folders, seen, is_over))
    with RayEngine(_cluster().address, retries=LOSSES + 1) as engine:
        losses.start()
        outcomes = list(engine.map(train, list(map(str, folders))))
        is_over.set()
        losses.join()
    for outcome in outcomes:
        problem = outcome.error or (f"exit {outcome.result}" if outcome.result else None)
        problem = problem or different(VERBS[NAME], Path(outcome.job), expected)
        if problem:
            return f"{Path(outcome.job).name}: {problem}"
    left = _left(seen)
    return f"{len(left)} lost workers are still there" if left else None


def _lose(
    rng: np.random.Generator, folders: list[Path], killed: set[int], is_over: threading.Event
) -> None:
    for _ in range(LOSSES):
        if is_over.wait(rng.uniform(0, LONGEST)):
            return
        which, is_node = int(rng.integers(JOBS)), rng.random() < 0.4
        if is_node:
            cluster = _cluster()
            cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
            cluster.add_node(num_cpus=1)
        elif (folders[which] / PID).exists():
            pid = int((folders[which] / PID).read_text() or 0)
            if pid and "ray::" in _name_of(pid):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)


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


@functools.cache
def _cluster() -> Any:
    """A head that works on nothing and two nodes of one CPU, which can import what we can."""
    from ray.cluster_utils import Cluster

    world()
    root = Path(__file__).parents[2]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root / "src"), str(root)])
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    cluster = Cluster(True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    owner = os.getpid()
    atexit.register(lambda: os.getpid() == owner and cluster.shutdown())
    return cluster


CAMPAIGN = Campaign("nodes", 12, attempt, per_try=LOSSES)
