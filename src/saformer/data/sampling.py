"""Windows drawn from a relabelled store, gathered where the networks live."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from saformer.core.batch import Dimensions, WindowBatch
from saformer.core.normalizer import centre_and_half_range, mean_and_deviation
from saformer.data.relabel import RelabelledStore, timesteps


def dimensions_of(data: RelabelledStore) -> Dimensions:
    """The sizes that this data imposes on the networks."""
    return Dimensions(
        state=data.store.columns["state"].shape[1],
        action=data.store.columns["action"].shape[1],
        constraints=data.cost.shape[1],
        horizon=max(data.store.environment.horizon, int(data.store.columns["length"].max())),
    )


def statistics_of(data: RelabelledStore) -> dict[str, tuple[Tensor, Tensor]]:
    """Centre and scale of every kind of token, for the normaliser."""
    environment = data.store.environment
    return {
        "limit": mean_and_deviation(torch.from_numpy(data.episode_cost)),
        "cost_to_go": mean_and_deviation(torch.from_numpy(data.cost_to_go)),
        "return_to_go": mean_and_deviation(torch.from_numpy(data.return_to_go)[:, None]),
        "state": mean_and_deviation(_tensor(data.store.columns["state"])),
        "action": centre_and_half_range(torch.tensor(environment.action_low), torch.tensor(environment.action_high)),
    }


class WindowSampler:
    """Draws windows of K steps that begin at any step with equal chance and are padded at their end."""

    def __init__(self, data: RelabelledStore, *, window: int, device: torch.device | str = "cpu") -> None:
        if window < 1:
            raise ValueError(f"a window needs at least 1 step, got {window}")
        store, lengths = data.store, data.store.columns["length"]
        low, high = store.environment.action_low, store.environment.action_high
        self._offsets = torch.arange(window, device=device)
        self._state = _tensor(store.columns["state"], device)
        self._action = _tensor(np.clip(store.columns["action"], low, high), device)
        self._cost_to_go = _tensor(data.cost_to_go, device)
        self._return_to_go = _tensor(data.return_to_go, device)[:, None]
        self._limit = _tensor(np.repeat(data.episode_cost, lengths, axis=0), device)
        self._timestep = torch.from_numpy(timesteps(store)).to(device)
        self._last = torch.from_numpy(np.repeat(store.starts + lengths - 1, lengths)).to(device)

    def sample(self, batch_size: int, generator: torch.Generator) -> WindowBatch:
        """A batch of windows, with replacement."""
        starts = torch.randint(len(self._last), (batch_size,), generator=generator, device=self._last.device)
        return self.windows(starts)

    def windows(self, starts: Tensor) -> WindowBatch:
        """The windows that begin at these steps [B]."""
        steps = starts[:, None] + self._offsets
        last = self._last[starts][:, None]
        within = torch.minimum(steps, last)
        return WindowBatch(
            limit=self._limit[starts],
            cost_to_go=self._cost_to_go[within],
            return_to_go=self._return_to_go[within],
            state=self._state[within],
            action=self._action[within],
            timestep=self._timestep[within],
            valid=steps <= last,
        )


def _tensor(values: np.ndarray, device: torch.device | str = "cpu") -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float32)).to(device)
