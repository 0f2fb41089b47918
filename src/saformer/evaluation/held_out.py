"""What a model expects at logged steps, each seen with the past that the policy would have had
there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saformer.core.batch import WindowBatch
from saformer.core.gaussian import LOG_DEVIATION_RANGE, Gaussian
from saformer.core.model import SaFormer
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import WindowSampler

Doubles = NDArray[np.float64]
Indices = NDArray[np.int64]
MAX_BASELINE_STEPS = 100_000


@dataclass(frozen=True)
class Windows:
    """Windows and the part of each that is judged: from position `first` to its end."""

    start: Indices
    """[W] the step that each begins at"""
    first: Indices
    """[W] the first position judged: those before it only serve as its past"""
    trajectory: Indices
    """[W] the trajectory that each lies in"""

    def __len__(self) -> int:
        return len(self.start)

    def only(self, index: NDArray[np.generic]) -> Windows:
        """These windows alone."""
        return Windows(self.start[index], self.first[index], self.trajectory[index])


def every_step_once(lengths: Indices, window: int) -> Windows:
    """Windows that judge every step of every trajectory once, with all the past that fits into K
    steps.

    A trajectory's first window judges all its steps; each later one begins a step further and
    judges its last.
    """
    num_windows = np.maximum(1, lengths - window + 1)
    trajectory = np.repeat(np.arange(len(lengths)), num_windows)
    offset = np.arange(len(trajectory)) - (np.cumsum(num_windows) - num_windows)[trajectory]
    start = (np.cumsum(lengths) - lengths)[trajectory] + offset
    return Windows(start, np.where(offset == 0, 0, window - 1), trajectory)


def evenly(total: int, most: int) -> Indices:
    """All of `total` places or, if they are too many, one out of each of `most` equal stretches.

    Within a stretch the place is drawn, the same on every call: a fixed stride could fall in step
    with the episodes.
    """
    edges = np.arange(min(total, most) + 1) * total // min(total, most)
    drawn: Indices = np.random.default_rng(0).integers(edges[:-1], edges[1:])
    return drawn


def blind_baseline(model: SaFormer, training: RelabelledStore) -> Gaussian:
    """One Gaussian over all training actions, blind to limit, state and past: over [A], model
    units."""
    sampler = WindowSampler(training, window=1)
    action = sampler.windows(
        torch.from_numpy(evenly(training.store.num_steps, MAX_BASELINE_STEPS))
    ).action[:, 0]
    action = model.normalizer.normalize("action", action.to(device_of(model)))
    return Gaussian(action.mean(0), action.std(0, correction=0).log().clamp(*LOG_DEVIATION_RANGE))


@dataclass(frozen=True)
class JudgedSteps:
    """What was logged at M steps and what the model expected there, in raw units but for the
    likelihoods."""

    step: Indices
    """[M] where they stand among the logged steps"""
    trajectory: Indices
    """[M] the trajectory that each belongs to"""
    progress: Doubles
    """[M] share of the trajectory that lies behind, in [0, 1)"""
    episode_cost: Doubles
    """[M, C] what the whole trajectory cost"""
    cost_to_go: Doubles
    """[M, C] as logged"""
    forecast: Doubles
    """[M, C] the critic's, of the cost-to-go once the logged action is taken"""
    expected_return: Doubles
    """[M] the actor's mean return-to-go"""
    return_to_go: Doubles
    """[M] as logged"""
    log_likelihood: Doubles
    """[M] of the logged action: nats, action in model units"""
    blind_log_likelihood: Doubles
    """[M] the same by the blind baseline"""
    action_error: Doubles
    """[M, A] distance of the logged action from the actor's mean, brought within bounds as when
    acting"""


class HeldOutReader:
    """Reads windows of one store with one model."""

    def __init__(
        self,
        model: SaFormer,
        data: RelabelledStore,
        *,
        baseline: Gaussian,
        window: int,
        batch_size: int,
    ) -> None:
        self._model = model
        self._data = data
        self._lengths = np.asarray(data.store.lengths)
        self._episode_cost = np.asarray(data.episode_cost)
        self._baseline = baseline
        self._batch_size = batch_size
        self._device = device_of(model)
        self._sampler = WindowSampler(data, window=window, device=self._device)
        self._positions = torch.arange(window, device=self._device)

    @torch.no_grad()
    def read(
        self,
        windows: Windows,
        *,
        limit: tuple[float, ...] | None = None,
        heard: Callable[[int], None] = lambda num: None,
    ) -> JudgedSteps:
        """Judge these windows under the limit their trajectory kept in hindsight, or under one that
        is asked for.

        `heard` is told of each batch how many windows it held.
        """
        parts = []
        for begin in range(0, len(windows), self._batch_size):
            batch_windows = windows.only(
                np.arange(begin, min(begin + self._batch_size, len(windows)))
            )
            parts.append(self._judge(batch_windows, limit))
            heard(len(batch_windows))
        names = [field.name for field in fields(JudgedSteps)]
        return JudgedSteps(
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        )

    def _judge(self, windows: Windows, limit: tuple[float, ...] | None) -> JudgedSteps:
        model, normalizer = self._model, self._model.normalizer
        start = torch.from_numpy(windows.start).to(self._device)
        first = torch.from_numpy(windows.first).to(self._device)
        raw = self._sampler.windows(start)
        if limit is not None:
            raw = asked_for(raw, torch.tensor(limit, device=self._device))
        batch = normalizer.window(raw)
        predictions = model.actor(batch)
        judged = raw.valid & (self._positions >= first[:, None])  # [B, K]
        mean_action = normalizer.restore("action", predictions.action.mean)
        executed = mean_action.clamp(
            model.get_buffer("action_low"), model.get_buffer("action_high")
        )

        step = (start[:, None] + self._positions)[judged].cpu().numpy()
        trajectory = np.repeat(windows.trajectory, judged.sum(1).cpu().numpy())

        def kept(values: Tensor) -> Doubles:
            found: Doubles = values[judged].double().cpu().numpy()
            return found

        return JudgedSteps(
            step=step,
            trajectory=trajectory,
            progress=kept(raw.timestep) / self._lengths[trajectory],
            episode_cost=self._episode_cost[trajectory],
            cost_to_go=np.asarray(self._data.cost_to_go[step], dtype=np.float64),
            forecast=kept(normalizer.restore("cost_to_go", model.critic(batch))),
            expected_return=kept(
                normalizer.restore("return_to_go", predictions.return_to_go.mean)[..., 0]
            ),
            return_to_go=kept(raw.return_to_go[..., 0]),
            log_likelihood=kept(predictions.action.log_prob(batch.action)),
            blind_log_likelihood=kept(self._baseline.log_prob(batch.action)),
            action_error=kept((raw.action - executed).abs()),
        )


def asked_for(batch: WindowBatch, limit: Tensor) -> WindowBatch:
    """The same steps prompted as when acting under `limit` [C]: the cost-to-go is what remains of
    it.

    Returns-to-go stay as logged: the question is which action the actor gives for that return
    within this limit.
    """
    spent = batch.limit[:, None] - batch.cost_to_go
    return replace(batch, limit=limit.expand_as(batch.limit), cost_to_go=limit - spent)


def device_of(model: SaFormer) -> torch.device:
    """Where its weights live."""
    return model.normalizer.centre("state").device


@contextmanager
def without_dropout(model: SaFormer) -> Iterator[None]:
    """The model in evaluation mode, and back as it was afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
