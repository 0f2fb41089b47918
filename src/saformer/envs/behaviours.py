"""Datasets without a download: bundled behaviour policies, rolled out on this machine."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory

ENVIRONMENTS = {"hopper": "Hopper-v5", "walker2d": "Walker2d-v5", "halfcheetah": "HalfCheetah-v5"}
CHUNK_STEPS = 10_000
LOG_DEVIATION_RANGE = (-10.0, 2.0)

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Behaviour:
    """One snapshot of a soft actor-critic: two hidden layers and a tanh-squashed Gaussian."""

    weights: tuple[NDArray[np.float32], ...]
    biases: tuple[NDArray[np.float32], ...]

    def act(self, state: NDArray[np.floating], rng: np.random.Generator) -> NDArray[np.float32]:
        """Sample an action for one state."""
        hidden = state.astype(np.float32)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = np.maximum(hidden @ weight + bias, 0)
        mean, log_deviation = np.split(hidden @ self.weights[-1] + self.biases[-1], 2)
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        action: NDArray[np.float32] = np.tanh(mean + np.exp(np.clip(log_deviation, *LOG_DEVIATION_RANGE)) * noise)
        return action


@dataclass(frozen=True)
class _Chunk:
    """A piece of a build. It has its own seed, so that the result does not depend on who makes it, or when."""

    robot: str
    snapshot: int
    steps: int
    seed: tuple[int, ...]


def build(
    robot: str,
    mixture: str,
    *,
    steps: int,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> TrajectoryStore:
    """Roll out the snapshots of a mixture until there are `steps` steps; every episode is run to its end.

    medium: the medium snapshot. medium-replay: equal steps of every snapshot up to it. medium-expert: equal steps of
    the medium and the expert snapshot.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    chunks = _plan(robot, mixture, steps, seed)
    trajectories = [trajectory for part in _collect(chunks, workers, progress) for trajectory in part]
    provenance: dict[str, Any] = {
        "source": f"bundled behaviours of {robot}, {mixture}",
        "steps": steps,
        "seed": seed,
        "versions": {name: version(name) for name in ("gymnasium", "mujoco", "numpy")},
    }
    return TrajectoryStore.of(trajectories, _environment_spec(robot), provenance)


def snapshots(robot: str, mixture: str) -> list[int]:
    """Which bundled snapshots a mixture is made of."""
    with _bundle(robot) as bundle:
        members = {
            "medium": [bundle["medium"]],
            "medium-replay": list(bundle["replay"]),
            "medium-expert": [bundle["medium"], bundle["expert"]],
        }
        return [int(index) for index in members[mixture]]


@cache
def behaviour(robot: str, snapshot: int) -> Behaviour:
    """A bundled snapshot."""
    with _bundle(robot) as bundle:
        weights = tuple(bundle[f"w{layer}"][snapshot].astype(np.float32) for layer in range(3))
        biases = tuple(bundle[f"b{layer}"][snapshot].astype(np.float32) for layer in range(3))
    return Behaviour(weights, biases)


def _plan(robot: str, mixture: str, steps: int, seed: int) -> list[_Chunk]:
    members = snapshots(robot, mixture)
    chunks = []
    for place, snapshot in enumerate(members):
        owed = steps * (place + 1) // len(members) - steps * place // len(members)
        sizes = [min(CHUNK_STEPS, owed - begun) for begun in range(0, owed, CHUNK_STEPS)]
        chunks += [_Chunk(robot, snapshot, size, (seed, place, part)) for part, size in enumerate(sizes)]
    return chunks


def _collect(chunks: list[_Chunk], workers: int | None, progress: Progress | None) -> list[list[Trajectory]]:
    """Run the chunks on several cores; the answer keeps their order."""
    workers = min(workers or os.cpu_count() or 1, len(chunks))
    done, total = 0, sum(chunk.steps for chunk in chunks)
    parts: list[list[Trajectory]] = [[] for _ in chunks]
    if workers == 1:
        for place, chunk in enumerate(chunks):
            parts[place] = _run(chunk)
            done += chunk.steps
            if progress:
                progress(done, total)
        return parts
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        places = {pool.submit(_run, chunk): place for place, chunk in enumerate(chunks)}
        try:
            for future in as_completed(places):
                parts[places[future]] = future.result()
                done += chunks[places[future]].steps
                if progress:
                    progress(done, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return parts


def _run(chunk: _Chunk) -> list[Trajectory]:
    rng = np.random.default_rng(np.random.SeedSequence(chunk.seed))
    environment = gymnasium.make(ENVIRONMENTS[chunk.robot], disable_env_checker=True)
    policy = behaviour(chunk.robot, chunk.snapshot)
    trajectories: list[Trajectory] = []
    state, _ = environment.reset(seed=int(rng.integers(2**31)))
    while sum(map(len, trajectories)) < chunk.steps:
        trajectories.append(_episode(environment, policy, state, rng))
        state, _ = environment.reset()
    environment.close()
    return trajectories


def _episode(
    environment: gymnasium.Env, policy: Behaviour, state: NDArray[Any], rng: np.random.Generator
) -> Trajectory:
    states, actions, rewards = [], [], []
    terminated = truncated = False
    while not (terminated or truncated):
        action = policy.act(state, rng)
        states.append(state)
        actions.append(action)
        state, reward, terminated, truncated, _ = environment.step(action)
        rewards.append(float(reward))
    return Trajectory.of(states, actions, rewards, state, terminated=terminated, truncated=truncated)


def _environment_spec(robot: str) -> EnvironmentSpec:
    environment = gymnasium.make(ENVIRONMENTS[robot], disable_env_checker=True)
    bounds = environment.action_space
    spec = EnvironmentSpec(
        action_low=tuple(bounds.low.tolist()),  # type: ignore[attr-defined]
        action_high=tuple(bounds.high.tolist()),  # type: ignore[attr-defined]
        horizon=environment.spec.max_episode_steps,  # type: ignore[union-attr, arg-type]
        identifier=ENVIRONMENTS[robot],
    )
    environment.close()
    return spec


def _bundle(robot: str) -> Any:
    return np.load(str(resources.files("saformer") / "assets" / "behaviours" / f"{robot}.npz"), allow_pickle=False)
