"""Learn from the data what a step costs, what it costs to see an episode out, and which limit to
tell until then."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import mse_loss

from saformer.core.batch import WindowBatch
from saformer.core.history import Prompt
from saformer.core.model import SaFormer
from saformer.core.proposals import ExecutionOptions, draw, propose
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import WindowSampler
from saformer.data.transitions import TransitionSampler
from saformer.reserve import Reserve
from saformer.training.ambition import told_limits

BATCH_SIZE, LEARNING_RATE = 1024, 2e-3
UPDATES = (50, 3000)
"""At least and at most; between them, so many that each step is seen thirty times."""
STOPPING_STEPS = 50
"""An episode that can be ended is taken to end within so many steps."""
STOPPING_PERCENTILE = 90.0
FEWEST_ENDS = 0.01
"""Share of episodes that must have ended before their time, for stopping to be possible."""
CHEAP_PERCENTILE = 1.0
"""Of stored episodes' costs: what the actor is told to idle."""
IDLE_WINDOWS, IDLE_CANDIDATES, CAUTION = 256, 64, 1.05
"""What idling costs is looked up in so many windows, among so many proposals, and taken to be a
little more."""


def fit_reserve(
    model: SaFormer,
    data: RelabelledStore,
    *,
    window: int,
    seed: int = 0,
    updates: int | None = None,
) -> Reserve:
    """A reserve for a trained model, on its own device; `window`: K, the steps that it reads."""
    device = model.normalizer.scale("state").device
    updates = updates or int(np.clip(30 * data.store.num_steps // BATCH_SIZE, *UPDATES))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        reserve = Reserve(model.dimensions)
    cost = torch.from_numpy(np.asarray(data.cost)).double()
    deviation = cost.std(0, correction=0)
    reserve.get_buffer("centre").copy_(cost.mean(0))
    reserve.get_buffer("scale").copy_(
        torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    )
    reserve.get_buffer("stop_cost").copy_(torch.from_numpy(stop_cost(data)))
    reserve.get_buffer("cheapest").copy_(
        torch.from_numpy(np.percentile(data.episode_cost, CHEAP_PERCENTILE, axis=0))
    )
    for name, limits in told_limits(data).items():
        reserve.get_buffer(name).copy_(torch.from_numpy(limits))
    reserve.to(device)
    sampler, generator = (
        TransitionSampler(data, device=device),
        torch.Generator(device).manual_seed(seed),
    )
    optimizer = torch.optim.Adam(reserve.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    normalize, scale = model.normalizer.normalize, reserve.get_buffer("scale")
    for _ in range(updates):
        steps = sampler.sample(BATCH_SIZE, generator)
        found = reserve.step_cost(
            normalize("state", steps.state), normalize("action", steps.action)
        )
        loss = mse_loss(found / scale, steps.cost / scale)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    reserve.eval().requires_grad_(False)
    if data.cost_discount == 1:
        reserve.get_buffer("idle_cost").copy_(
            idle_cost(model, reserve, data, window=window, seed=seed)
        )
    return reserve


@torch.inference_mode()
def idle_cost(
    model: SaFormer, reserve: Reserve, data: RelabelledStore, *, window: int, seed: int
) -> Tensor:
    """[C] what a step costs on average if the actor is told the cheapest limit and the cheapest
    proposal is taken.

    Averaged over states of the data; infinite if no trajectory is as long as a window.
    """
    cheapest = reserve.get_buffer("cheapest")
    generator = torch.Generator(cheapest.device).manual_seed(seed)
    drawn = WindowSampler(data, window=window, device=cheapest.device).sample(
        IDLE_WINDOWS, generator
    )
    prompt = _asked_at_the_end(drawn, cheapest)
    reading = model.read(prompt)
    options = ExecutionOptions(candidates=IDLE_CANDIDATES, verification="off")
    chance = draw(IDLE_WINDOWS, model.dimensions.action, options, generator)
    action = propose(model, reading, options, *chance).action
    state = reading.state[:, None].expand(-1, IDLE_CANDIDATES, -1)
    found = reserve.step_cost(state, model.normalizer.normalize("action", action)).amin(1)
    found = found[drawn.valid[:, -1]].clamp(
        min=0
    )  # no step costs less, wherever the regression was not taught
    return CAUTION * found.mean(0) if len(found) else torch.full_like(cheapest, torch.inf)


def _asked_at_the_end(drawn: WindowBatch, limit: Tensor) -> Prompt:
    """What is known at the last step of each window, had this been the limit: [C]."""
    cost_to_go = drawn.cost_to_go + (limit - drawn.limit)[:, None]
    past = WindowBatch(
        limit=limit.expand_as(drawn.limit),
        cost_to_go=cost_to_go[:, :-1],
        **{
            name: getattr(drawn, name)[:, :-1]
            for name in ("return_to_go", "state", "action", "timestep", "valid")
        },
    )
    return Prompt(past, cost_to_go[:, -1], drawn.state[:, -1], drawn.timestep[:, -1])


def stop_cost(data: RelabelledStore) -> NDArray[np.float64]:
    """[C] what the last steps of an episode cost, in nine of ten that ended before their time;
    infinite if few did.

    How long it takes to end an episode on purpose is not in the data; how much its last steps cost
    is.
    """
    store = data.store
    ended = np.asarray(store.episodes["terminated"]) & (store.lengths < store.environment.horizon)
    if ended.mean() < FEWEST_ENDS:
        return np.full(data.episode_cost.shape[1], np.inf)
    last = np.maximum(store.starts, store.starts + store.lengths - STOPPING_STEPS)[ended]
    found: NDArray[np.float64] = np.percentile(
        np.asarray(data.cost_to_go)[last], STOPPING_PERCENTILE, axis=0
    )
    return found
