"""The last stage of training: an outlook in the data, for the rule that acts by it.

Both values are expectiles over what recorded trajectories went on to do, in-sample as in IQL, CAPS
and BCRL: a stretch of a stored trajectory, then the value of where it led. Nothing is asked about
actions that nobody took. The brake learns from the actions that began the cheapest courses. Chance
is what a step led to beyond what was expected of it, squared and added up to the end; it is at most
what the critic is off by.
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
from saformer.data.idling import RARE, SURE, dearest_rate, idling_of, share_of
from saformer.data.limits import FRONTIER_SIZE, exemplary
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import WindowSampler
from saformer.data.sources.source import Progress
from saformer.rules.outlook import FRONT_SIZE, MEMBERS, ROUNDING, TINY, Outlook

BATCH_SIZE, LEARNING_RATE, FOLLOWING, BEGINNING = 512, 3e-3, 0.02, 0.2
CHECKED = 20  # batches on which the cost of a step is checked
UPDATES = (500, 3000)  # at least and at most; between them, each step is seen fifteen times
TOLD = 50  # updates between calls of `progress`
BLOCK = 16_384  # steps that are weighed at once
MOST_STATES = 200_000  # that decide what is usual
WEIGHINGS = 6  # how often it is estimated what was luck
Replay = Callable[[Callable[[], None], torch.Generator], Callable[[], Any]]


def fit_outlook(
    model: SaFormer,
    data: RelabelledStore,
    *,
    window: int,
    replay: Replay,
    progress: Progress | None = None,
) -> Outlook:
    """For a trained model that sees a `window`, on its device. The same in every process: torch's
    own random state is neither used nor changed. `replay` makes a function that does the same
    again, as fast as can."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        outlook, follower = Outlook(model.dimensions), Outlook(model.dimensions)
    device = model.get_buffer("action_low").device
    _set_statistics(outlook, data, model.normalizer)
    outlook.to(device)
    stretches = _Stretches(model, data, device)
    windows = WindowSampler(data, window=window, device=device)
    _set_critic_error(outlook, model, windows, stretches.generator)
    follower.to(device).load_state_dict(outlook.state_dict())
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
            if not is_first and (index - first) % math.ceil((updates - first) / WEIGHINGS) == 0:
                stretches.weigh_luck(outlook)
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
    luck: Tensor  # [M, B, 2, C] of what was spent over the stretch, in the cost's scale


class _Stretches:
    """Draws stretches, each first step with equal chance."""

    def __init__(self, model: SaFormer, data: RelabelledStore, device: torch.device) -> None:
        self._model, self._table = model, WindowSampler(data, window=1, device=device).table
        self._cost = torch.from_numpy(np.asarray(data.cost)).to(device)
        self._reward = torch.from_numpy(np.array(data.store.gather("reward"))).to(device)
        terminated = np.array(data.store.episodes["terminated"])
        self._terminated = torch.from_numpy(terminated).to(device)
        self._offsets = torch.tensor(
            [0, 1, share_of(RARE, model.dimensions.horizon)], device=device
        )
        self._members = torch.arange(MEMBERS, device=device)[:, None]
        self._luck = torch.zeros(MEMBERS, len(self._cost), 2, self._cost.shape[1], device=device)
        self.generator = torch.Generator(device).manual_seed(0)

    def sample(self) -> Stretches:
        how: Any = {"generator": self.generator, "device": self._offsets.device}
        return self._at(torch.randint(len(self._reward), (BATCH_SIZE,), **how))

    @torch.no_grad()
    def weigh_luck(self, outlook: Outlook) -> None:
        """Estimate anew what each stretch owes to luck: what its steps led to beyond what is
        expected of them, and no more of it than the critic is off by."""
        count, device = len(self._cost), self._offsets.device
        for block in torch.arange(count, device=device).split(BLOCK):
            drawn = self._at(block)
            _, change, _ = _least_targets(outlook, outlook, drawn, is_first=True)
            expected = outlook.step(drawn.state[:, 0], drawn.action, drawn.timestep[:, 0])
            self._luck[:, block] = _surprise(outlook, drawn, expected, change)
        sums = F.pad(self._luck.double().cumsum(1), (0, 0, 0, 0, 1, 0))
        first = torch.arange(count, device=device)
        last = self._table.last[self._table.trajectory_of(first)]
        behind = torch.minimum(first + self._offsets[2], last + 1)
        self._luck.copy_(sums[:, behind] - sums[:, first])
        now = first - self._table.start[self._table.trajectory_of(first)]
        counts = (outlook.weight_left(now) - outlook.weight_left(now + 1))[:, None]
        spent = F.pad((self._cost * counts).double().cumsum(0), (0, 0, 1, 0))
        spent = (spent[behind] - spent[first]).mean(0) / outlook.get_buffer("cost_scale")
        chance = outlook.get_buffer("critic_error") * spent / outlook.get_buffer("cost_scale")
        self._luck *= (chance / (self._luck**2).mean((0, 1)).clamp(min=TINY**2)).clamp(max=1)

    def _at(self, first: Tensor) -> Stretches:
        how: Any = {"generator": self.generator, "device": self._offsets.device}
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
            budgets=torch.rand((len(first), 2, cost_to_go.shape[-1]), **how),
            luck=self._luck[:, first],
        )


def _loss(outlook: Outlook, follower: Outlook, drawn: Stretches, *, is_first: bool) -> Tensor:
    """Of all networks; each member's over the trajectories that it sees."""
    now, level = drawn.timestep[:, 0], 0.5 if is_first else RARE
    state, action = drawn.state[:, 0], drawn.action
    scale, centre = outlook.get_buffer("reward_scale"), outlook.get_buffer("reward_centre")
    cost_scale = outlook.get_buffer("cost_scale")
    with torch.no_grad():
        least, change, needed = _least_targets(outlook, follower, drawn, is_first=is_first)
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
    expected = outlook.step(state, action, now)
    _, reward, changes = expected
    usual = outlook.least(state, now)
    dearer = least - usual.detach()
    predicted = outlook.best(state, now, outlook.budget_rate(budget, now))
    loss = (
        _expectile_loss(usual, least, level).sum((-1, -2))
        + _cheap_course_loss(outlook, follower, drawn, expected, change=change, dearer=dearer)
        + allowed.all(-1) * _expectile_loss(predicted, best, 1 - level)
        + (reward - (drawn.reward - centre) / scale) ** 2
        + F.huber_loss(changes, change, reduction="none").sum((-1, -2))
        + goes_on * _expectile_loss(outlook.then(state, action, now, then_budget), then, 0.5)
    )
    return (drawn.seen * loss).mean()


def _cheap_course_loss(
    outlook: Outlook,
    follower: Outlook,
    drawn: Stretches,
    expected: tuple[Tensor, ...],
    *,
    change: Tensor,
    dearer: Tensor,
) -> Tensor:
    """[M, B] of the cost of a step, of chance, and of the brake, where no episode may be ended.
    `expected` of a step, the `change` of the least cost that it brought, and by how much its course
    was `dearer` [M, B, 2, C] than the least: cheap courses weigh as expectiles do."""
    state, now, (cost, *_) = drawn.state[:, 0], drawn.timestep[:, 0], expected
    scale, centre = outlook.get_buffer("cost_scale"), outlook.get_buffer("cost_centre")
    cost_error = cost - (drawn.cost - centre) / scale
    with torch.no_grad():
        weight = torch.where((dearer[:, :, 0] < 0).any(-1), 1 - RARE, RARE)
        left = outlook.weight_left(drawn.timestep)[..., None]  # [B, 3, 1]
        surprise = _surprise(outlook, drawn, expected, change)[:, :, 0]
        chance = follower.chance(drawn.state[:, :2], drawn.timestep[:, :2]) * left[:, :2]
        then = surprise**2 + chance[:, :, 1] * drawn.valid[:, 1, None]
    rate, more = outlook.chance(state, now), outlook.surprise(state, drawn.action, now)
    return (
        (cost_error**2).sum(-1)
        + weight * ((rate - then / left[:, 0].clamp(min=TINY)) ** 2).sum(-1)
        + ((more - then + chance[:, :, 0]) ** 2).sum(-1)
        + weight * ((outlook.brake(state, now) - drawn.action) ** 2).sum(-1)
    )


def _surprise(
    outlook: Outlook, drawn: Stretches, expected: tuple[Tensor, ...], change: Tensor
) -> Tensor:
    """[M, B, 2, C] what steps led to beyond what was expected of them: cost, and the `change` of
    the least cost still to come."""
    cost, _, changes = expected
    left = outlook.weight_left(drawn.timestep)[..., None]  # [B, 3, 1]
    centre, scale = outlook.get_buffer("cost_centre"), outlook.get_buffer("cost_scale")
    error = (drawn.cost - centre) / scale - cost
    return change - changes + ((left[:, 0] - left[:, 1]) * error)[:, :, None]


def _least_targets(
    outlook: Outlook, follower: Outlook, drawn: Stretches, *, is_first: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """[M, B, 2, C] rate of the least cost from now on, [M, B, 2, C] by how much a step changes what
    is still to come of it, and [M, B, C] what a course needs later at least. An end costs nothing
    more where it may be brought about; elsewhere it is no way to save: as much as the dearest
    episode would have spent."""
    scale, left = outlook.get_buffer("cost_scale"), outlook.weight_left(drawn.timestep)[..., None]
    unspent = outlook.get_buffer("dearest") * outlook.weight_left(drawn.length)[:, None]
    unspent = unspent * drawn.terminated[:, None]
    at_end = torch.stack([unspent, torch.zeros_like(unspent)], 1)  # [B, 2, C]
    values = follower.least(drawn.state, drawn.timestep) * scale * left[..., None]
    ended = ~drawn.valid[:, :, None, None]
    now, then, later = torch.where(ended, at_end[:, None], values).unbind(2)
    if is_first:
        least = (drawn.cost_to_go[:, None] + at_end).expand_as(later)
    else:
        least = drawn.spent[:, None] + later - drawn.luck * scale
    needed = torch.where(outlook.get_buffer("can_idle"), 0.0, later.amin(-2))
    return least / (scale * left[:, :1].clamp(min=TINY)), (then - now) / scale, needed


def _expectile_loss(predicted: Tensor, target: Tensor, level: float) -> Tensor:
    weight = torch.where(target < predicted.detach(), 1 - level, level)
    return weight * F.huber_loss(predicted, target, reduction="none")


def _set_statistics(outlook: Outlook, data: RelabelledStore, normalizer: Normalizer) -> None:
    store, horizon = data.store, outlook.dimensions.horizon
    counts = data.cost_discount ** np.arange(horizon)
    left = np.concatenate([np.cumsum(counts[::-1])[::-1], [0.0]])
    idling = idling_of(data)
    values: dict[str, Any] = {"left": left, "dearest": dearest_rate(data), "idle": idling.action}
    values |= {"idle_cost": idling.cost, "can_idle": idling.is_a_way}
    states = torch.from_numpy(some_of(store.gather("state"))).to(normalizer.scale("state").device)
    axes = axes_of(normalizer.normalize("state", states))
    values |= dict(zip(("state_centre", "state_axes"), axes, strict=True))
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


def some_of(rows: NDArray[Any]) -> NDArray[Any]:
    """A copy of all rows or, of many, of some that are drawn: the same on every call."""
    few = len(rows) <= MOST_STATES
    drawn = np.random.default_rng(0).integers(len(rows), size=MOST_STATES)
    return np.array(rows if few else rows[np.sort(drawn)])


def axes_of(states: Tensor) -> tuple[Tensor, Tensor]:
    """Centre [S] and axes [S, S] of the ellipsoid that holds all but rare states [n, S]."""
    centre = states.double().mean(0)
    from_centre = states.double() - centre
    variance, directions = torch.linalg.eigh(from_centre.T @ from_centre / len(states))
    axes = directions / variance.clamp(min=ROUNDING**2).sqrt()
    distance = ((from_centre @ axes) ** 2).sum(1).sqrt().cpu().numpy()
    return centre, axes / max(np.quantile(distance, 1 - RARE), ROUNDING)


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


@torch.no_grad()
def _set_critic_error(
    outlook: Outlook, model: SaFormer, windows: WindowSampler, generator: torch.Generator
) -> None:
    """How far off the critic is on recorded steps, by its square for each unit of cost still to
    come: it sees the past, so hardly more is chance."""
    squares, costs, was = list[Tensor](), list[Tensor](), model.training
    scale = model.normalizer.scale("cost_to_go")
    model.eval()
    for _ in range(CHECKED):
        drawn = windows.sample(BATCH_SIZE // CHECKED, generator)
        batch = model.normalizer.window(drawn)
        error = scale * (model.critic(batch) - batch.cost_to_go)[batch.valid]
        squares.append((error**2).sum(0))
        costs.append(drawn.cost_to_go[batch.valid].sum(0))
    model.train(was)
    rate = torch.stack(squares).sum(0) / torch.stack(costs).sum(0).clamp(min=TINY)
    outlook.get_buffer("critic_error").copy_(rate)
