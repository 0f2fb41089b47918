"""Episodes in lanes: one policy drives many environments at once, each under its own limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from saformer.core.policy import Decision, Policy
from saformer.data.trajectory import Trajectory
from saformer.envs.costed import Costed


@dataclass(frozen=True)
class Episode:
    """What happened on one lane."""

    limit: NDArray[np.float64]
    """[C]"""
    seed: int
    trajectory: Trajectory
    cost: NDArray[np.float64]
    """[T, C] of each step, undiscounted"""
    num_rounds: NDArray[np.int64]
    """[T] rounds of proposals that each decision took; 1 for a policy that proposes nothing"""
    fell_back: NDArray[np.bool_]
    """[T] whether the fallback decided"""


@dataclass
class _Lane:
    environment: Costed
    limit: NDArray[np.float64]
    seed: int
    state: NDArray[np.floating]
    states: list[Any] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    costs: list[Any] = field(default_factory=list)
    num_rounds: list[Any] = field(default_factory=list)
    fell_back: list[Any] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False

    def step(self, action: NDArray[np.floating], horizon: int) -> None:
        next_state, reward, self.terminated, self.truncated, info = self.environment.step(action)
        self.states.append(self.state)
        self.actions.append(action)
        self.rewards.append(reward)
        self.costs.append(info["cost"])
        self.state = next_state
        self.truncated = self.truncated or (not self.terminated and len(self.states) >= horizon)

    def episode(self) -> Episode:
        trajectory = Trajectory.of(
            self.states,
            self.actions,
            self.rewards,
            self.state,
            terminated=self.terminated,
            truncated=self.truncated,
        )
        return Episode(
            limit=self.limit,
            seed=self.seed,
            trajectory=trajectory,
            cost=np.stack(self.costs),
            num_rounds=np.array(self.num_rounds),
            fell_back=np.array(self.fell_back),
        )


Watcher = Callable[[torch.Tensor, Decision], None]
"""Called after each decision with the lanes it is for."""


def rollout(
    policy: Policy,
    make_environment: Callable[[], Costed],
    limits: Sequence[NDArray[np.float64]],
    seeds: Sequence[int],
    *,
    horizon: int,
    watch: Watcher | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Episode]:
    """Run one episode per (limit, seed), all at once; finished lanes are dropped from the batch.

    `horizon` ends episodes that the environment would not; `progress` is told how many of how many are finished.
    """
    lanes = [_begin(make_environment(), limit, seed) for limit, seed in zip(limits, seeds, strict=True)]
    policy.reset(_rows([lane.state for lane in lanes]), _rows([lane.limit for lane in lanes]))
    alive = list(range(len(lanes)))
    while alive:
        index = torch.tensor(alive)
        decision = policy.act(_rows([lanes[i].state for i in alive]), index)
        if watch:
            watch(index, decision)
        _step(lanes, alive, decision, horizon)
        policy.observe(
            _rows([[lanes[i].rewards[-1]] for i in alive]), _rows([lanes[i].costs[-1] for i in alive]), index
        )
        running = [i for i in alive if not (lanes[i].terminated or lanes[i].truncated)]
        if progress and len(running) < len(alive):
            progress(len(lanes) - len(running), len(lanes))
        alive = running
    for lane in lanes:
        lane.environment.close()
    return [lane.episode() for lane in lanes]


def _begin(environment: Costed, limit: NDArray[np.float64], seed: int) -> _Lane:
    state, _ = environment.reset(seed=seed)
    return _Lane(environment, limit, seed, state)


def _step(lanes: list[_Lane], alive: list[int], decision: Decision, horizon: int) -> None:
    actions = decision.action.cpu().numpy()
    num_rounds = [1] * len(alive) if decision.num_rounds is None else decision.num_rounds.tolist()
    fell_back = [False] * len(alive) if decision.fell_back is None else decision.fell_back.tolist()
    for row, i in enumerate(alive):
        lanes[i].step(actions[row], horizon)
        lanes[i].num_rounds.append(num_rounds[row])
        lanes[i].fell_back.append(fell_back[row])


def _rows(values: list[Any]) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float32))
