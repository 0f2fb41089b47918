"""How long evaluation takes, simulation included: untrained models of the paper's size in MuJoCo,
alive to the end.

python -m benchmarks.evaluation [--device cuda] [--cells 36] [--episodes 20] [--steps 1000]

Fewer --steps are said to be fewer: the last line tells what all of them would take at that speed,
the start included. A cell is a dataset under one limit; four cells share a model and are one
rollout of 4 x episodes lanes. --tight of the four limits are so low that every round of proposals
is rejected; under the others the first one is accepted.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.decisions import decide, latencies, model_of_paper_size
from benchmarks.measure import Peak, peak_memory
from saformer.core.batch import Dimensions
from saformer.core.execution import SaFormerPolicy
from saformer.core.policy import Decision
from saformer.core.rules import PaperOptions, PaperRule
from saformer.criteria import torque
from saformer.data.store import EnvironmentSpec
from saformer.envs.lanes import Maker, Share
from saformer.envs.pool import Pool, close_idle
from saformer.envs.rollout import rollout
from saformer.envs.stepping import Workers, pick_workers
from saformer.kernels.decisions import fastest
from saformer.kernels.recording import Recorder

WINDOW, CANDIDATES = 20, 128
LIMITS = 4
WHOLE = 1000
"""Steps of a whole episode."""
LOOSE, TIGHT = 1e6, 0.0
FALLS = {"terminate_when_unhealthy": False}
ROBOTS = {
    "Hopper-v5": (Dimensions(state=11, action=3, horizon=1000), FALLS),
    "Walker2d-v5": (Dimensions(state=17, action=6, horizon=1000), FALLS),
    "HalfCheetah-v5": (Dimensions(state=17, action=6, horizon=1000), {}),
}


class Timed:
    """A policy that knows how long it was busy, device included."""

    def __init__(self, policy: SaFormerPolicy, device: str) -> None:
        self._policy, self._device = policy, device
        self.seconds = 0.0

    def reset(self, *arguments: object) -> None:
        self._policy.reset(*arguments)

    def act(self, *arguments: object) -> Decision:
        began = time.perf_counter()
        decision = self._policy.act(*arguments)
        if self._device != "cpu":
            torch.cuda.synchronize()  # the rollout would wait here anyway, for the actions
        self.seconds += time.perf_counter() - began
        return decision

    def observe(self, *arguments: object) -> None:
        began = time.perf_counter()
        self._policy.observe(*arguments)
        self.seconds += time.perf_counter() - began


class Still:
    """A policy that takes no time, to measure environments alone: it stands still."""

    seconds = 0.0

    def __init__(self, dimensions: Dimensions) -> None:
        self._num_actions = dimensions.action

    def reset(self, *arguments: object) -> None:
        pass

    def act(self, state: torch.Tensor, lanes: torch.Tensor) -> Decision:
        whole = torch.ones(len(lanes), dtype=torch.int64)
        action = torch.zeros(len(lanes), self._num_actions)
        return Decision(action, whole, whole, whole, whole, whole < 1, None, None)  # type: ignore[arg-type]

    def observe(self, *arguments: object) -> None:
        pass


@dataclass(frozen=True)
class Measured:
    """One way to evaluate."""

    num_steps: int
    seconds: float
    deciding: float
    """share of the time in which the device, or this process for it, is busy with decisions"""
    waiting: float
    """share of the time in which this process waits for workers, or steps environments itself"""
    simulating: float
    """share of the time in which one worker is busy with environments, on average"""
    memory: Peak
    workers_memory: float
    """MB of all workers, what they share counted once"""


def evaluate(
    options: argparse.Namespace,
    workers: Workers,
    *,
    steps: int,
    cells: int,
    alone: bool = False,
) -> Measured:
    models = [list(ROBOTS.items())[i % len(ROBOTS)] for i in range(max(1, cells // LIMITS))]
    policies = [
        Still(dimensions) if alone else Timed(_policy(dimensions, options), options.device)
        for _, (dimensions, _) in models
    ]
    lanes = LIMITS * options.episodes
    limits = [
        np.array([TIGHT if i < options.tight else LOOSE])
        for i in range(LIMITS)
        for _ in range(options.episodes)
    ]
    number = pick_workers(workers, num_lanes=lanes, num_steps=lanes * 1000)
    with peak_memory() as memory, _waiting() as waited:
        busy, began = _workers()[0], time.perf_counter()
        played = [
            rollout(
                policy,
                maker_of(name),
                limits,
                list(range(lanes)),
                horizon=steps,
                workers=number,
            )
            for policy, (name, _) in zip(policies, models, strict=True)
        ]
        seconds = time.perf_counter() - began
        working, workers_memory = _workers()
    num_steps = sum(len(episode.trajectory) for episodes in played for episode in episodes)
    assert num_steps == lanes * steps * len(models), "an episode ended early"
    return Measured(
        num_steps,
        seconds,
        deciding=sum(policy.seconds for policy in policies) / seconds,
        waiting=sum(waited) / seconds,
        simulating=(working - busy) / seconds / number if number else float("nan"),
        memory=memory,
        workers_memory=workers_memory,
    )


def _policy(dimensions: Dimensions, options: argparse.Namespace) -> SaFormerPolicy:
    model = model_of_paper_size(options.device, dimensions)
    rule = PaperRule(PaperOptions(candidates=CANDIDATES, rounds=options.rounds))
    return SaFormerPolicy(fastest(model), rule, window=WINDOW, recorder=Recorder)


@contextmanager
def _waiting() -> Iterator[list[float]]:
    """The seconds of each wait for workers, and of each step that this process takes itself."""
    waited: list[float] = []

    def timed(method: Callable[[Any], None]) -> Callable[[Any], None]:
        def call(stepper: Any) -> None:
            began = time.perf_counter()
            method(stepper)
            waited.append(time.perf_counter() - began)

        return call

    with (
        patch.object(Pool, "finish_step", timed(Pool.finish_step)),
        patch.object(Share, "start_step", timed(Share.start_step)),
    ):
        yield waited


def maker_of(name: str) -> Maker:
    dimensions, arguments = ROBOTS[name]
    bounds = (1.0,) * dimensions.action
    spec = EnvironmentSpec(
        tuple(-b for b in bounds), bounds, dimensions.horizon, name, dict(arguments)
    )
    return Maker(spec, (torque,))


def _workers() -> tuple[float, float]:
    """Processor seconds that our workers have used so far, and the MB they hold (Linux; 0 where it
    does not say)."""
    seconds = megabytes = 0.0
    for children in Path("/proc/self/task").glob("*/children"):
        for process in (Path("/proc") / pid for pid in children.read_text().split()):
            used = (process / "stat").read_text().rpartition(")")[2].split()
            seconds += (int(used[11]) + int(used[12])) / os.sysconf("SC_CLK_TCK")
            rollup = process / "smaps_rollup"
            held = rollup.read_text().splitlines() if rollup.exists() else []
            megabytes += (
                sum(int(line.split()[1]) for line in held if line.startswith("Pss:")) / 1024
            )
    return seconds, megabytes


def _row(name: str, found: Measured, lanes: int) -> str:
    per_step = 1e3 * found.seconds * lanes / found.num_steps
    speed, busy = (
        found.num_steps / found.seconds,
        "" if np.isnan(found.simulating) else f"{found.simulating:.0%}",
    )
    return (
        f"| {name} | {found.num_steps} | {found.seconds:.1f} s | {speed:.0f} | {per_step:.2f} ms "
        f"| {found.deciding:.0%} | {found.waiting:.0%} | {busy} "
        f"| {found.memory.resident:.0f} + {found.workers_memory:.0f} MB |"
    )


def _decisions(options: argparse.Namespace, lanes: int) -> str:
    """Whether lanes in two groups would pay: one group deciding while the other is stepped."""
    taken = []
    for number in (lanes, lanes // 2):
        policy = _policy(ROBOTS["HalfCheetah-v5"][0], options)
        limits = torch.full((number, 1), LOOSE)
        policy.reset(torch.zeros(number, 17), limits)
        taken.append(
            1e3
            * float(np.median(latencies(decide(policy, number), repeat=20, device=options.device)))
        )
    whole, half = f"{lanes} lanes takes {taken[0]:.2f} ms", f"{lanes // 2} lanes {taken[1]:.2f} ms"
    return f"A decision of one round for {whole}, for {half}."


def _number(text: str) -> Workers:
    return "auto" if text == "auto" else int(text)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cells", type=int, default=36)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--tight", type=int, default=2, help="how many of the four limits reject every proposal"
    )
    parser.add_argument("--workers", type=_number, nargs="+", default=["auto"])
    parser.add_argument("--brief", type=int, default=50, help="steps of the rows that compare")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lanes = LIMITS * options.episodes
    evaluate(options, 0, steps=3, cells=4 * len(ROBOTS))  # what happens once only is not measured
    print(
        f"{options.device}, {len(os.sched_getaffinity(0))} cores, {lanes} lanes a model, "
        f"{options.tight} of 4 limits reject all of {options.rounds} rounds"
    )
    print(
        "| evaluation | steps | time | steps per second | a step of all lanes | deciding | "
        "waiting for environments "
        "| each worker busy | memory |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    brief = {"steps": options.brief, "cells": 4 * len(ROBOTS)}
    most = pick_workers("auto", num_lanes=lanes, num_steps=lanes * 1000)
    print(
        _row(
            "environments alone, in this process",
            evaluate(options, 0, alone=True, **brief),
            lanes,
        ),
        flush=True,
    )
    evaluate(options, most, alone=True, steps=3, cells=4)  # the workers are started
    print(
        _row(
            f"environments alone, {most} workers",
            evaluate(options, most, alone=True, **brief),
            lanes,
        )
    )
    print(
        _row("in this process", evaluate(options, 0, **brief), lanes),
        flush=True,
    )
    close_idle()
    wholes: list[str] = []
    for workers in options.workers:
        number = most if workers == "auto" else workers
        found = evaluate(options, number, steps=options.steps, cells=options.cells)
        name = f"{options.cells} cells, {number} workers"
        print(_row(name, found, lanes), flush=True)
        wholes.append(f"{found.seconds * WHOLE / options.steps:.0f} s with {number} workers")
        close_idle()
    print(
        f"{options.cells} cells of {options.episodes} episodes and {WHOLE} steps, at that speed: "
        f"{', '.join(wholes)}."
    )
    print(_decisions(options, lanes))
    if options.device != "cpu":
        print(f"GPU memory at its peak: {torch.cuda.max_memory_allocated() / 2**20:.0f} MB")


if __name__ == "__main__":
    main()
