"""Learn from the data what a step costs, and what it costs to end an episode."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import mse_loss

from saformer.core.model import SaFormer
from saformer.data.relabel import RelabelledStore
from saformer.data.transitions import TransitionSampler
from saformer.reserve import Reserve

BATCH_SIZE, LEARNING_RATE = 1024, 2e-3
UPDATES = (50, 3000)
"""At least and at most; between them, so many that each step is seen thirty times."""
STOPPING_STEPS = 50
"""An episode that can be ended is taken to end within so many steps."""
STOPPING_PERCENTILE = 90.0
FEWEST_ENDS = 0.01
"""Share of episodes that must have ended before their time, for stopping to be possible."""


def fit_reserve(model: SaFormer, data: RelabelledStore, *, seed: int = 0, updates: int | None = None) -> Reserve:
    """A reserve for a trained model: regression of single steps' costs, on the model's own device."""
    device = model.normalizer.scale("state").device
    updates = updates or int(np.clip(30 * data.store.num_steps // BATCH_SIZE, *UPDATES))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        reserve = Reserve(model.dimensions)
    cost = torch.from_numpy(np.asarray(data.cost)).double()
    deviation = cost.std(0, correction=0)
    reserve.get_buffer("centre").copy_(cost.mean(0))
    reserve.get_buffer("scale").copy_(torch.where(deviation > 0, deviation, torch.ones_like(deviation)))
    reserve.get_buffer("stop_cost").copy_(torch.from_numpy(stop_cost(data)))
    reserve.to(device)
    sampler, generator = TransitionSampler(data, device=device), torch.Generator(device).manual_seed(seed)
    optimizer = torch.optim.Adam(reserve.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    normalize, scale = model.normalizer.normalize, reserve.get_buffer("scale")
    for _ in range(updates):
        steps = sampler.sample(BATCH_SIZE, generator)
        found = reserve.step_cost(normalize("state", steps.state), normalize("action", steps.action))
        loss = mse_loss(found / scale, steps.cost / scale)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return reserve.eval().requires_grad_(False)


def stop_cost(data: RelabelledStore) -> NDArray[np.float64]:
    """[C] what the last steps of an episode cost, in nine of ten that ended before their time; infinite if few did.

    How long it takes to end an episode on purpose is not in the data; how much its last steps cost is.
    """
    store = data.store
    ended = np.asarray(store.episodes["terminated"]) & (store.lengths < store.environment.horizon)
    if ended.mean() < FEWEST_ENDS:
        return np.full(data.episode_cost.shape[1], np.inf)
    last = np.maximum(store.starts, store.starts + store.lengths - STOPPING_STEPS)[ended]
    found: NDArray[np.float64] = np.percentile(np.asarray(data.cost_to_go)[last], STOPPING_PERCENTILE, axis=0)
    return found
