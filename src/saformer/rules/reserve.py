"""The rule of reserve (docs/method.md): execute means, reading the limit that earns most, while
more remains than it takes to see the episode out: to end it, where data ended early, or to go on as
cheaply as possible. Then take proposals that cost little and lead to an end; where there is none,
the usual ones if they can save enough soon, else wide ones too."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saformer.core.batch import Dimensions, WindowBatch
from saformer.core.history import Prompt
from saformer.core.model import Prefix, SaFormer
from saformer.core.policy import Candidates, Decision, Verification
from saformer.core.rules import ProposalOptions, Rule, decision_of, propose, verify
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import WindowSampler
from saformer.data.transitions import TransitionSampler

EMPHASIS = 3.0  # times a step's cost counts beside the forecast, which hardly depends on the action
PATIENCE = 200.0  # steps that usual proposals have to save what is forecast to be missing
GAIN, LOSS = 0.3, 0.1  # share that a limit must earn more to be read; in a shield, or LOSS less
NUM_LEVELS = 41  # limits over the data's range for which the best prompt is known

BATCH_SIZE, LEARNING_RATE = 1024, 2e-3
UPDATES = (50, 3000)  # at least and at most; between them, each step is seen thirty times
FEWEST_ENDS = 0.01  # share of episodes that ended before their time, for stopping to be possible
STOPPING_STEPS, STOPPING_PERCENTILE = 50, 90.0  # an episode is taken to end within so many steps
CHEAP_PERCENTILE = 1.0  # of stored episodes' costs: the limit that the actor reads to idle
IDLE_WINDOWS, IDLE_CANDIDATES, CAUTION = 256, 64, 1.05  # where to look for it; and a little more
MOST_GROUPS, FEWEST = 10, 50  # groups of dearer trajectories, and trajectories of each
NEAREST = 0.1  # share of all trajectories that is taken to be like the limit
ALIKE, TINY = 0.02, 1e-6  # groups that earned so much less than the best are as good
FAR = 1.75  # times the limit that those who are followed spent, if enough did: others end too soon


@dataclass(frozen=True)
class ReserveOptions(ProposalOptions):
    """Act by the means until no more remains than it takes to end the episode, then end it."""

    spread: float = 16.0
    """Deviations by which the second half of actions is spread, to end an episode with."""
    holdback: float = 0.01
    """Share of a limit that is held back."""
    enforce: bool = True
    """Keep the limit. If not, the means of the limit that earns most, for a shield to keep it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.spread >= 0:
            raise ValueError(f"spread must be at least 0, got {self.spread}")
        if not 0 <= self.holdback < 1:
            raise ValueError(f"holdback is a share from 0 to below 1, got {self.holdback}")


class Reserve(nn.Module):
    """What is fitted: what a step costs, what it costs to see an episode out, and which limit earns
    most until then. All are buffers: no optimiser, pack or rounded export touches them."""

    def __init__(self, dimensions: Dimensions, width: int = 128) -> None:
        super().__init__()
        self.horizon, each = dimensions.horizon, dimensions.constraints
        sizes = (dimensions.state + dimensions.action, width, width, each)
        for index in range(3):
            layer = nn.Linear(sizes[index], sizes[index + 1])
            self.register_buffer(f"weight_{index}", layer.weight.detach())
            self.register_buffer(f"bias_{index}", layer.bias.detach())
        names = ("centre", "scale", "cheapest", "stop_cost", "idle_cost")
        for name, value in zip(names, (0.0, 1.0, 0.0, torch.inf, torch.inf), strict=True):
            self.register_buffer(name, torch.full((each,), value))
        for name in ("levels", "best", "gain"):
            self.register_buffer(name, torch.zeros(NUM_LEVELS, each))

    def step_cost(self, state: Tensor, action: Tensor) -> Tensor:
        """What one step costs: [..., S], [..., A] in model units -> [..., C] in raw units."""
        x = torch.cat([state, action], dim=-1)
        for index in range(3):
            weight, bias = self.get_buffer(f"weight_{index}"), self.get_buffer(f"bias_{index}")
            x = F.linear(x if index == 0 else F.gelu(x), weight, bias)
        return x * self.get_buffer("scale") + self.get_buffer("centre")

    def needed(self, timestep: Tensor) -> Tensor:
        """What it costs to see an episode out from this step [L] on: [L, C]."""
        idling = self.get_buffer("idle_cost") * (self.horizon - timestep).clamp(min=0)[:, None]
        idling = idling.nan_to_num(nan=torch.inf)  # inf * 0 is unknown, not nothing
        return torch.minimum(self.get_buffer("stop_cost"), idling)

    def prompt(self, prompt: Prompt, remaining: Tensor | None) -> Prompt:
        """The prompt with the limit that earns most; once what remains [L, C] is for idling, with
        the cheapest. If nothing remains to be kept (None), nobody idles, and a loss may do."""
        limit, levels = prompt.past.limit, self.get_buffer("levels").T.contiguous()
        index = torch.searchsorted(levels, limit.T.contiguous()).clamp(max=NUM_LEVELS - 1)  # [C, L]
        best, gain = (self.get_buffer(name).T.gather(1, index).T for name in ("best", "gain"))
        pays = gain > (-LOSS if remaining is None else GAIN)
        more = torch.where(pays, torch.maximum(limit, best) - limit, 0)
        if remaining is not None:
            cannot_stop = self.get_buffer("stop_cost").isinf()
            idles = (remaining <= self.needed(prompt.timestep)) & cannot_stop & (more > 0)
            cheapest = torch.minimum(self.get_buffer("cheapest"), limit)
            more = torch.where(idles, cheapest - limit, more)
        cost_to_go = prompt.past.cost_to_go + more[:, None]
        past = replace(prompt.past, limit=limit + more, cost_to_go=cost_to_go)
        return replace(prompt, past=past, cost_to_go=prompt.cost_to_go + more)


class ReserveRule(Rule):
    options: ReserveOptions

    def __init__(self, options: ReserveOptions, reserve: Reserve) -> None:
        super().__init__(options)
        self._reserve = reserve

    def prompt(self, prompt: Prompt) -> Prompt:
        remaining = prompt.cost_to_go - self.options.holdback * prompt.past.limit
        rewritten = self._reserve.prompt(prompt, remaining if self.options.enforce else None)
        return replace(rewritten, remaining=remaining)

    def deviations(self, for_returns: Tensor, for_actions: Tensor) -> tuple[Tensor, Tensor]:
        return_noise, action_noise = super().deviations(for_returns, for_actions)
        if self.options.action_noise == "two_point":
            # the first is executed as a rule, and nobody acts by the mean of two modes
            action_noise[:, 0] = self.options.temperature * for_actions[:, 0].sign()
        if self.options.enforce:
            wide = slice(num_narrow(self.options.candidates), None)
            return_noise[:, wide].zero_()
            action_noise[:, wide].mul_(self.options.spread)
        return return_noise, action_noise

    def select(self, model: SaFormer, prefix: Prefix, candidates: Candidates) -> Decision:
        if not self.options.enforce:
            return decision_of(candidates, torch.zeros_like(prefix.timestep))
        action = model.normalizer.normalize("action", candidates.action)
        state = prefix.state[:, None].expand(-1, action.shape[1], -1)
        return hold_back(
            candidates,
            verify(model, prefix, candidates),
            self._reserve.step_cost(state, action),
            usual=self._reserve.get_buffer("centre"),
            needed=self._reserve.needed(prefix.timestep),
            can_stop=self._reserve.get_buffer("stop_cost").isfinite(),
            scale=model.normalizer.scale("cost_to_go"),
        )


def num_narrow(candidates: int) -> int:
    return -(-candidates // 2)  # the first half of them, which is spread as usual


def hold_back(
    candidates: Candidates,
    verification: Verification,
    step_cost: Tensor,
    *,
    usual: Tensor,
    needed: Tensor,
    can_stop: Tensor,
    scale: Tensor,
) -> Decision:
    """The mean; where a limit is at stake, the cheapest way on or, where there is one, out. It is
    where the mean is forecast to overrun it and no more remains than is needed [L, C]. Wide ones
    are for stopping, if one can [C]; and where a step costs [L, N, C] more than usual [C], for
    saving what narrow ones cannot save soon. The scale [C] makes constraints comparable."""
    forecast, remaining = verification.cost, verification.remaining
    narrow = num_narrow(step_cost.shape[1])
    at_stake = (forecast[:, 0] > remaining) & (remaining <= needed)  # [L, C]
    price = ((forecast + EMPHASIS * step_cost) / scale * at_stake[:, None]).sum(-1)  # [L, N]
    saving = step_cost[:, 0] - step_cost[:, :narrow].amin(1)  # [L, C] of a step
    is_short = (forecast[:, 0] - remaining > PATIENCE * saving) & (step_cost[:, 0] > usual)
    needs_wide = (at_stake & (is_short | can_stop)).any(-1)
    is_wide = torch.arange(price.shape[1], device=price.device) >= narrow
    price = price.masked_fill(is_wide & ~needs_wide[:, None], torch.inf)
    held = at_stake.any(-1)
    chosen = torch.where(held, price.argmin(1), torch.zeros_like(held, dtype=torch.int64))
    return decision_of(candidates, chosen, verification, held)


def fit_reserve(model: SaFormer, data: RelabelledStore, window: int, updates: int = 0) -> Reserve:
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
    reserve.to(model.get_buffer("action_low").device)
    scale, normalize = reserve.get_buffer("scale"), model.normalizer.normalize
    sampler = TransitionSampler(data, device=scale.device)
    generator = torch.Generator(scale.device).manual_seed(0)
    weights = [value for name, value in reserve.named_buffers() if name[-1].isdigit()]
    optimizer = torch.optim.Adam([weight.requires_grad_() for weight in weights], lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    for _ in range(updates):
        steps = sampler.sample(BATCH_SIZE, generator)
        state, action = normalize("state", steps.state), normalize("action", steps.action)
        loss = F.mse_loss(reserve.step_cost(state, action) / scale, steps.cost / scale)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    for weight in weights:
        weight.requires_grad_(False).grad = None
    if data.cost_discount == 1:
        reserve.get_buffer("idle_cost").copy_(idle_cost(model, reserve, data, window=window))
    model.train(was_training)
    return reserve


@torch.inference_mode()
def idle_cost(model: SaFormer, reserve: Reserve, data: RelabelledStore, *, window: int) -> Tensor:
    """[C] what a step costs on average if the actor reads the cheapest limit and the cheapest
    proposal is taken: over states of the data; infinite if no trajectory is as long as a window."""
    cheapest, device = reserve.get_buffer("cheapest"), reserve.get_buffer("cheapest").device
    generator = torch.Generator(device).manual_seed(0)
    windows = WindowSampler(data, window=window, device=device).sample(IDLE_WINDOWS, generator)
    cost_to_go = windows.cost_to_go + (cheapest - windows.limit)[:, None]  # had it been the limit
    steps = (windows.return_to_go, windows.state, windows.action, windows.timestep, windows.valid)
    columns = (column[:, :-1] for column in (cost_to_go, *steps))
    past = WindowBatch(cheapest.expand_as(windows.limit), *columns)
    last = (column[:, -1] for column in (cost_to_go, windows.state, windows.timestep))
    prefix = model.prefill(Prompt(past, *last))
    options = ReserveOptions(candidates=IDLE_CANDIDATES, enforce=False)
    drawn = options.draw(IDLE_WINDOWS, model.dimensions.action, generator)
    action = propose(model, prefix, ReserveRule(options, reserve), *drawn).action
    state = prefix.state[:, None].expand(-1, IDLE_CANDIDATES, -1)
    cost = reserve.step_cost(state, model.normalizer.normalize("action", action)).amin(1)
    cost = cost[windows.valid[:, -1]].clamp(min=0)  # as no step costs less, whatever was not taught
    return CAUTION * cost.mean(0) if len(cost) else torch.full_like(cheapest, torch.inf)


def stop_cost(data: RelabelledStore) -> Any:
    """[C] what last steps cost in nine of ten episodes that ended early; infinite if few did."""
    store = data.store
    ended = np.asarray(store.episodes["terminated"]) & (store.lengths < store.environment.horizon)
    if ended.mean() < FEWEST_ENDS:
        return np.full(data.episode_cost.shape[1], np.inf)
    first = np.maximum(store.starts, store.starts + store.lengths - STOPPING_STEPS)[ended]
    return np.percentile(np.asarray(data.cost_to_go)[first], STOPPING_PERCENTILE, axis=0)


def best_prompts(data: RelabelledStore) -> dict[str, Any]:
    """Limits over the data's range ("levels"), the limit to read under each that earns most
    ("best"), and what share more ("gain"): [G, C]. Known of one constraint, not discounted."""
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
    """The cost of those that had earned most by then and went on, and how much more that is."""
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
