"""Verification by what is left rather than by what is usual: a limit is broken only once it cannot be kept any more.

The paper's critic rejects what would overrun if it went on as in the data: often everything, from the first step on.
Here means are executed while more is left than it takes to end the episode; then proposals that cost little and lead to
an end. Where no data ended early, cost is saved as soon as, and while, an overrun is forecast: by the usual proposals
if they can save it soon, else by wide ones too. See docs/method.md.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saformer.core.batch import Dimensions
from saformer.core.model import Reading, SaFormer
from saformer.core.policy import Decision
from saformer.core.proposals import Candidates, Verification, decision_of, num_narrow

EMPHASIS = 3.0
"""So often a step's own cost counts beside the forecast of all that follows, which hardly depends on the action."""
PATIENCE = 200.0
"""So many steps the usual proposals are given to save what is forecast to be missing."""


class Reserve(nn.Module):
    """What keeping a limit to the end needs to know: what a step costs, and what it costs to end an episode."""

    def __init__(self, dimensions: Dimensions, width: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(dimensions.state + dimensions.action, width), nn.GELU()),
            *(nn.Linear(width, width), nn.GELU()),
            nn.Linear(width, dimensions.constraints),
        )
        for name, value in (("centre", 0.0), ("scale", 1.0), ("stop_cost", torch.inf)):
            self.register_buffer(name, torch.full((dimensions.constraints,), value))

    def step_cost(self, state: Tensor, action: Tensor) -> Tensor:
        """What one step costs: [..., S], [..., A] in model units -> [..., C] in raw units."""
        found: Tensor = self.layers(torch.cat([state, action], dim=-1))
        return found * self.get_buffer("scale") + self.get_buffer("centre")

    def select(self, model: SaFormer, reading: Reading, candidates: Candidates, verification: Verification) -> Decision:
        """One of the candidates for each lane."""
        action = model.normalizer.normalize("action", candidates.action)
        state = reading.state[:, None].expand(-1, action.shape[1], -1)
        return hold_back(
            candidates,
            verification,
            self.step_cost(state, action),
            usual=self.get_buffer("centre"),
            stop_cost=self.get_buffer("stop_cost"),
            scale=model.normalizer.scale("cost_to_go"),
        )


def hold_back(
    candidates: Candidates,
    verification: Verification,
    step_cost: Tensor,
    *,
    usual: Tensor,
    stop_cost: Tensor,
    scale: Tensor,
) -> Decision:
    """The mean of both heads; where a limit is at stake, the cheapest way on or, where there is one, out.

    step_cost: [L, N, C] of each candidate; usual: [C] the mean step's in the data; stop_cost: [C] of ending an episode,
    infinite where that is unheard of; scale: [C] what makes constraints comparable. A limit is at stake where the mean
    is forecast to overrun it and no more remains than stopping takes. Wide candidates are for stopping; and where a
    step would cost more than usual, for saving what narrow ones cannot save soon.
    """
    forecast, remaining, narrow = verification.cost, verification.remaining, num_narrow(step_cost.shape[1])
    at_stake = (forecast[:, 0] > remaining) & (remaining <= stop_cost)  # [L, C]
    price = ((forecast + EMPHASIS * step_cost) / scale * at_stake[:, None]).sum(-1)  # [L, N]
    saving = step_cost[:, 0] - step_cost[:, :narrow].amin(1)  # [L, C] of a step
    is_short = (forecast[:, 0] - remaining > PATIENCE * saving) & (step_cost[:, 0] > usual)
    needs_wide = (at_stake & (is_short | stop_cost.isfinite())).any(-1)
    is_wide = torch.arange(price.shape[1], device=price.device) >= narrow
    price = price.masked_fill(is_wide & ~needs_wide[:, None], torch.inf)
    held = at_stake.any(-1)
    chosen = torch.where(held, price.argmin(1), torch.zeros_like(held, dtype=torch.int64))
    return decision_of(candidates, verification, chosen, safe=verification.safe, fell_back=held)
