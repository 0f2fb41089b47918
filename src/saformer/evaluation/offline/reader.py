"""A model's expectations at logged steps, each with the past that the policy would have there."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saformer.core.batch import WindowBatch
from saformer.core.gaussian import LOG_DEVIATION_RANGE, Gaussian
from saformer.core.model import SaFormer
from saformer.data.levels import LEVELS, on_levels
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import WindowSampler

Doubles = NDArray[np.float64]
Indices = NDArray[np.int64]
MAX_BASELINE_STEPS = 100_000


@dataclass(frozen=True)
class Windows:
    """Windows and the part of each that is judged: from position `first` to its end."""

    start: Indices  # [W] the step that each begins at
    first: Indices  # [W] the first position judged: those before it only serve as its past
    trajectory: Indices  # [W] the trajectory that each lies in

    def __len__(self) -> int:
        return len(self.start)

    @classmethod
    def every_step_once(cls, lengths: Indices, window: int) -> Self:
        """Judge every step of every trajectory once, with all the past that fits: the first window
        all its steps, each later one, which begins a step further, its last."""
        num_windows = np.maximum(1, lengths - window + 1)
        trajectory = np.repeat(np.arange(len(lengths)), num_windows)
        offset = np.arange(len(trajectory)) - (np.cumsum(num_windows) - num_windows)[trajectory]
        start = (np.cumsum(lengths) - lengths)[trajectory] + offset
        return cls(start, np.where(offset == 0, 0, window - 1), trajectory)

    def only(self, index: NDArray[np.generic]) -> Self:
        return type(self)(self.start[index], self.first[index], self.trajectory[index])


def evenly(total: int, most: int) -> Indices:
    """All of `total` indices or, if they are too many, one out of each of `most` equal stretches:
    drawn, as a fixed stride could fall in step with the episodes, but the same on every call."""
    edges = np.arange(min(total, most) + 1) * total // min(total, most)
    return np.asarray(np.random.default_rng(0).integers(edges[:-1], edges[1:]))


def _blind_baseline(model: SaFormer, training: RelabelledStore) -> Gaussian:
    """One Gaussian over all training actions, blind to limit, state and past: [A], model units."""
    steps = torch.from_numpy(evenly(training.store.num_steps, MAX_BASELINE_STEPS))
    action = WindowSampler(training, window=1).windows(steps).action[:, 0]
    action = model.normalizer.normalize("action", action.to(model.get_buffer("action_low").device))
    return Gaussian(action.mean(0), action.std(0, correction=0).log().clamp(*LOG_DEVIATION_RANGE))


@dataclass(frozen=True)
class JudgedSteps:
    """M logged steps and what the model expected there; raw units but for the likelihoods."""

    step: Indices  # [M] index among the logged steps
    trajectory: Indices  # [M] the trajectory that each belongs to
    progress: Doubles  # [M] share of the trajectory that lies behind, in [0, 1)
    episode_cost: Doubles  # [M, C] what the whole trajectory cost
    cost_to_go: Doubles  # [M, C] as logged
    forecast: Doubles  # [M, C] the critic's, of the cost-to-go once the logged action is taken
    expected_return: Doubles  # [M] the actor's mean return-to-go
    return_to_go: Doubles  # [M] as logged
    log_likelihood: Doubles  # [M] of the logged action: nats, action in model units
    blind_log_likelihood: Doubles  # [M] the same by the blind baseline
    action: Doubles  # [M, A] as logged
    expected_action: Doubles  # [M, A] the actor's mean, as the machine can take it


class HeldOutReader:
    """Reads windows of one store with one model. `on_read` hears how many it has read by now."""

    def __init__(
        self,
        model: SaFormer,
        data: RelabelledStore,
        training: RelabelledStore,
        *,
        window: int,
        batch_size: int = 256,
        on_read: Callable[[int], None] = lambda num_read: None,
    ) -> None:
        self._model, self._data, self._baseline = model, data, _blind_baseline(model, training)
        self._batch_size, self._on_read, self._num_read = batch_size, on_read, 0
        self._lengths = np.asarray(data.store.lengths)
        self._episode_cost = np.asarray(data.episode_cost)
        self._device = model.get_buffer("action_low").device
        self._sampler = WindowSampler(data, window=window, device=self._device)
        self._positions = torch.arange(window, device=self._device)

    @torch.no_grad()
    def read(self, windows: Windows, *, limit: tuple[float, ...] | None = None) -> JudgedSteps:
        """Judge these windows under their trajectory's cost in hindsight, or under a limit."""
        was_training, parts = self._model.training, []
        self._model.eval()
        try:
            for begin in range(0, len(windows), self._batch_size):
                end = min(begin + self._batch_size, len(windows))
                parts.append(self._judge(windows.only(np.arange(begin, end)), limit))
                self._num_read += end - begin
                self._on_read(self._num_read)
        finally:
            self._model.train(was_training)
        names = [field.name for field in fields(JudgedSteps)]
        columns = {n: np.concatenate([getattr(part, n) for part in parts]) for n in names}
        return JudgedSteps(**columns)

    def _judge(self, windows: Windows, limit: tuple[float, ...] | None) -> JudgedSteps:
        model, normalizer = self._model, self._model.normalizer
        start = torch.from_numpy(windows.start).to(self._device)
        first = torch.from_numpy(windows.first).to(self._device)
        raw = self._sampler.windows(start)
        if limit is not None:
            raw = _prompted(raw, torch.tensor(limit, device=self._device))
        batch = normalizer.window(raw)
        predictions = model.actor(batch)
        judged = raw.valid & (self._positions >= first[:, None])  # [B, K]
        mean_action = normalizer.restore("action", predictions.action.mean)
        low, high = model.get_buffer("action_low"), model.get_buffer("action_high")
        possible = on_levels(mean_action.clamp(low, high), model._buffers.get(LEVELS))
        expected_return = normalizer.restore("return_to_go", predictions.return_to_go.mean)
        step = (start[:, None] + self._positions)[judged].cpu().numpy()
        trajectory = np.repeat(windows.trajectory, judged.sum(1).cpu().numpy())

        def at_steps(values: Tensor) -> Doubles:
            return np.asarray(values[judged].double().cpu().numpy())

        return JudgedSteps(
            step=step,
            trajectory=trajectory,
            progress=at_steps(raw.timestep) / self._lengths[trajectory],
            episode_cost=self._episode_cost[trajectory],
            cost_to_go=np.asarray(self._data.cost_to_go[step], dtype=np.float64),
            forecast=at_steps(normalizer.restore("cost_to_go", model.critic(batch))),
            expected_return=at_steps(expected_return[..., 0]),
            return_to_go=at_steps(raw.return_to_go[..., 0]),
            log_likelihood=at_steps(predictions.action.log_prob(batch.action)),
            blind_log_likelihood=at_steps(self._baseline.log_prob(batch.action)),
            action=at_steps(raw.action),
            expected_action=at_steps(possible),
        )


def _prompted(batch: WindowBatch, limit: Tensor) -> WindowBatch:
    """The same steps prompted as when acting under `limit` [C]: the cost-to-go is what remains.

    Returns-to-go stay as logged: which action does the actor take for that return in this limit?
    """
    spent = batch.limit[:, None] - batch.cost_to_go
    return replace(batch, limit=limit.expand_as(batch.limit), cost_to_go=limit - spent)
