"""Ways to step many MuJoCo environments at once: why evaluation uses processes.

python -m benchmarks.simulation [--lanes 80] [--steps 200] [--workers 16]
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor

import mujoco
import numpy as np
from mujoco.rollout import Rollout
from numpy.typing import NDArray

from benchmarks.evaluation import ROBOTS, maker_of
from saformer.envs.block import lane_dtype
from saformer.envs.lanes import Maker, Share
from saformer.envs.pool import borrowed, close_idle
from saformer.envs.stepping import Stepper

Actions = NDArray[np.float32]


class Threads:
    """Shares of the lanes, each stepped by a thread: MuJoCo lets go of Python's lock, the rest does
    not."""

    def __init__(self, maker: Maker, lanes: int, threads: int) -> None:
        self.lanes = in_this_process(maker, lanes).lanes
        places = [range(first, lanes, threads) for first in range(min(threads, lanes))]
        self._shares = [Share([maker() for _ in mine], mine, mine) for mine in places]
        self._threads = ThreadPoolExecutor(threads)
        for share in self._shares:
            share.begin(self.lanes)

    def start_step(self) -> None:
        self._at_work = [self._threads.submit(share.start_step) for share in self._shares]

    def finish_step(self) -> None:
        for share in self._at_work:
            share.result()


def in_this_process(maker: Maker, lanes: int) -> Share:
    """All lanes, begun."""
    share = Share([maker() for _ in range(lanes)], range(lanes), range(lanes))
    share.begin(np.zeros(lanes, lane_dtype(*share.widths)))
    return share


def stepped(stepper: Stepper, actions: Actions) -> float:
    """Milliseconds for a step of all lanes."""
    stepper.lanes["active"][:] = True
    taken = []
    for action in actions:
        began = time.perf_counter()
        stepper.lanes["action"][:] = action
        stepper.start_step()
        stepper.finish_step()
        taken.append(time.perf_counter() - began)
    return 1e3 * float(np.median(taken))


def rolled_out(maker: Maker, actions: Actions, threads: int) -> tuple[float, float]:
    """MuJoCo's own threaded rollout, and what Python must add of an observation and a reward
    (wrappers, costs and the end of episodes not counted): milliseconds of both."""
    lanes = actions.shape[1]
    environments = [maker().unwrapped for _ in range(lanes)]
    model, kind = environments[0].model, mujoco.mjtState.mjSTATE_FULLPHYSICS
    state = np.zeros((lanes, mujoco.mj_stateSize(model, kind)))
    for lane, environment in enumerate(environments):
        environment.reset(seed=lane)
        mujoco.mj_getState(model, environment.data, state[lane], kind)
    physics, rest, scratch = [], [], [mujoco.MjData(model) for _ in range(threads)]
    with Rollout(nthread=threads) as roll:
        for action in actions:
            began = time.perf_counter()
            control = np.repeat(
                action[:, None].astype(np.float64), environments[0].frame_skip, axis=1
            )
            state = roll.rollout(model, scratch, state, control)[0][:, -1].copy()
            between = time.perf_counter()
            for lane, environment in enumerate(environments):
                mujoco.mj_setState(model, environment.data, state[lane], kind)
                environment._get_obs()
                environment._get_rew(0.0, action[lane])
            physics.append(between - began)
            rest.append(time.perf_counter() - between)
    return 1e3 * float(np.median(physics)), 1e3 * float(np.median(rest))


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lanes", type=int, default=80)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    lanes, workers = options.lanes, options.workers
    print(
        f"A step of {lanes} lanes, {workers} workers or threads, {len(os.sched_getaffinity(0))} "
        "cores:\n"
    )
    print(
        "| environment | one process | threads | processes | MuJoCo's rollout: physics + Python |"
    )
    print("|---|---|---|---|---|")
    for name, (dimensions, _) in ROBOTS.items():
        maker, rng = maker_of(name), np.random.default_rng(0)
        actions = rng.uniform(-1, 1, (options.steps, lanes, dimensions.action)).astype(np.float32)
        here = stepped(in_this_process(maker, lanes), actions)
        threads = stepped(Threads(maker, lanes, workers), actions)
        with borrowed(workers) as pool:
            pool.begin(maker.text(), range(lanes))
            processes = stepped(pool, actions)
        physics, rest = rolled_out(maker, actions, workers)
        print(
            f"| {name} | {here:.2f} ms | {threads:.2f} ms | {processes:.2f} ms | {physics:.2f} + "
            f"{rest:.2f} ms |",
            flush=True,
        )
    close_idle()


if __name__ == "__main__":
    main()
