"""The default rule: an action is admissible if the limit can still be kept after it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saformer.core.history import Prompt
from saformer.core.model import Prefix, SaFormer
from saformer.core.policy import Candidates, Decision, Verification
from saformer.core.rules import ProposalOptions, Rule, decision_of, likely
from saformer.rules.outlook import TINY, Outlook


@dataclass(frozen=True)
class FeasibleOptions(ProposalOptions):
    """Reject candidates after which the limit can no longer be kept; of the others, the best."""

    risk: float = 0.95
    """How sure it must be: the quantile, over chance and over members that saw different
    trajectories, of the least cost still to come and of what another action gains or saves; and of
    the returns that the actor expects, the highest that it is asked for."""
    holdback: float = 0.05
    """Share of a limit that is kept back where nothing could undo an overrun: no episode may be
    ended, and doing nothing is no way that the data shows. The actor is told the whole limit."""
    may_end: bool = False
    """Whether an episode may be ended to keep a limit: a machine that may be switched off."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.risk < 1:
            raise ValueError(f"risk is a quantile between 0 and 1, got {self.risk}")
        if not 0 <= self.holdback < 1:
            raise ValueError(f"holdback is a share from 0 to below 1, got {self.holdback}")


@dataclass(frozen=True)
class Prospects:
    """What follows each candidate, as each member sees it."""

    cost: Tensor  # [M, L, N, C] of the step, as it counts at the start of the episode
    to_come: Tensor  # [M, L, N, C] the least that must be spent after it
    variance: Tensor  # [M, L, N, C] of both, by chance
    worth: Tensor  # [M, L, N] the best that can be earned, the step included


class FeasibleRule(Rule):
    """The actor is asked, as an episode begins, for the return that the data shows to be possible
    within the limit, as far as that is likely, and then for what it expects. That course is taken
    while it is admissible. Where doing nothing keeps every limit, so that nothing is lost by a
    mistake, other admissible candidates compete with it by what they are worth. If none is
    admissible, the least overrun of those that surely save something against the expected one; what
    the cheapest recorded courses do may be one of them, and doing nothing is where it is a way. In
    unusual states only what is likely may save: what is unlikely, taken again and again, leads out
    of the data."""

    options: FeasibleOptions
    asks_critic = False

    def __init__(self, options: FeasibleOptions, outlook: Outlook, cost_discount: float) -> None:
        super().__init__(options)
        self._outlook, self._discount, self._setting = outlook, cost_discount, int(options.may_end)
        normal = torch.distributions.Normal(0.0, 1.0)
        self._deviations = float(normal.icdf(torch.tensor(options.risk)))

    def prompt(self, prompt: Prompt) -> Prompt:
        return replace(prompt, remaining=prompt.cost_to_go - self._holdback * prompt.past.limit)

    def deviations(
        self, prefix: Prefix, for_returns: Tensor, for_actions: Tensor
    ) -> tuple[Tensor, Tensor]:
        return_noise, action_noise = super().deviations(prefix, for_returns, for_actions)
        return_noise[:, 0] = torch.where(prefix.timestep == 0, self._ambition(prefix), 0.0)
        return return_noise, action_noise

    def select(self, model: SaFormer, prefix: Prefix, candidates: Candidates) -> Decision:
        candidates = self._with_thrift(model, prefix, candidates)
        prospects = self._prospects(model, prefix, candidates)
        remaining, scale = prefix.remaining, model.normalizer.scale("cost_to_go")
        cost = self._spent_at_most(prospects)
        overrun = ((cost - remaining[:, None]) / scale).amax(-1)
        verification = Verification(cost, remaining, overrun)
        best_gain, best = self._gain(prospects).masked_fill(~verification.safe, -torch.inf).max(1)
        totals = (prospects.cost + prospects.to_come - remaining[:, None]) / scale
        may_save = self._outlook.is_usual(prefix.state)[:, None] | likely(candidates.log_density)
        saves = self._saves(totals.amax(-1), may_save)
        score, cheapest = overrun.masked_fill(~saves, torch.inf).min(1)
        fell_back = best_gain.isneginf()
        chosen = torch.where(fell_back, cheapest, best)
        return decision_of(candidates, chosen, verification, fell_back, score)

    @property
    def _can_stop(self) -> Tensor:
        """Whether doing nothing keeps a limit: the data shows it, or the episode may end by it."""
        return self._outlook.get_buffer("can_idle") | self.options.may_end

    @property
    def _holdback(self) -> Tensor:
        return torch.where(self._can_stop, 0.0, self.options.holdback)

    def _ambition(self, prefix: Prefix) -> Tensor:
        """[L] deviations from the expected return to the frontier's within the whole limit, as far
        as is likely; as an episode begins. An actor that expects more than anybody earned within
        the limit has a course in mind that does not keep it. Where the limit is below what must be
        spent at least, there is no room for more than what is expected, but for less."""
        expected, bound = prefix.return_to_go, max(0.0, self._deviations)
        frontier = self._outlook.frontier(prefix.remaining / (1 - self._holdback))
        above = (frontier - expected.mean[:, 0]) * torch.exp(-expected.log_deviation[:, 0])
        has_room = self._can_stop | (self._least(prefix).mean(0) <= prefix.remaining).all(-1)
        return torch.minimum(above.clamp(-bound, bound), bound * has_room)

    def _least(self, prefix: Prefix) -> Tensor:
        """[M, L, C] that must be spent from now on."""
        outlook, at = self._outlook, (prefix.state, prefix.timestep)
        rate = outlook.least(*at)[..., self._setting, :] * outlook.get_buffer("cost_scale")
        return rate * outlook.weight_left(prefix.timestep)[:, None]

    def _with_thrift(self, model: SaFormer, prefix: Prefix, candidates: Candidates) -> Candidates:
        """And, as the last, doing nothing where it is a way, else what the cheapest recorded
        courses do: as likely and as rewarding as the expected action."""
        brake = self._outlook.brake(prefix.state, prefix.timestep).mean(0)
        brake = model.normalizer.restore("action", brake)
        brake = brake.clamp(model.get_buffer("action_low"), model.get_buffer("action_high"))
        thrift = torch.where(self._can_stop, self._outlook.get_buffer("idle"), brake)[:, None]
        returns, density = candidates.return_to_go, candidates.log_density
        first = (torch.cat([column, column[:, :1]], 1) for column in (returns, density))
        return Candidates(next(first), torch.cat([candidates.action, thrift], 1), next(first))

    def _prospects(self, model: SaFormer, prefix: Prefix, candidates: Candidates) -> Prospects:
        outlook, action = self._outlook, model.normalizer.normalize("action", candidates.action)
        state = prefix.state[:, None].expand(-1, action.shape[1], -1)
        timestep = prefix.timestep[:, None].expand(action.shape[:2])
        cost, reward, change = outlook.step(state, action, timestep)
        scale, left = outlook.get_buffer("cost_scale"), outlook.weight_left(timestep + 1)[..., None]
        step = cost * scale + outlook.get_buffer("cost_centre")
        whole = outlook.weight_left(prefix.timestep)[:, None]
        to_come = self._least(prefix)[:, :, None] + change[..., self._setting, :] * scale
        to_come = to_come.clamp(min=0) * (left > 0)
        idling = outlook.get_buffer("idle_cost") * left  # doing nothing, to the end
        if self.options.may_end:
            to_come = torch.minimum(to_come, idling)
        else:  # where it can be done anywhere, no estimate is needed
            to_come = torch.where(outlook.get_buffer("can_idle"), idling, to_come)
        spent = self._discount ** timestep[..., None].to(step.dtype) * step
        chance = (outlook.chance(prefix.state, prefix.timestep) * whole)[:, :, None]
        variance = (chance + outlook.surprise(state, action, timestep)).clamp(min=0) * scale**2
        most = torch.maximum(spent + to_come, prefix.remaining[:, None])
        most = outlook.get_buffer("critic_error") * most
        variance = torch.minimum(variance, most.clamp(min=0))
        budget = prefix.remaining[:, None] - self._quantile(spent)
        rate = outlook.budget_rate(budget, timestep + 1)
        then = outlook.then(state, action, timestep, rate) * outlook.steps_left(timestep + 1)
        return Prospects(spent, to_come, variance, reward + then)

    def _gain(self, prospects: Prospects) -> Tensor:
        """[L, N] what a candidate is surely worth above the expected one: that one gains nothing;
        others count where nothing is lost by a mistake; nobody does nothing for its return."""
        gain = prospects.worth - prospects.worth[:, :, :1]
        gain = gain.mean(0) - self._deviations * gain.std(0)
        gain = torch.where(self._outlook.get_buffer("can_idle"), gain, -torch.inf)
        gain[:, 0], gain[:, -1] = 0.0, -torch.inf
        return gain

    def _saves(self, overrun: Tensor, may_save: Tensor) -> Tensor:
        """[L, N] whether a candidate surely overruns by less than the expected one, by members'
        overruns [M, L, N], and is not ruled out; or is that one, or doing nothing where that is a
        way."""
        less = overrun - overrun[:, :, :1]
        saves = (less.mean(0) + self._deviations * less.std(0) < 0) & may_save
        saves[:, 0], saves[:, -1] = True, saves[:, -1] | self._can_stop
        return saves

    def _spent_at_most(self, prospects: Prospects) -> Tensor:
        """[L, N, C] the quantile of what is spent from a step on. Where nothing can be done from
        then on, chance is in the step alone."""
        cost, to_come = prospects.cost, prospects.to_come
        stopping = self._quantile(cost) + self._quantile(to_come)
        stopping = stopping + self._outlook.get_buffer("unforeseen")
        variance = cost.var(0) + to_come.var(0) + prospects.variance.mean(0)
        going_on = (cost + to_come).mean(0) + self._deviations * variance.sqrt()
        return torch.where(self._can_stop, stopping, going_on.clamp(min=TINY))

    def _quantile(self, values: Tensor) -> Tensor:
        """Over members [M, ...]; no cost is below nothing."""
        return (values.mean(0) + self._deviations * values.std(0)).clamp(min=0)
