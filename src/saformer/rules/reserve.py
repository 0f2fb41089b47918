"""The rule of reserve: execute means while more remains than it takes to see the episode out (end
it, where data ended early, or go on as cheaply as possible), and read the limit that earns most.
Then take proposals that cost little and lead to an end; where there is none, the usual ones if they
can save enough soon, else wide ones too. See docs/method.md."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saformer.core.batch import Dimensions
from saformer.core.history import Prompt
from saformer.core.model import Prefix, SaFormer
from saformer.core.policy import Candidates, Decision, Verification
from saformer.core.rules import ProposalOptions, Rule, decision_of, verify

EMPHASIS = 3.0  # times a step's cost counts beside the forecast, which hardly depends on the action
PATIENCE = 200.0  # steps that usual proposals have to save what is forecast to be missing
GAIN, LOSS = 0.3, 0.1
"""Share that must be earned more for the actor to read another limit. Where a shield keeps the
limit it may be LOSS less: noise ended the stored episodes that earned quickly; means have none."""
NUM_LEVELS = 41  # limits over the data's range for which the best prompt is known


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
        # inf * 0 is unknown, not nothing
        return torch.minimum(self.get_buffer("stop_cost"), idling.nan_to_num(nan=torch.inf))

    def prompt(self, prompt: Prompt, remaining: Tensor | None) -> Prompt:
        """The prompt with the limit that earns most; once what remains [L, C] is for idling, with
        the cheapest. If nothing remains to be kept (None), nobody idles, and a loss may do."""
        limit, levels = prompt.past.limit, self.get_buffer("levels").T.contiguous()
        index = torch.searchsorted(levels, limit.T.contiguous()).clamp(max=NUM_LEVELS - 1)  # [C, L]
        best, gain = (self.get_buffer(name).T.gather(1, index).T for name in ("best", "gain"))
        pays = gain > (-LOSS if remaining is None else GAIN)
        more = torch.where(pays, torch.maximum(limit, best) - limit, 0)
        if remaining is not None:
            is_late = remaining <= self.needed(prompt.timestep)
            idles = is_late & self.get_buffer("stop_cost").isinf() & (more > 0)
            cheapest = torch.minimum(self.get_buffer("cheapest"), limit)
            more = torch.where(idles, cheapest - limit, more)
        cost_to_go = prompt.past.cost_to_go + more[:, None]
        past = replace(prompt.past, limit=limit + more, cost_to_go=cost_to_go)
        return replace(prompt, past=past, cost_to_go=prompt.cost_to_go + more)


class ReserveRule(Rule):
    """Means, until a limit is at stake."""

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
    """How many candidates are spread as usual."""
    return -(-candidates // 2)


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
