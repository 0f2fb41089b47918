"""BCRL: rewards are learnt for every budget that can still be kept, and an actor is told its own.

Brahmanage, Kumar 2026, "Beyond Hard Constraints: Budget-Conditioned Reachability for Safe Offline
Reinforcement Learning" (ICAPS; arXiv 2603.22292), its variant for deterministic costs with IQL;
docs/agents/bcrl.md says what the paper leaves open.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from saformer.agents.agent import Phase
from saformer.agents.iql import IQLAgent, IQLConfig, IQLModel, expectile_loss, nothing
from saformer.agents.markov import MarkovOptions, td_target
from saformer.agents.networks import MixtureActor
from saformer.core.batch import Dimensions
from saformer.core.objectives import PerSample
from saformer.data.relabel import RelabelledStore
from saformer.data.transitions import TransitionBatch


@dataclass(frozen=True)
class BCRLConfig(IQLConfig):
    """What is learnt."""


class BCRL(IQLModel):
    """Values of the least cost; values of reward and an actor that see a budget, too."""

    def __init__(self, dimensions: Dimensions, config: BCRLConfig) -> None:
        super().__init__(dimensions, config, more_inputs=dimensions.constraints)
        sizes = (dimensions.action, config.hidden)
        how = {"components": config.components, "dropout": config.dropout}
        inputs = self.timed_size + dimensions.constraints
        self.actor = MixtureActor(inputs, *sizes, **how)  # type: ignore[arg-type]
        self.fallback = MixtureActor(self.timed_size, *sizes, **how)  # type: ignore[arg-type]
        self.register_buffer("dearest", torch.ones(dimensions.constraints))

    def within(self, timed: Tensor, timestep: Tensor, budget: Tensor) -> Tensor:
        """States with a budget [..., C] from now on, as a share of the most that is worth telling
        apart; time stays the last column."""
        most = self.most(timestep)
        return torch.cat([(budget / most.clamp(min=1e-6)).clamp(0, 1), timed], dim=-1)

    def most(self, timestep: Tensor) -> Tensor:
        """[..., C] what the dearest recorded episode's pace costs from this step on."""
        dearest = self.get_buffer("dearest").expand(*timestep.shape, -1)
        if not self.finite:
            return dearest
        return dearest * (1 - timestep / self.horizon).clamp(min=0)[..., None].to(dearest.dtype)


class BCRLAgent(IQLAgent):
    """Budget-conditioned reachability."""

    name = "bcrl"
    description = "BCRL: rewards for every budget that can still be kept, an actor told its own"
    config_type, rules = BCRLConfig, {"bcrl": MarkovOptions}
    model_type = BCRL
    config: BCRLConfig
    model: BCRL

    def fix_units(self, data: RelabelledStore) -> None:
        super().fix_units(data)
        dearest = torch.from_numpy(np.asarray(data.episode_cost).max(0)).float()
        cost = self.model.units.get_buffer("cost")
        self.model.get_buffer("dearest").copy_((dearest / cost).clamp(min=1e-6))

    @property
    def phases(self) -> tuple[Phase, ...]:
        model = self.model
        rewards = (*model.critic.parameters(), *model.value.parameters())
        actors = (*model.actor.parameters(), *model.fallback.parameters())
        return (
            self.cost_phase,
            Phase("reward", rewards, self.reward_loss),
            Phase("actor", actors, self.actor_loss),
        )

    def reward_loss(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """(Q_r(s, a, c + gamma_c d') - r - gamma V_r(s', d'))^2 for budgets d' that can be kept
        from s' on, and the high expectile of Q_r(s, a, d) for V_r(s, d), for d that a keeps."""
        model, batch = self.model, self.model.units.transitions(batch)
        timed, following = self.timed_pair(batch)
        then = batch.timestep + 1
        with torch.no_grad():
            least_then = model.cost_value(following, nothing(following))[0].clamp(min=0)
            budget_then = self._drawn(least_then, then)
            seen_then = model.within(following, then, budget_then)
            next_value = model.value(seen_then, nothing(seen_then))[0]
            budget = self._drawn(model.least_cost(timed, batch.action), batch.timestep)
            seen = model.within(timed, batch.timestep, budget)
            best = model.critic_target(seen, batch.action).amin(0)
        before = batch.cost + self.config.cost_discount * budget_then
        asked = model.within(timed, batch.timestep, before)
        discount, horizon = self.config.discount, self.dimensions.horizon
        target = td_target(batch.reward, next_value, batch, discount, horizon)
        value = model.value(seen, nothing(seen))[0]
        high = expectile_loss((best - value) / model.reward_scale, self.config.expectile)
        return {
            "error": model.critic.error(model.critic(asked, batch.action), target),
            "expectile": PerSample(high.sum(-1)),
        }

    def actor_loss(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """-exp(beta A(s, a, d)) log pi(a | s, d) for budgets d that a keeps; a fallback imitates
        what costs least."""
        model, batch = self.model, self.model.units.transitions(batch)
        timed, _ = self.timed_pair(batch)
        with torch.no_grad():
            least = model.least_cost(timed, batch.action)
            seen = model.within(timed, batch.timestep, self._drawn(least, batch.timestep))
            value = model.value(seen, nothing(seen))[0]
            advantage = (model.critic_target(seen, batch.action).amin(0) - value)[..., 0]
            saved = (model.cost_value(timed, nothing(timed))[0] - least).sum(-1)
        told, careful = model.actor(seen), model.fallback(timed)
        return {
            "action": PerSample(self.imitation(told.log_prob(batch.action), advantage)),
            "fallback": PerSample(self.imitation(careful.log_prob(batch.action), saved)),
        }

    def _drawn(self, least: Tensor, timestep: Tensor) -> Tensor:
        """Budgets [B, C], each as likely, from the least that is needed to the most."""
        most = self.model.most(timestep)
        least = torch.minimum(least, most)
        return least + torch.rand_like(least) * (most - least)

    def choose_within(self, state: Tensor, timestep: Tensor, remaining: Tensor) -> Tensor:
        """The actor's likeliest action for what remains; the fallback's where even the least cost
        no longer fits into it after that."""
        model, timed = self.model, self.model.timed(state, timestep)
        told = model.actor(model.within(timed, timestep, remaining)).likeliest.clamp(-1, 1)
        careful = model.fallback(timed).likeliest.clamp(-1, 1)
        is_kept = (model.least_cost(timed, told) <= remaining).all(-1, keepdim=True)
        return torch.where(is_kept, told, careful)
