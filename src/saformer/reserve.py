"""Verification by what is left rather than by what is usual: a limit is broken only once it cannot
be kept any more.

The paper's critic rejects what would overrun if it went on as in the data: often everything, from
the first step on. Here means are executed while more is left than it takes to see the episode out:
to end it, where data ended early, or to go on as cheaply as possible. Then proposals that cost
little and lead to an end; where there is none, the usual ones if they can save enough soon, else
wide ones too. Until then the actor is told the limit that earns most. See docs/method.md.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from saformer.core.batch import Dimensions
from saformer.core.history import Prompt
from saformer.core.model import Reading, SaFormer
from saformer.core.policy import Decision
from saformer.core.proposals import Candidates, Verification, decision_of, num_narrow

EMPHASIS = 3.0
"""So often a step's own cost counts beside the forecast of all that follows, which hardly depends
on the action."""
PATIENCE = 200.0
"""So many steps the usual proposals are given to save what is forecast to be missing."""
GAIN, LOSS = 0.3, 0.1
"""So much more must be earned for the actor to be told another limit. Where a shield keeps the
limit anyway it may be so much less: noise ended the stored episodes that earned quickly, and the
means have none."""
NUM_LEVELS = 41
"""Limits over the data's range for which it is known what the actor is best told."""


class Reserve(nn.Module):
    """What keeping a limit to the end needs to know: what a step costs, what it costs to see an
    episode out, and which limit earns most until then."""

    def __init__(self, dimensions: Dimensions, width: int = 128) -> None:
        super().__init__()
        self.horizon = dimensions.horizon
        self.layers = nn.Sequential(
            *(nn.Linear(dimensions.state + dimensions.action, width), nn.GELU()),
            *(nn.Linear(width, width), nn.GELU()),
            nn.Linear(width, dimensions.constraints),
        )
        each = (dimensions.constraints,)
        known = {
            "centre": 0.0,
            "scale": 1.0,
            "stop_cost": torch.inf,
            "idle_cost": torch.inf,
            "cheapest": 0.0,
        }
        for name, value in known.items():
            self.register_buffer(name, torch.full(each, value))
        for name in ("levels", "told", "gain"):
            self.register_buffer(name, torch.zeros(NUM_LEVELS, *each))

    def step_cost(self, state: Tensor, action: Tensor) -> Tensor:
        """What one step costs: [..., S], [..., A] in model units -> [..., C] in raw units."""
        found: Tensor = self.layers(torch.cat([state, action], dim=-1))
        return found * self.get_buffer("scale") + self.get_buffer("centre")

    def needed(self, timestep: Tensor) -> Tensor:
        """What it costs to see an episode out from this step [L] on: [L, C]."""
        idling = self.get_buffer("idle_cost") * (self.horizon - timestep).clamp(min=0)[:, None]
        # an infinite cost of no steps is unknown rather than nothing
        return torch.minimum(self.get_buffer("stop_cost"), idling.nan_to_num(nan=torch.inf))

    def tell(self, prompt: Prompt, remaining: Tensor | None) -> Prompt:
        """The prompt with the limit that earns most; once what remains [L, C] is for idling, with
        the cheapest.

        Without what remains there is nothing to be kept: nobody idles, and a small loss will do.
        """
        limit = prompt.past.limit
        place = torch.searchsorted(
            self.get_buffer("levels").T.contiguous(), limit.T.contiguous()
        )  # [C, L]
        told, gain = (
            self.get_buffer(name).T.gather(1, place.clamp(max=NUM_LEVELS - 1)).T
            for name in ("told", "gain")
        )
        pays = gain > (-LOSS if remaining is None else GAIN)
        more = torch.where(pays, torch.maximum(limit, told) - limit, 0)
        if remaining is not None:
            idles = (
                (remaining <= self.needed(prompt.timestep))
                & self.get_buffer("stop_cost").isinf()
                & (more > 0)
            )
            more = torch.where(
                idles, torch.minimum(self.get_buffer("cheapest"), limit) - limit, more
            )
        past = replace(
            prompt.past, limit=limit + more, cost_to_go=prompt.past.cost_to_go + more[:, None]
        )
        return replace(prompt, past=past, cost_to_go=prompt.cost_to_go + more)

    def select(
        self, model: SaFormer, reading: Reading, proposed: Candidates, found: Verification | None
    ) -> Decision:
        """One of the proposed for each lane; the first where nothing was verified."""
        if found is None:
            first = torch.zeros(
                len(proposed.action), dtype=torch.int64, device=proposed.action.device
            )
            safe = torch.ones_like(proposed.return_to_go, dtype=torch.bool)
            return decision_of(proposed, None, first, safe=safe, fell_back=~safe[:, 0])
        action = model.normalizer.normalize("action", proposed.action)
        state = reading.state[:, None].expand(-1, action.shape[1], -1)
        return hold_back(
            proposed,
            found,
            self.step_cost(state, action),
            usual=self.get_buffer("centre"),
            needed=self.needed(reading.timestep),
            can_stop=self.get_buffer("stop_cost").isfinite(),
            scale=model.normalizer.scale("cost_to_go"),
        )


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
    """The mean of both heads; where a limit is at stake, the cheapest way on or, where there is
    one, out.

    step_cost: [L, N, C] of each candidate; usual: [C] the mean step's in the data; needed: [L, C]
    to see the episode out; can_stop: [C] whether it can be ended; scale: [C] what makes constraints
    comparable. A limit is at stake where the mean is forecast to overrun it and no more remains
    than is needed. Wide candidates are for stopping; and where a step would cost more than usual,
    for saving what narrow ones cannot save soon.
    """
    forecast, remaining, narrow = (
        verification.cost,
        verification.remaining,
        num_narrow(step_cost.shape[1]),
    )
    at_stake = (forecast[:, 0] > remaining) & (remaining <= needed)  # [L, C]
    price = ((forecast + EMPHASIS * step_cost) / scale * at_stake[:, None]).sum(-1)  # [L, N]
    saving = step_cost[:, 0] - step_cost[:, :narrow].amin(1)  # [L, C] of a step
    is_short = (forecast[:, 0] - remaining > PATIENCE * saving) & (step_cost[:, 0] > usual)
    needs_wide = (at_stake & (is_short | can_stop)).any(-1)
    is_wide = torch.arange(price.shape[1], device=price.device) >= narrow
    price = price.masked_fill(is_wide & ~needs_wide[:, None], torch.inf)
    held = at_stake.any(-1)
    chosen = torch.where(held, price.argmin(1), torch.zeros_like(held, dtype=torch.int64))
    return decision_of(candidates, verification, chosen, safe=verification.safe, fell_back=held)
