"""Windows and transitions drawn from a relabelled store, gathered where the networks live."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saformer.core.batch import Dimensions, WindowBatch
from saformer.core.normalizer import centre_and_half_range, mean_and_deviation
from saformer.data.relabel import RelabelledStore
from saformer.data.store import TrajectoryStore

BLOCK_ROWS = 200_000


def dimensions_of(data: RelabelledStore) -> Dimensions:
    """The sizes that this data imposes on the networks."""
    return Dimensions(
        state=data.store.steps["state"].shape[1],
        action=data.store.steps["action"].shape[1],
        constraints=data.cost.shape[1],
        horizon=max(data.store.environment.horizon, int(data.store.lengths.max())),
    )


def statistics_of(data: RelabelledStore) -> dict[str, tuple[Tensor, Tensor]]:
    """Centre and scale of every kind of token, for the normaliser."""
    store = data.store

    def states() -> Iterator[Tensor]:
        return (_shared(store.gather("state", first, stop)) for first, stop in store.blocks())

    low, high = (torch.tensor(bound) for bound in (store.environment.action_low, store.environment.action_high))
    return {
        "limit": mean_and_deviation(_blocks_of(data.episode_cost)),
        "cost_to_go": mean_and_deviation(_blocks_of(data.cost_to_go)),
        "return_to_go": mean_and_deviation(_blocks_of(data.return_to_go[:, None])),
        "state": mean_and_deviation(states),
        "action": centre_and_half_range(low, high),
    }


class WindowSampler:
    """Draws windows of K steps that begin at any step with equal chance and are padded at their end.

    On a CPU, states and actions stay where the store has them, on disk if need be; on other devices they are copied.
    """

    def __init__(self, data: RelabelledStore, *, window: int, device: torch.device | str = "cpu") -> None:
        if window < 1:
            raise ValueError(f"a window needs at least 1 step, got {window}")
        self._steps = _Steps(data.store, torch.device(device))
        self._offsets = torch.arange(window, device=device)
        self._cost_to_go = _shared(data.cost_to_go).to(device)
        self._return_to_go = _shared(data.return_to_go).to(device)[:, None]
        self._limit = torch.from_numpy(data.episode_cost.astype(np.float32)).to(device)  # one row per trajectory

    def sample(self, batch_size: int, generator: torch.Generator) -> WindowBatch:
        """A batch of windows, with replacement."""
        return self.windows(self._steps.draw(batch_size, generator))

    def windows(self, starts: Tensor) -> WindowBatch:
        """The windows that begin at these steps [B], counted over all trajectories laid end to end."""
        steps = self._steps
        trajectory = steps.trajectory(starts)
        asked = starts[:, None] + self._offsets
        last = steps.last[trajectory][:, None]
        within = torch.minimum(asked, last)
        return WindowBatch(
            limit=self._limit[trajectory],
            cost_to_go=self._cost_to_go[within],
            return_to_go=self._return_to_go[within],
            state=steps.state(within, trajectory[:, None]),
            action=steps.action(within, trajectory[:, None]),
            timestep=within - steps.start[trajectory][:, None],
            valid=asked <= last,
        )


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

    On a CPU, states and actions stay where the store has them, on disk if need be; on other devices they are copied.
    """

    def __init__(self, data: RelabelledStore, *, device: torch.device | str = "cpu") -> None:
        store = data.store
        self._steps = _Steps(store, torch.device(device))
        self._reward = _shared(store.gather("reward")).to(device)[:, None]
        self._cost = _shared(data.cost).to(device)
        # one row per trajectory
        self._final_state, self._terminated, self._truncated = (
            _shared(store.episodes[name]).to(device) for name in ("final_state", "terminated", "truncated")
        )

    def sample(self, batch_size: int, generator: torch.Generator) -> TransitionBatch:
        """A batch of transitions, with replacement."""
        steps = self._steps.draw(batch_size, generator)
        shape, count = (batch_size,), len(self._terminated)
        return self.transitions(steps, torch.randint(count, shape, generator=generator, device=steps.device))

    def transitions(self, places: Tensor, begun: Tensor) -> TransitionBatch:
        """The steps at these places [B], counted over all trajectories laid end to end; `begun` [B] are numbers of
        trajectories whose first states go with them."""
        steps = self._steps
        trajectory = steps.trajectory(places)
        is_last = places == steps.last[trajectory]
        following = steps.state(torch.minimum(places + 1, steps.last[trajectory]), trajectory)
        return TransitionBatch(
            state=steps.state(places, trajectory),
            action=steps.action(places, trajectory),
            reward=self._reward[places],
            cost=self._cost[places],
            next_state=torch.where(is_last[:, None], self._final_state[trajectory], following),
            terminated=is_last & self._terminated[trajectory],
            truncated=is_last & self._truncated[trajectory],
            timestep=places - steps.start[trajectory],
            initial_state=steps.state(steps.start[begun], begun),
        )


class _Steps:
    """States and actions of trajectories laid end to end; on a CPU they are left where they lie."""

    def __init__(self, store: TrajectoryStore, device: torch.device) -> None:
        in_place = device.type == "cpu"
        self._num_steps = store.num_steps
        self._state, self._action = (
            _shared(store.steps[name]) if in_place else _shared(store.gather(name)).to(device)
            for name in ("state", "action")
        )
        environment = store.environment
        self._low, self._high = (
            torch.tensor(bound, device=device) for bound in (environment.action_low, environment.action_high)
        )
        # one row per trajectory
        self.start = torch.from_numpy(store.starts).to(device)
        self.last = torch.from_numpy(store.starts + store.lengths - 1).to(device)
        place = store.episodes["start"] if in_place else store.starts
        self._shift = torch.from_numpy(np.asarray(place) - store.starts).to(device)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """[count] places, each with equal chance."""
        return torch.randint(self._num_steps, (count,), generator=generator, device=self.start.device)

    def trajectory(self, places: Tensor) -> Tensor:
        """The trajectories that these places lie in."""
        return torch.searchsorted(self.start, places, right=True) - 1

    def state(self, places: Tensor, trajectory: Tensor) -> Tensor:
        """The states at these places of these trajectories."""
        return self._state[places + self._shift[trajectory]]

    def action(self, places: Tensor, trajectory: Tensor) -> Tensor:
        """The actions, within bounds."""
        return self._action[places + self._shift[trajectory]].clamp(self._low, self._high)


def _blocks_of(values: NDArray[Any]) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: _shared(values).split(BLOCK_ROWS)


def _shared(values: NDArray[Any]) -> Tensor:
    """A tensor over the same memory."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")  # it is only ever read
        return torch.from_numpy(np.asarray(values))
