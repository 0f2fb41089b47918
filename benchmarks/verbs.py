"""What every verb takes, beside another checkout's: CPU seconds, by turns, the least of all.

    git worktree add --detach /tmp/before 1f09ee0
    OMP_NUM_THREADS=1 python -m benchmarks.verbs /tmp/before

Each side makes data and runs of its own with its own source. Between the sides, and between the
rounds, nothing is shared but the machine, which should have nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=5, help="calls of each verb in a round")
    options = parser.parse_args()
    if options.other is None:
        print(json.dumps(measured(options.repeat)))
        return
    sides = {"before": options.other, "now": Path(__file__).parents[1]}
    least: dict[str, dict[str, float]] = {side: {} for side in sides}
    for number in range(options.rounds):
        for side in list(sides) if number % 2 else reversed(sides):
            for verb, took in _in_a_process(sides[side], options.repeat).items():
                least[side][verb] = min(took, least[side].get(verb, took))
    print("| CPU seconds | before | now | more |\n|---|---|---|---|")
    for verb, took in least["now"].items():
        before = least["before"][verb]
        print(f"| {verb} | {before:.4f} | {took:.4f} | {took / before - 1:+.1%} |")


def _in_a_process(root: Path, repeat: int) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    with tempfile.TemporaryDirectory(prefix="verbs-") as folder:
        environment |= {"SAFORMER_HOME": f"{folder}/home", "XDG_CONFIG_HOME": f"{folder}/config"}
        program = [sys.executable, str(Path(__file__).resolve()), "--repeat", str(repeat)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        ended = subprocess.run(program, cwd=folder, env=environment, check=True, **streams)
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def measured(repeat: int) -> dict[str, float]:
    """The least CPU seconds of each verb, after a call that does not count."""
    began = time.process_time()
    import torch

    from saformer.cli.main import main as command

    found = {"start": time.process_time() - began}
    torch.set_num_threads(1)
    for verb, call in _calls(command):
        call(0)
        taken = []
        for number in range(1, repeat + 1):
            began = time.process_time()
            call(number)
            taken.append(time.process_time() - began)
        found[verb] = min(taken)
    return found


def _calls(command: Callable[[list[str]], int]) -> Iterator[tuple[str, Callable[[int], object]]]:
    """Names, and what is done with the number of the call."""

    def run(words: str) -> Callable[[int], None]:
        def call(number: int) -> None:
            with redirect_stdout(StringIO()):
                assert command(words.format(number).split()) == 0, words

        return call

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
