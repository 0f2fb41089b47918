"""Single steps drawn from a relabelled store, gathered where the networks live."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import WindowSampler


@dataclass(frozen=True)
class TransitionBatch:
    """B single steps and where each led. Both ends of an episode are kept apart: only one of them ends its values."""

    state: Tensor
    """[B, S]"""
    action: Tensor
    """[B, A]"""
    reward: Tensor
    """[B, 1]"""
    cost: Tensor
    """[B, C] of this step, undiscounted."""
    next_state: Tensor
    """[B, S]"""
    terminated: Tensor
    """[B] bool"""
    truncated: Tensor
    """[B] bool"""
    timestep: Tensor
    """[B] int64, counted from the start of the episode."""
    initial_state: Tensor
    """[B, S] how other episodes began, each with equal chance: what a limit per episode is held against."""


class TransitionSampler:
    """Draws single steps, each with equal chance, and beginnings of episodes, each with equal chance.

    A transition is a window of two steps. As for windows, on a CPU states and actions stay where the store has them.
    """

    def __init__(self, data: RelabelledStore, *, device: torch.device | str = "cpu") -> None:
        store = data.store
        self._pairs = WindowSampler(data, window=2, device=device)
        self._reward = torch.from_numpy(np.array(store.gather("reward"))).to(device)[:, None]
        self._cost = torch.from_numpy(data.cost).to(device)
        # one row per trajectory
        self._start = torch.from_numpy(store.starts).to(device)
        self._final_state, self._terminated, self._truncated = (
            torch.from_numpy(np.array(store.episodes[name])).to(device)
            for name in ("final_state", "terminated", "truncated")
        )

    def sample(self, batch_size: int, generator: torch.Generator) -> TransitionBatch:
        """A batch of transitions, with replacement."""
        steps = self._pairs.starts(batch_size, generator)
        shape, count = (batch_size,), len(self._start)
        return self.transitions(steps, torch.randint(count, shape, generator=generator, device=steps.device))

    def transitions(self, steps: Tensor, begun: Tensor) -> TransitionBatch:
        """These steps [B], counted over all trajectories laid end to end, and the first states of these trajectories
        [B], by their numbers."""
        pairs = self._pairs.windows(steps)
        trajectory = torch.searchsorted(self._start, steps, right=True) - 1
        is_last = ~pairs.valid[:, 1]
        return TransitionBatch(
            state=pairs.state[:, 0],
            action=pairs.action[:, 0],
            reward=self._reward[steps],
            cost=self._cost[steps],
            next_state=torch.where(is_last[:, None], self._final_state[trajectory], pairs.state[:, 1]),
            terminated=is_last & self._terminated[trajectory],
            truncated=is_last & self._truncated[trajectory],
            timestep=pairs.timestep[:, 0],
            initial_state=self._pairs.windows(self._start[begun]).state[:, 0],
        )
