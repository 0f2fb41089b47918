"""What every verb takes, beside another checkout's: CPU seconds, call by call in turns.

    git worktree add --detach /tmp/before 1f09ee0
    OMP_NUM_THREADS=1 python -m benchmarks.verbs /tmp/before

Each side is a process that makes data and runs of its own with its own source. One waits while the
other calls, so what slows the machine for longer than a call slows both. "More" is the median of
the ratios of neighbouring calls.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

SIZES = "--agent cdt --width 16 --layers 1 --window 4 --batch-size 16 --evaluate-every 0"
JUDGED = "--limits p50 --episodes 2 --workers 0 --device cpu"
COLUMNS = "--state s w --action a --reward reward --episode ep"
MACHINE = "--environment saformer/Allowance-v0 --horizon 20 --action-low=-1 --action-high 1"
EPISODES, DECISIONS, LOADS = 20_000, 100, 10


def main() -> None:
    """Measure both sides by turns and print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, nargs="?", help="the root of another checkout")
    parser.add_argument("--calls", type=int, default=15, help="of each verb")
    options = parser.parse_args()
    if options.other is None:
        _answer()
        return
    print("| CPU ms | before | now | more | quartiles |\n|---|---|---|---|---|")
    with _side(options.other) as before, _side(Path(__file__).parents[1]) as now:
        while (verb := before()) and verb == now():
            taken = [[float(before("call")), float(now("call"))] for _ in range(options.calls + 1)]
            pairs = np.array(taken[1:])  # without the first, which fills caches
            low, median, high = np.quantile(pairs[:, 1] / pairs[:, 0], (0.25, 0.5, 0.75)) - 1
            own = " | ".join(f"{1000 * each:.1f}" for each in np.median(pairs, axis=0))
            print(f"| {verb} | {own} | {median:+.1%} | {low:+.1%} to {high:+.1%} |", flush=True)


@contextmanager
def _side(root: Path) -> Iterator[Callable[..., str]]:
    """A process of this checkout: called without a word it goes on to its next verb."""
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    with tempfile.TemporaryDirectory(prefix="verbs-") as folder:
        environment |= {"SAFORMER_HOME": f"{folder}/home", "XDG_CONFIG_HOME": f"{folder}/config"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        streams = {**pipes, "stderr": subprocess.DEVNULL, "text": True}
        program = [sys.executable, str(Path(__file__).resolve())]
        with subprocess.Popen(program, cwd=folder, env=environment, **streams) as process:

            def ask(word: str = "next") -> str:
                process.stdin.write(f"{word}\n")
                process.stdin.flush()
                return process.stdout.readline().strip()

            yield ask
            process.stdin.close()


def _answer() -> None:
    """Name a verb when asked for the next, else call it and say how long that took."""
    import torch

    torch.set_num_threads(1)
    verbs, out = _calls(), sys.stdout
    call, number = None, 0
    for word in sys.stdin:
        if word == "next\n":
            name, call = next(verbs, ("", None))
            number = 0
            print(name, file=out, flush=True)
        else:
            began = _cpu_seconds()
            call(number)
            print(_cpu_seconds() - began, file=out, flush=True)
            number += 1


def _cpu_seconds() -> float:
    """Of this process and those that it waited for."""
    own = os.times()
    return time.process_time() + own.children_user + own.children_system


def _calls() -> Iterator[tuple[str, Callable[[int], object]]]:
    """Names, and what is done with the number of the call: commands are processes of their own."""

    def run(words: str) -> Callable[[int], None]:
        def call(number: int) -> None:
            program = [sys.executable, "-m", "saformer", *words.format(number).split()]
            subprocess.run(program, check=True, stdout=subprocess.DEVNULL)

        return call

    yield "--help", run("--help")
    for rows in (600, 20_000):
        _write_log(Path(f"log-{rows}.csv"), rows)
        words = f"data import log-{rows}.csv {COLUMNS} {MACHINE} --out store-{rows}-{{}}"
        yield f"import {rows:,} rows", run(words)
    yield "build 10,000 steps", run("data build plant-room --steps 10000 --workers 1 --out room-{}")
    yield from _stores()
    yield "inspect 20,000 rows", run("data inspect store-20000-0")
    trained = f"train store-20000-0 {SIZES} --device cpu --held-out 0"
    yield "train 1 update", run(f"{trained} --updates 1 --out one-{{}}")
    yield "train 100 updates", run(f"{trained} --updates 100 --out run-{{}}")
    yield "evaluate 2 episodes", run(f"evaluate run-0 {JUDGED}")
    yield "export", run("export run-0 exported-{}")
    yield from _policies()


def _stores() -> Iterator[tuple[str, Callable[[int], object]]]:
    from saformer.data.relabel import relabelled
    from saformer.data.store import TrajectoryStore
    from saformer.envs import allowance

    store = allowance.dataset(episodes=EPISODES)
    yield f"save {EPISODES:,} episodes", lambda number: store.save(f"saved-{number}")
    yield f"open them, {LOADS} times", lambda _: _times(LOADS, TrajectoryStore.open, "saved-0")
    saved = TrajectoryStore.open("saved-0")
    yield "relabel them", lambda _: relabelled(saved, ("torque",), 1.0)


def _policies() -> Iterator[tuple[str, Callable[[int], object]]]:
    import saformer

    yield f"load a run, {LOADS} times", lambda _: _times(LOADS, saformer.load, "run-0")
    yield f"load an export, {LOADS} times", lambda _: _times(LOADS, saformer.load, "exported-0")
    policy = saformer.load("exported-0").policy()

    def decide(_: int) -> None:
        policy.reset([0.5, 0.1], 3.0)
        for _ in range(DECISIONS // 20):
            for _ in range(20):
                policy.act([0.5, 0.1])
                policy.observe(0.5, 0.1)
            policy.reset([0.5, 0.1], 3.0)

    yield f"{DECISIONS} decisions", decide


def _times(count: int, call: Callable[[str], object], path: str) -> None:
    for _ in range(count):
        call(path)


def _write_log(path: Path, rows: int) -> None:
    """Episodes of 20 steps."""
    rng = np.random.default_rng(0)
    lines = [
        f"{row // 20},{a:.6f},{abs(a):.6f},{s:.6f},{row % 20 / 20}"
        for row, (a, s) in enumerate(zip(rng.uniform(-1, 1, rows), rng.random(rows), strict=True))
    ]
    path.write_text("ep,a,reward,s,w\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
