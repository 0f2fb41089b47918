"""Fit a reserve. An actor that reads a low limit acts as the cheap part of the data did, which may
be the poor part: where dearer stored trajectories had earned more by the time that they had spent
the limit, they are what to follow until then."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from saformer.core.batch import WindowBatch
from saformer.core.history import Prompt
from saformer.core.model import SaFormer
from saformer.core.rules import NoCriticOptions, NoCriticRule, propose
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import WindowSampler
from saformer.data.transitions import TransitionSampler
from saformer.rules.reserve import NUM_LEVELS, Reserve

BATCH_SIZE, LEARNING_RATE = 1024, 2e-3
UPDATES = (50, 3000)  # at least and at most; between them, each step is seen thirty times
FEWEST_ENDS = 0.01  # share of episodes that ended before their time, for stopping to be possible
STOPPING_STEPS, STOPPING_PERCENTILE = 50, 90.0  # an episode is taken to end within so many steps
CHEAP_PERCENTILE = 1.0  # of stored episodes' costs: the limit that the actor reads to idle
IDLE_WINDOWS, IDLE_CANDIDATES, CAUTION = 256, 64, 1.05  # where to look for it; and a little more
MOST_GROUPS, FEWEST = 10, 50  # groups of dearer trajectories, and trajectories of each
NEAREST = 0.1  # share of all trajectories that is taken to be like the limit
ALIKE, TINY = 0.02, 1e-6  # groups that earned so much less than the best are as good
FAR = 1.75
"""Followed are those that went on to spend so many times the limit, if there are enough: an actor
that reads the cost of those that ended soon after ends before."""


def fit_reserve(
    model: SaFormer, data: RelabelledStore, *, window: int, updates: int | None = None
) -> Reserve:
    """A reserve for a trained model, on its device; `window`: K, the steps that it reads. The same
    in every process: nothing is dropped, and torch's own random state neither used nor changed."""
    was_training = model.training
    model.eval()
    updates = updates or int(np.clip(30 * data.store.num_steps // BATCH_SIZE, *UPDATES))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        reserve = Reserve(model.dimensions)
    cost = torch.from_numpy(np.asarray(data.cost)).double()
    deviation = cost.std(0, correction=0)
    statistics = {
        "centre": cost.mean(0),
        "scale": torch.where(deviation > 0, deviation, torch.ones_like(deviation)),
        "stop_cost": stop_cost(data),
        "cheapest": np.percentile(data.episode_cost, CHEAP_PERCENTILE, axis=0),
        **best_prompts(data),
    }
    for name, value in statistics.items():
        reserve.get_buffer(name).copy_(torch.as_tensor(value))
    _fit_step_cost(reserve.to(model.get_buffer("action_low").device), model, data, updates)
    if data.cost_discount == 1:
        reserve.get_buffer("idle_cost").copy_(idle_cost(model, reserve, data, window=window))
    model.train(was_training)
    return reserve


def _fit_step_cost(reserve: Reserve, model: SaFormer, data: RelabelledStore, updates: int) -> None:
    scale, normalize = reserve.get_buffer("scale"), model.normalizer.normalize
    sampler = TransitionSampler(data, device=scale.device)
    generator = torch.Generator(scale.device).manual_seed(0)
    weights = [value for name, value in reserve.named_buffers() if name[-1].isdigit()]
    optimizer = torch.optim.Adam([weight.requires_grad_() for weight in weights], lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    for _ in range(updates):
        steps = sampler.sample(BATCH_SIZE, generator)
        state, action = normalize("state", steps.state), normalize("action", steps.action)
        loss = mse_loss(reserve.step_cost(state, action) / scale, steps.cost / scale)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    for weight in weights:
        weight.requires_grad_(False).grad = None


@torch.inference_mode()
def idle_cost(model: SaFormer, reserve: Reserve, data: RelabelledStore, *, window: int) -> Tensor:
    """[C] what a step costs on average if the actor reads the cheapest limit and the cheapest
    proposal is taken: over states of the data; infinite if no trajectory is as long as a window."""
    cheapest = reserve.get_buffer("cheapest")
    generator = torch.Generator(cheapest.device).manual_seed(0)
    sampler = WindowSampler(data, window=window, device=cheapest.device)
    windows = sampler.sample(IDLE_WINDOWS, generator)
    prefix = model.prefill(_prompt_at_the_end(windows, cheapest))
    options = NoCriticOptions(candidates=IDLE_CANDIDATES)
    drawn = options.draw(IDLE_WINDOWS, model.dimensions.action, generator)
    action = propose(model, prefix, NoCriticRule(options), *drawn).action
    state = prefix.state[:, None].expand(-1, IDLE_CANDIDATES, -1)
    cost = reserve.step_cost(state, model.normalizer.normalize("action", action)).amin(1)
    # no step costs less than nothing, wherever the regression was not taught
    cost = cost[windows.valid[:, -1]].clamp(min=0)
    return CAUTION * cost.mean(0) if len(cost) else torch.full_like(cheapest, torch.inf)


def _prompt_at_the_end(windows: WindowBatch, limit: Tensor) -> Prompt:
    """What is known at the last step of each window, had this been the limit: [C]."""
    cost_to_go = windows.cost_to_go + (limit - windows.limit)[:, None]
    steps = (windows.return_to_go, windows.state, windows.action, windows.timestep, windows.valid)
    columns = (column[:, :-1] for column in (cost_to_go, *steps))
    past = WindowBatch(limit.expand_as(windows.limit), *columns)
    return Prompt(past, cost_to_go[:, -1], windows.state[:, -1], windows.timestep[:, -1])


def stop_cost(data: RelabelledStore) -> Any:
    """[C] what the last steps of an episode cost, in nine of ten that ended before their time;
    infinite if few did. How long it takes to end one on purpose is not in the data."""
    store = data.store
    ended = np.asarray(store.episodes["terminated"]) & (store.lengths < store.environment.horizon)
    if ended.mean() < FEWEST_ENDS:
        return np.full(data.episode_cost.shape[1], np.inf)
    first = np.maximum(store.starts, store.starts + store.lengths - STOPPING_STEPS)[ended]
    return np.percentile(np.asarray(data.cost_to_go)[first], STOPPING_PERCENTILE, axis=0)


def best_prompts(data: RelabelledStore) -> dict[str, Any]:
    """Limits over the data's range ("levels"), the limit to read under each that earns most
    ("best"), and how much more that earns, as a share ("gain"): [G, C] each. Nothing is known to be
    better than the limit itself with several constraints or discounted costs."""
    costs = data.episode_cost
    levels = np.quantile(costs, np.linspace(0, 1, NUM_LEVELS), axis=0)
    best, gain = np.zeros_like(levels), np.zeros_like(levels)
    if costs.shape[1] == 1 and data.cost_discount == 1:
        earned = earned_by(data, levels[:, 0])
        for index, level in enumerate(levels[:, 0]):
            best[index], gain[index] = _best_prompt(level, costs[:, 0], earned[:, index])
    return {"levels": levels, "best": best, "gain": gain}


def earned_by(data: RelabelledStore, levels: Any) -> Any:
    """[trajectories, G] what each had earned when it had spent so much, or at its end."""
    store, cost = data.store, np.asarray(data.cost)[:, 0]
    earned = np.empty((len(store.lengths), len(levels)))
    for index, (start, length) in enumerate(zip(store.starts, store.lengths, strict=True)):
        steps = slice(start, start + length)
        returns = np.cumsum(store.steps["reward"][steps], dtype=np.float64)
        affordable = np.searchsorted(np.cumsum(cost[steps], dtype=np.float64), levels, "right")
        earned[index] = np.concatenate([[0.0], returns])[affordable]
    return earned


def _best_prompt(level: float, costs: Any, earned: Any) -> tuple[float, float]:
    """The cost of those that had earned most by then, among those that went on, and how much more
    that is."""
    distance = np.abs(costs - level)
    own = float(earned[distance <= np.quantile(distance, NEAREST)].mean())
    by_cost = np.argsort(costs, kind="stable")
    dearer, far = (by_cost[costs[by_cost] >= least] for least in (level, FAR * level))
    followed = far if len(far) >= FEWEST else dearer
    if len(followed) < FEWEST:
        return 0.0, 0.0
    groups = np.array_split(followed, min(MOST_GROUPS, len(followed) // FEWEST))
    means = np.array([earned[group].mean() for group in groups])
    cheapest = int(np.argmax(means >= means.max() - ALIKE * abs(means.max())))
    gain = float((means[cheapest] - own) / max(abs(own), TINY))
    return float(np.median(costs[groups[cheapest]])), gain
