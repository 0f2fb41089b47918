"""The last stage of training: an outlook in the data, for the rule that acts by it.

Both values are expectiles over what recorded trajectories went on to do, in-sample as in IQL, CAPS
and BCRL: a stretch of a stored trajectory, then the value of where it led. Nothing is asked about
actions that nobody took.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from saformer.core.model import SaFormer
from saformer.core.normalizer import Normalizer
from saformer.data.limits import FRONTIER_SIZE, exemplary, idle_action
from saformer.data.relabel import RelabelledStore, cost_of_action
from saformer.data.sampling import WindowSampler
from saformer.data.sources.source import Progress
from saformer.rules.outlook import FRONT_SIZE, MEMBERS, TINY, Outlook

RARE = 0.05
"""One in twenty. Of the courses that the data takes from a state, the cheapest is this expectile:
low, but not as low as a single lucky one (the best lies as far from the other end). Courses are
compared over this share of an episode, before values take over. Doing nothing is a way if this
share of stretches does, to within this share of half the actions' range."""

BATCH_SIZE, LEARNING_RATE, FOLLOWING, BEGINNING = 512, 3e-3, 0.02, 0.2
CHECKED, SURE = 20, 0.999  # batches on which the cost of a step is checked, and how strictly
UPDATES = (500, 3000)  # at least and at most; between them, each step is seen fifteen times
TOLD = 50  # updates between calls of `progress`
Replay = Callable[[Callable[[], None], torch.Generator], Callable[[], Any]]


def fit_outlook(
    model: SaFormer, data: RelabelledStore, *, replay: Replay, progress: Progress | None = None
) -> Outlook:
    """For a trained model, on its device. The same in every process: torch's own random state is
    neither used nor changed. `replay` makes a function that does the same again, as fast as can."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        outlook, follower = Outlook(model.dimensions), Outlook(model.dimensions)
    device = model.get_buffer("action_low").device
    _set_statistics(outlook, data, model.normalizer)
    outlook.to(device)
    follower.to(device).load_state_dict(outlook.state_dict())
    stretches = _Stretches(model, data, device)
    weights, followers = (
        [value for name, value in each.named_buffers() if "_net." in name]
        for each in (outlook, follower)
    )
    rate = torch.tensor(LEARNING_RATE, device=device)
    variables = [weight.requires_grad_() for weight in weights]
    optimizer = torch.optim.Adam(variables, lr=rate, capturable=device.type == "cuda")

    def update(*, is_first: bool) -> None:
        loss = _loss(outlook, follower, stretches.sample(), is_first=is_first)
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.grad = gradient
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(followers, weights, FOLLOWING)

    updates = int(np.clip(15 * data.store.num_steps // BATCH_SIZE, *UPDATES))
    first = round(BEGINNING * updates)
    # values begin at the usual course, and are moved from there
    for is_first, stage in ((True, range(first)), (False, range(first, updates))):
        play = replay(partial(update, is_first=is_first), stretches.generator)
        for index in stage:
            rate.fill_(LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * index / updates)))
            play()
            if progress and ((index + 1) % TOLD == 0 or index + 1 == updates):
                progress(index + 1, updates)
    for weight in weights:
        weight.requires_grad_(False).grad = None
    idle = model.normalizer.normalize("action", outlook.get_buffer("idle"))
    _set_by_steps(outlook, [stretches.sample() for _ in range(CHECKED)], idle)
    return outlook


@dataclass(frozen=True)
class Stretches:
    """B steps of stored trajectories, and where each led after one step and after a stretch."""

    state: Tensor  # [B, 3, S] now, then, later
    action: Tensor  # [B, A] now
    timestep: Tensor  # [B, 3]
    valid: Tensor  # [B, 3] the trajectory goes on so far
    cost: Tensor  # [B, C] of the step
    reward: Tensor  # [B] of the step
    spent: Tensor  # [B, C] over the stretch, as it counts at the start of the episode
    earned: Tensor  # [B] over the stretch
    cost_to_go: Tensor  # [B, C]
    return_to_go: Tensor  # [B]
    length: Tensor  # [B] of the trajectory
    terminated: Tensor  # [B]
    seen: Tensor  # [M, B] which members learn from it
    budgets: Tensor  # [B, 2, C] drawn from 0 to 1, for now and for then


class _Stretches:
    """Draws stretches, each first step with equal chance."""

    def __init__(self, model: SaFormer, data: RelabelledStore, device: torch.device) -> None:
        self._model, self._table = model, WindowSampler(data, window=1, device=device).table
        self._cost = torch.from_numpy(np.asarray(data.cost)).to(device)
        self._reward = torch.from_numpy(np.array(data.store.gather("reward"))).to(device)
        terminated = np.array(data.store.episodes["terminated"])
        self._terminated = torch.from_numpy(terminated).to(device)
        self._offsets = torch.tensor([0, 1, _stretch(model.dimensions.horizon)], device=device)
        self._members = torch.arange(MEMBERS, device=device)[:, None]
        self.generator = torch.Generator(device).manual_seed(0)

    def sample(self) -> Stretches:
        how: Any = {"generator": self.generator, "device": self._offsets.device}
        first = torch.randint(len(self._reward), (BATCH_SIZE,), **how)
        steps, trajectory = (
            self._table.windows(first, self._offsets),
            self._table.trajectory_of(first),
        )
        goes_on = steps.valid[:, 2:]
        cost_to_go, return_to_go = steps.cost_to_go, steps.return_to_go[..., 0]
        normalize = self._model.normalizer.normalize
        return Stretches(
            state=normalize("state", steps.state),
            action=normalize("action", steps.action[:, 0]),
            timestep=steps.timestep[:, :1] + self._offsets,
            valid=steps.valid,
            cost=self._cost[first],
            reward=self._reward[first],
            spent=cost_to_go[:, 0] - cost_to_go[:, 2] * goes_on,
            earned=return_to_go[:, 0] - return_to_go[:, 2] * goes_on[:, 0],
            cost_to_go=cost_to_go[:, 0],
            return_to_go=return_to_go[:, 0],
            length=(self._table.last - self._table.start)[trajectory] + 1,
            terminated=self._terminated[trajectory],
            seen=trajectory % (MEMBERS + 1) != self._members,
            budgets=torch.rand((BATCH_SIZE, 2, cost_to_go.shape[-1]), **how),
        )


def _loss(outlook: Outlook, follower: Outlook, drawn: Stretches, *, is_first: bool) -> Tensor:
    """Of all four networks; each member's over the trajectories that it sees."""
    now, level = drawn.timestep[:, 0], 0.5 if is_first else RARE
    state, action = drawn.state[:, 0], drawn.action
    scale, centre = outlook.get_buffer("reward_scale"), outlook.get_buffer("reward_centre")
    cost_scale = outlook.get_buffer("cost_scale")
    with torch.no_grad():
        least, least_then, needed = _least_targets(outlook, follower, drawn, is_first=is_first)
        left = outlook.weight_left(drawn.timestep)[..., None]  # [B, 3, 1]
        budget = drawn.budgets[:, 0] * outlook.get_buffer("dearest") * left[:, 0]
        remains = budget - drawn.spent
        at_later = outlook.budget_rate(remains, drawn.timestep[:, 2])
        later = follower.best(drawn.state[:, 2], drawn.timestep[:, 2], at_later) * scale + centre
        later = later * outlook.steps_left(drawn.timestep[:, 2]) * drawn.valid[:, 2]
        best = drawn.return_to_go.expand(MEMBERS, -1) if is_first else drawn.earned + later
        allowed = (drawn.cost_to_go <= budget) if is_first else (remains >= needed)
        best = (best / outlook.steps_left(now).clamp(min=1) - centre) / scale
        then_budget = drawn.budgets[:, 1] * outlook.get_buffer("dearest") / cost_scale
        then = follower.best(drawn.state[:, 1], drawn.timestep[:, 1], then_budget)
        then = torch.where(drawn.valid[:, 1], then, -centre / scale)
        goes_on = (left[:, 1, 0] > 0).float()
    cost, reward, after = outlook.step(state, action, now)
    cost_error = cost - (drawn.cost - outlook.get_buffer("cost_centre")) / cost_scale
    predicted = outlook.best(state, now, outlook.budget_rate(budget, now))
    loss = (
        _expectile_loss(outlook.least(state, now), least, level).sum((-1, -2))
        + allowed.all(-1) * _expectile_loss(predicted, best, 1 - level)
        + (cost_error**2).sum(-1)
        + (reward - (drawn.reward - centre) / scale) ** 2
        + goes_on * F.huber_loss(after, least_then, reduction="none").sum((-1, -2))
        + goes_on * _expectile_loss(outlook.then(state, action, now, then_budget), then, 0.5)
    )
    return (drawn.seen * loss).mean()


def _least_targets(
    outlook: Outlook, follower: Outlook, drawn: Stretches, *, is_first: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Rates of the least cost from now on and from then on, [M, B, 2, C] each, and what a course
    needs later at least, [M, B, C]. An end costs nothing more where it may be brought about;
    elsewhere it is no way to save: as much as the dearest episode would have spent."""
    scale, left = outlook.get_buffer("cost_scale"), outlook.weight_left(drawn.timestep)[..., None]
    unspent = outlook.get_buffer("dearest") * outlook.weight_left(drawn.length)[:, None]
    unspent = unspent * drawn.terminated[:, None]
    at_end = torch.stack([unspent, torch.zeros_like(unspent)], 1)  # [B, 2, C]
    values = follower.least(drawn.state[:, 1:], drawn.timestep[:, 1:]) * scale * left[:, 1:, None]
    values = torch.where(drawn.valid[:, 1:, None, None], values, at_end[:, None])
    then, later = values[:, :, 0], values[:, :, 1]
    if is_first:
        least = (drawn.cost_to_go[:, None] + at_end).expand_as(later)
    else:
        least = drawn.spent[:, None] + later
    left = scale * left.clamp(min=TINY)
    needed = torch.where(outlook.get_buffer("can_idle"), 0.0, later.amin(-2))
    return least / left[:, :1], then / left[:, 1:2], needed


def _expectile_loss(predicted: Tensor, target: Tensor, level: float) -> Tensor:
    weight = torch.where(target < predicted.detach(), 1 - level, level)
    return weight * F.huber_loss(predicted, target, reduction="none")


def _stretch(horizon: int) -> int:
    return max(1, round(RARE * horizon))


def _set_statistics(outlook: Outlook, data: RelabelledStore, normalizer: Normalizer) -> None:
    store, horizon = data.store, outlook.dimensions.horizon
    counts = data.cost_discount ** np.arange(horizon)
    left = np.concatenate([np.cumsum(counts[::-1])[::-1], [0.0]])
    rates = data.episode_cost / (left[0] - left[store.lengths])[:, None]
    idle = idle_action(data)
    idle_cost = cost_of_action(data, idle)
    values: dict[str, Any] = {"dearest": rates.max(0), "left": left, "idle": idle}
    values["can_idle"] = shows_idling(data, idle, idle_cost, rates.max(0))
    values["idle_cost"] = idle_cost.mean(0)
    reward = np.asarray(store.gather("reward"), dtype=np.float64)[:, None]
    for name, column in (("cost", np.asarray(data.cost, dtype=np.float64)), ("reward", reward)):
        deviation = column.std(0)
        values[f"{name}_centre"] = column.mean(0)
        values[f"{name}_scale"] = np.where(deviation > 0, deviation, 1.0)
    for name, value in values.items():
        outlook.get_buffer(name).copy_(torch.as_tensor(value))
    cost, earned = (torch.from_numpy(column).float() for column in front_of(data))
    earned = earned[:, None].to(normalizer.scale("return_to_go").device)
    earned = normalizer.normalize("return_to_go", earned)[:, 0]
    for buffer, front in (("front_cost", cost), ("front_return", earned)):
        outlook.get_buffer(buffer)[: len(front)] = front
        outlook.get_buffer(buffer)[len(front) :] = front[-1]


def shows_idling(
    data: RelabelledStore, idle: NDArray[Any], idle_cost: NDArray[Any], dearest: NDArray[Any]
) -> bool:
    """Whether whole stretches of recorded trajectories do nothing, or nothing that costs more by a
    cost of the action, as a share of what the dearest episode costs: it may be done anywhere."""
    low, high = np.array(data.environment.action_low), np.array(data.environment.action_high)
    distance = np.abs(np.asarray(data.store.gather("action")) - idle)
    distance = (distance / np.maximum(high - low, TINY) * 2).max(1)
    if all("action" in criterion.reads for criterion in data.criteria):
        excess = (np.asarray(data.cost, dtype=np.float64) - idle_cost) / np.maximum(dearest, TINY)
        distance = np.minimum(distance, np.nan_to_num(excess, nan=np.inf).max(1))
    means = _stretch_means(data, distance)
    return bool(len(means) and np.quantile(means, RARE) <= RARE)


def _stretch_means(data: RelabelledStore, values: NDArray[Any]) -> NDArray[Any]:
    """Of values [steps], over every stretch of recorded trajectories."""
    store, length = data.store, _stretch(data.environment.horizon)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    pairs = zip(store.starts, store.lengths, strict=True)
    first = np.concatenate([np.arange(start, start + count - length + 1) for start, count in pairs])
    return (sums[first + length] - sums[first]) / length


def front_of(data: RelabelledStore) -> tuple[NDArray[Any], NDArray[Any]]:
    """Costs [F, C] and returns [F] of the data's frontier, or of an even choice of it, the highest
    first: each return is the mean of as many as the frontier takes, all within its costs."""
    whole = exemplary(data)
    cost, earned = data.episode_cost[whole], data.episode_return[whole]
    if not len(cost):
        cost, earned = data.episode_cost, data.episode_return
    limits = cost[np.argsort(-cost.sum(1), kind="stable")]
    limits = limits[np.unique(np.linspace(0, len(limits) - 1, FRONT_SIZE).round().astype(int))]
    returns = []
    for limit in limits:
        within = np.sort(earned[(cost <= limit).all(1)])
        returns.append(within[-FRONTIER_SIZE:].mean())
    return limits, np.array(returns)


@torch.no_grad()
def _set_by_steps(outlook: Outlook, batches: Sequence[Stretches], idle: Tensor) -> None:
    """By how much all but one in a thousand recorded steps cost more than expected, at most; and
    what doing nothing costs on average, where the criteria do not tell."""
    scale, centre = outlook.get_buffer("cost_scale"), outlook.get_buffer("cost_centre")
    idle_cost, errors, idling = outlook.get_buffer("idle_cost"), list[Tensor](), list[Tensor]()
    for each in batches:
        state, now = each.state[:, 0], each.timestep[:, 0]
        errors.append(each.cost - centre - scale * outlook.step(state, each.action, now)[0].mean(0))
        nothing = outlook.step(state, idle.expand_as(each.action), now)[0].mean((0, 1))
        idling.append((centre + scale * nothing).clamp(min=0))
    outlook.get_buffer("unforeseen").copy_(torch.cat(errors).quantile(SURE, dim=0).clamp(min=0))
    estimate = torch.stack(idling).mean(0)
    idle_cost.copy_(torch.where(idle_cost.isnan(), estimate, idle_cost))
