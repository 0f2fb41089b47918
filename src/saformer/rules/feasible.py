"""The default rule: an action is admissible if the limit can still be kept after it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saformer.core.history import Prompt
from saformer.core.model import Prefix, SaFormer
from saformer.core.policy import Candidates, Decision, Verification
from saformer.core.rules import LIKELY_SHARE, ProposalOptions, Rule, decision_of
from saformer.rules.outlook import Outlook

MOST = 1.0
"""Deviations above what it expects that the actor is asked for, at most: what it has seen."""


@dataclass(frozen=True)
class FeasibleOptions(ProposalOptions):
    """Reject candidates after which the limit can no longer be kept; of the others, the best."""

    risk: float = 0.95
    """How sure that must be: the quantile, over members that saw different trajectories, of the
    least cost still to come; and of what another action earns more than the expected one."""
    holdback: float = 0.03
    """Share of a limit kept back where nothing could undo an overrun: no episode may be ended, and
    doing nothing is no way that the data shows."""
    may_end: bool = False
    """Whether an episode may be ended to keep a limit: a machine that may be switched off."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.risk < 1:
            raise ValueError(f"risk is a quantile between 0 and 1, got {self.risk}")
        if not 0 <= self.holdback < 1:
            raise ValueError(f"holdback is a share from 0 to below 1, got {self.holdback}")


class FeasibleRule(Rule):
    """The actor is asked, as an episode begins, for the return that the data shows to be possible
    within the limit, and then for what it expects. That course is taken while it is admissible.
    Where doing nothing keeps every limit, so that nothing is lost by a mistake, other admissible
    candidates compete with it by what they are worth. If none is admissible, the least overrun
    among those that the actor finds likely and doing nothing, where that is a way."""

    options: FeasibleOptions

    def __init__(self, options: FeasibleOptions, outlook: Outlook, cost_discount: float) -> None:
        super().__init__(options)
        self._outlook, self._discount, self._setting = outlook, cost_discount, int(options.may_end)
        normal = torch.distributions.Normal(0.0, 1.0)
        self._deviations = float(normal.icdf(torch.tensor(options.risk)))

    def prompt(self, prompt: Prompt) -> Prompt:
        limit = prompt.past.limit
        held_back = torch.where(self._can_stop, 0.0, self.options.holdback * limit)
        cost_to_go = prompt.past.cost_to_go - held_back[:, None]
        past = replace(prompt.past, limit=limit - held_back, cost_to_go=cost_to_go)
        return replace(prompt, past=past, cost_to_go=prompt.cost_to_go - held_back)

    def deviations(
        self, prefix: Prefix, for_returns: Tensor, for_actions: Tensor
    ) -> tuple[Tensor, Tensor]:
        return_noise, action_noise = super().deviations(prefix, for_returns, for_actions)
        return_noise[:, 0] = torch.where(prefix.timestep == 0, self._ambition(prefix), 0.0)
        return return_noise, action_noise

    def select(self, model: SaFormer, prefix: Prefix, candidates: Candidates) -> Decision:
        candidates = self._with_idling(candidates)
        cost, gain = self._judge(model, prefix, candidates)
        overrun = (cost - prefix.remaining[:, None]) / model.normalizer.scale("cost_to_go")
        verification = Verification(cost, prefix.remaining, overrun.amax(-1))
        gain = torch.where(self._outlook.get_buffer("can_idle"), gain, -torch.inf)
        gain[:, 0] = 0.0  # gains are counted from there
        gain = gain.masked_fill(~verification.safe, -torch.inf)
        gain[:, -1] = -torch.inf  # nobody does nothing for its return
        best_gain, best = gain.max(1)
        score, cheapest = self._fallback(candidates, verification).min(1)
        fell_back = best_gain.isneginf()
        chosen = torch.where(fell_back, cheapest, best)
        return decision_of(candidates, chosen, verification, fell_back, score)

    @property
    def _can_stop(self) -> Tensor:
        """Whether doing nothing keeps a limit: the data shows it, or the episode may end by it."""
        return self._outlook.get_buffer("can_idle") | self.options.may_end

    def _ambition(self, prefix: Prefix) -> Tensor:
        """[L] deviations from the expected return up to the frontier's, as far as is likely."""
        expected, frontier = prefix.return_to_go, self._outlook.frontier(prefix.remaining)
        above = (frontier - expected.mean[:, 0]) * torch.exp(-expected.log_deviation[:, 0])
        return above.clamp(0.0, MOST)

    def _with_idling(self, candidates: Candidates) -> Candidates:
        """And doing nothing, as the last: as likely and as rewarding as the expected action."""
        idle = self._outlook.get_buffer("idle").expand(len(candidates.action), 1, -1)
        action = torch.cat([candidates.action, idle], 1)
        returns, density = candidates.return_to_go, candidates.log_density
        first = (torch.cat([column, column[:, :1]], 1) for column in (returns, density))
        return Candidates(next(first), action, next(first))

    def _judge(
        self, model: SaFormer, prefix: Prefix, candidates: Candidates
    ) -> tuple[Tensor, Tensor]:
        """[L, N, C] what each candidate costs at least, to the end, and [L, N] what it gains over
        the expected one, both as far as members agree."""
        outlook, action = self._outlook, model.normalizer.normalize("action", candidates.action)
        state = prefix.state[:, None].expand(-1, action.shape[1], -1)
        timestep = prefix.timestep[:, None].expand(action.shape[:2])
        cost, reward, least = outlook.step(state, action, timestep)
        scale, left = outlook.get_buffer("cost_scale"), outlook.weight_left(timestep + 1)[..., None]
        step = self._at_risk(cost * scale + outlook.get_buffer("cost_centre"))  # [L, N, C]
        unforeseen = outlook.get_buffer("unforeseen")
        to_come = self._at_risk(least[..., self._setting, :] * scale * left)
        idling = step[:, -1:] * left  # doing nothing, to the end
        to_come = torch.where(self._can_stop, torch.minimum(to_come, idling), to_come)
        spent = self._discount ** timestep[..., None].to(step.dtype) * step
        budget = outlook.budget_rate(prefix.remaining[:, None] - spent, timestep + 1)
        then = outlook.then(state, action, timestep, budget) * outlook.steps_left(timestep + 1)
        worth = reward + then  # [M, L, N]
        gain = worth - worth[:, :, :1]
        return spent + unforeseen + to_come, gain.mean(0) - self._deviations * gain.std(0)

    def _fallback(self, candidates: Candidates, verification: Verification) -> Tensor:
        """[L, N] the overrun of those that may be taken where none is admissible: of likely ones
        and doing nothing; where that is no way, of the expected one alone, as nothing brakes."""
        density = candidates.log_density
        num_likely = max(1, round(LIKELY_SHARE * density.shape[1]))
        excluded = density < density.topk(num_likely, dim=1).values[:, -1:]
        excluded = torch.where(self._can_stop, excluded, True)
        excluded[:, 0] = False
        return verification.overrun.masked_fill(excluded, torch.inf)

    def _at_risk(self, values: Tensor) -> Tensor:
        """The quantile over members [M, ...]; no cost is below nothing."""
        return (values.mean(0) + self._deviations * values.std(0)).clamp(min=0)
