"""Datasets without a download: behaviour policies, rolled out on this machine."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from itertools import chain
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from saformer.criteria.code import is_here, typed
from saformer.data.folder import end_in_workers
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory
from saformer.envs.bundle import Behaviour, Bundle, open_bundle
from saformer.envs.costed import check_vectors, flat, make_by_id

CHUNK_STEPS = 10_000
PACKAGES = ("gymnasium", "mujoco", "numpy")

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class _Chunk:
    """A piece of a build, with its own seed: whoever makes it, the result is the same."""

    environment: str
    behaviour: Behaviour
    steps: int
    seed: tuple[int, ...]
    is_known: bool  # whether the environment's code was typed where the chunk was planned


def build(
    robot: str | Path,
    mixture: str,
    *,
    steps: int,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> TrajectoryStore:
    """Roll out the snapshots of a mixture, in whole episodes, until there are `steps` steps.

    The robot is hopper, walker2d, halfcheetah, one of these with -effort, or the path of a bundle
    (.npz; see `saformer.envs.bundle`). medium: the medium snapshot. medium-replay: equal steps of
    every replay snapshot. medium-expert: equal steps of the medium and the expert snapshot.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    bundle = open_bundle(robot)
    chunks = _plan(bundle, mixture, steps, seed)
    workers = min(workers or os.cpu_count() or 1, len(chunks))
    if workers > 1:
        end_in_workers()
    with _deaf_children(), make_environment(bundle.environment) as environment:
        spec = _spec(bundle, environment)
    trajectories = list(chain.from_iterable(_collect(chunks, workers, progress)))
    provenance: dict[str, Any] = {
        "source": f"bundled behaviours of {Path(robot).name}, {mixture}",
        "bundle": bundle.fingerprint,
        "steps": steps,
        "seed": seed,
        "versions": {name: version(name) for name in PACKAGES if find_spec(name)},
    }
    return TrajectoryStore.of(trajectories, spec, provenance)


def make_environment(identifier: str) -> gymnasium.Env:
    """The environment of this Gymnasium id, if behaviours can act in it and its episodes end. An id
    may name the module that registers it, as in "my_robots:Arm-v0", for other processes."""
    environment = flat(make_by_id(identifier))
    check_vectors(environment, identifier)
    actions = environment.action_space
    if not actions.is_bounded():  # type: ignore[attr-defined]
        raise ValueError(f"{identifier}: actions must have finite bounds, got {actions}")
    if environment.spec is None or environment.spec.max_episode_steps is None:
        trouble = "has no max_episode_steps: its episodes may never end"
        raise ValueError(f"{identifier} {trouble}; register it with max_episode_steps=...")
    return environment


def run_episode(
    environment: gymnasium.Env, behaviour: Behaviour, state: NDArray[Any], rng: np.random.Generator
) -> Trajectory:
    """Act with sampled actions from the state of a reset to the end of the episode."""
    states, actions, rewards = [], [], []
    terminated = truncated = False
    while not (terminated or truncated):
        action = behaviour.act(state, rng)
        states.append(state)
        actions.append(action)
        state, reward, terminated, truncated, _ = environment.step(action)
        rewards.append(float(reward))
    return Trajectory.of(
        states, actions, rewards, state, terminated=terminated, truncated=truncated
    )


def _spec(bundle: Bundle, environment: gymnasium.Env) -> EnvironmentSpec:
    """Of the environment, if the snapshots were made for it, as far as can be seen."""
    ours, (theirs,) = bundle.weights[0].shape[1], environment.observation_space.shape  # type: ignore[misc]
    if ours != theirs:
        counts = f"reads {ours} observations, {bundle.environment} gives {theirs}"
        other = "it was made for another environment or version"
        raise ValueError(f"{bundle.source} {counts}: {other}")
    bounds: dict[str, Any] = {}
    for name in ("low", "high"):
        own, bound = getattr(bundle, f"action_{name}"), getattr(environment.action_space, name)
        if not np.array_equal(own, bound.astype(np.float32)):
            raise ValueError(
                f"{bundle.source} has action_{name} {own.tolist()}, {bundle.environment} has "
                f"{bound.tolist()}; a bundle without bounds means -1 and 1"
            )
        bounds[f"action_{name}"] = tuple(bound.tolist())
    horizon: int = environment.spec.max_episode_steps  # type: ignore[union-attr, assignment]
    return EnvironmentSpec(**bounds, horizon=horizon, identifier=bundle.environment)


def _plan(bundle: Bundle, mixture: str, steps: int, seed: int) -> list[_Chunk]:
    members = bundle.snapshots(mixture)
    chunks = []
    for index, behaviour in enumerate(map(bundle.behaviour, members)):
        owed = steps * (index + 1) // len(members) - steps * index // len(members)
        sizes = [min(CHUNK_STEPS, owed - begun) for begun in range(0, owed, CHUNK_STEPS)]
        for part, size in enumerate(sizes):
            about = (behaviour, size, (seed, index, part), is_here(bundle.environment))
            chunks.append(_Chunk(bundle.environment, *about))
    return chunks


def _collect(
    chunks: list[_Chunk], workers: int, progress: Progress | None
) -> list[list[Trajectory]]:
    """Run the chunks on several cores; the results have their order."""
    done, total = 0, sum(chunk.steps for chunk in chunks)
    parts: list[list[Trajectory]] = [[] for _ in chunks]
    run_here = ((index, _run(chunk)) for index, chunk in enumerate(chunks))
    for index, part in run_here if workers == 1 else _run_in_processes(chunks, workers):
        parts[index] = part
        done += chunks[index].steps
        if progress:
            progress(done, total)
    return parts


def _run_in_processes(chunks: list[_Chunk], workers: int) -> Iterator[tuple[int, list[Trajectory]]]:
    try:
        context = multiprocessing.get_context("spawn")
        stopping = context.Event()
        with ProcessPoolExecutor(workers, context, _obey, (stopping,)) as pool:
            try:
                with _deaf_children():
                    indices = {pool.submit(_run, chunk): i for i, chunk in enumerate(chunks)}
                for future in as_completed(indices):
                    yield indices[future], future.result()
            except BaseException:
                stopping.set()
                pool.shutdown(cancel_futures=True)
                raise
    except BrokenProcessPool:
        raise RuntimeError(
            "a process that makes data ended early: call this under `if __name__ == "
            '"__main__":`, as every worker runs the script\'s other lines again, or make the data '
            "first (saformer data build TASK); where memory runs out, try fewer workers"
        ) from None


_stopping: list[Event] = []  # of a worker: what it obeys


def _obey(stopping: Event) -> None:
    """Of a worker: stop after the present episode once this is set, and end as soon as the process
    that started it is gone, however it went."""
    _stopping.append(stopping)
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has a parent"
    threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(process: BaseProcess) -> None:
    process.join()
    os._exit(1)


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes that start meanwhile, as some libraries start them too, never hear of Ctrl-C: this
    one hears of it afterwards, and stops them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    meanwhile = list[int]()
    resource_tracker.ensure_running()  # it would unblock the signal as it starts
    handler = signal.signal(signal.SIGINT, lambda signum, frame: meanwhile.append(signum))
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGINT, handler)
        if meanwhile:
            signal.raise_signal(signal.SIGINT)


def _run(chunk: _Chunk) -> list[Trajectory]:
    rng = np.random.default_rng(np.random.SeedSequence(chunk.seed))
    trajectories: list[Trajectory] = []
    environment_name = typed(chunk.environment) if chunk.is_known else chunk.environment
    with make_environment(environment_name) as environment:
        state, _ = environment.reset(seed=int(rng.integers(2**31)))
        while sum(map(len, trajectories)) < chunk.steps:
            if any(event.is_set() for event in _stopping):
                break
            trajectories.append(run_episode(environment, chunk.behaviour, state, rng))
            state, _ = environment.reset()
    return trajectories
