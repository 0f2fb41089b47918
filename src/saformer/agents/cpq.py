"""CPQ: a cost critic that calls out-of-distribution actions costly, and a reward critic and an
actor that count on safe actions alone.

Xu, Zhan, Zhu 2022, "Constraints Penalized Q-learning for Safe Offline Reinforcement Learning";
docs/agents/cpq.md says what the paper leaves open.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saformer.agents.agent import Phase
from saformer.agents.markov import MarkovOptions, td_target
from saformer.agents.networks import (
    Multiplier,
    SquashedActor,
    kl_from_normal,
    watched,
    watched_each,
)
from saformer.agents.q_learning import QAgent, QConfig, QModel
from saformer.core.batch import Dimensions
from saformer.core.objectives import PerSample
from saformer.data.transitions import TransitionBatch


@dataclass(frozen=True)
class CPQConfig(QConfig):
    """What is learnt. The defaults are Table 6 of the SaFormer paper."""

    penalty: float = 5.0
    """alpha at most: weight of the penalty on out-of-distribution actions, in a step's costs. It
    rises from 0 while they look cheaper than the limit."""
    recovery: bool = False
    """Move unsafe actions of the actor towards less cost; in the original nothing moves them."""
    kl_weight: float = 1.5
    """beta: weight of the code's divergence in the VAE."""
    familiar: float = 0.95
    """Share of the data's own actions that set the threshold of being out of distribution."""
    candidates: int = 10
    """Actions of the actor in each state that are held against that threshold."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.familiar < 1:
            raise ValueError(f"familiar must lie in (0, 1), got {self.familiar}")
        if self.candidates < 1:
            raise ValueError(f"candidates must be at least 1, got {self.candidates}")


class CPQ(QModel):
    """All networks. States and actions are in model units, values in units of a typical step."""

    def __init__(self, dimensions: Dimensions, config: CPQConfig) -> None:
        super().__init__(dimensions, config)
        self.add_critics(dimensions, config, cost_members=1)
        sizes = (self.timed_size, dimensions.action, config.hidden)
        self.actor = SquashedActor(*sizes, dropout=config.dropout)
        self.alpha = Multiplier(dimensions.constraints, 0.0, highest=config.penalty)


class CPQAgent(QAgent):
    """Constraints-penalised Q-learning for a limit on the cost of an episode."""

    name = "cpq"
    description = "Constraints Penalised Q-learning: unfamiliar actions count as costly"
    config_type, rules = CPQConfig, {"cpq": MarkovOptions}
    model_type = CPQ
    config: CPQConfig
    model: CPQ

    @property
    def phases(self) -> tuple[Phase, ...]:
        model = self.model
        cost_critic = (*model.cost_critic.parameters(), *model.alpha.parameters())
        return (
            Phase("vae", tuple(model.vae.parameters()), self.vae_loss),
            Phase("cost_critic", cost_critic, self.cost_critic_loss),
            Phase("critic", tuple(model.critic.parameters()), self.critic_loss),
            Phase("actor", tuple(model.actor.parameters()), self.actor_loss),
        )

    def cost_critic_loss(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """min over Q_c, max over alpha >= 0, nu being actions out of distribution:

        (Q_c(s, a) - c - gamma_c Q_c(s', a'))^2 - alpha (E_nu[Q_c(s, a)] - l)
        """
        model, batch = self.model, self.model.units.transitions(batch)
        discount, horizon = self.config.cost_discount, self.dimensions.horizon
        with torch.no_grad():
            following = model.timed(batch.next_state, batch.timestep + 1)
            next_cost = model.cost_critic_target(following, model.actor.sample(following))[0]
        target = td_target(batch.cost, next_cost, batch, discount, horizon)

        timed = model.timed(batch.state, batch.timestep)
        ood_action, is_ood = self._out_of_distribution(batch.state, timed, batch.action)
        ood_cost = model.cost_critic(timed[:, None].expand(*is_ood.shape, -1), ood_action)[0]
        excess = ood_cost - self._limit(batch.timestep)[:, None]  # [B, N, C]
        excess = torch.where(is_ood[..., None], excess, 0.0).mean(1)
        scale = model.cost_critic.scale
        return {
            "error": model.cost_critic.error(model.cost_critic(timed, batch.action), target),
            "penalty": PerSample(-excess @ model.alpha() / scale**2),
            "alpha": PerSample(model.alpha.loss(-excess / scale)),
            "out_of_distribution": watched(is_ood.float().mean()),
        } | watched_each({"alpha": model.alpha()})

    def critic_loss(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """(Q_r(s, a) - r - gamma 1[Q_c(s', a') <= l] Q_r(s', a'))^2."""
        model, batch = self.model, self.model.units.transitions(batch)
        discount, horizon = self.config.discount, self.dimensions.horizon
        with torch.no_grad():
            following = model.timed(batch.next_state, batch.timestep + 1)
            action = model.actor.sample(following)
            cost = model.cost_critic_target(following, action)[0]
            safe = (cost <= self._limit(batch.timestep + 1)).all(-1, keepdim=True)
            value = model.critic_target(batch.next_state, action).amin(0)
        next_value = torch.where(safe, value, 0.0)
        target = td_target(batch.reward, next_value, batch, discount, horizon)
        return {"error": model.critic.error(model.critic(batch.state, batch.action), target)}

    def actor_loss(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """-1[Q_c(s, a) <= l] Q_r(s, a), the action being the actor's."""
        model, batch = self.model, self.model.units.transitions(batch)
        timed = model.timed(batch.state, batch.timestep)
        action = model.actor.sample(timed)
        excess = model.cost_critic(timed, action)[0] - self._limit(batch.timestep)  # [B, C]
        safe = (excess.detach() <= 0).all(-1)
        value = model.critic(batch.state, action).amin(0)[:, 0] / model.critic.scale
        figures = {"expected_cost": self._expected_cost(batch.initial_state)}
        reward = PerSample(-torch.where(safe, value, 0.0))
        terms = {"reward": reward, "safe": watched(safe.float()), **watched_each(figures)}
        if self.config.recovery:
            terms["overrun"] = PerSample(excess.clamp(min=0).sum(-1) / model.critic.scale)
        return terms

    def _limit(self, timestep: Tensor) -> Tensor:
        """[..., C] l: the limit d of an episode; where costs are not discounted, the share of it
        that the rest of the horizon has, d (T - t) / T."""
        limit, horizon = self.model.units.get_buffer("limit"), self.dimensions.horizon
        if not self.model.finite:
            return limit.expand(*timestep.shape, -1)
        return limit * ((horizon - timestep).clamp(min=0) / horizon)[..., None]

    @torch.no_grad()
    def _out_of_distribution(
        self, state: Tensor, timed: Tensor, action: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Actions [B, N, A] of the actor, and which of them [B, N] have a code that diverges more
        than the codes of the data's own actions [B, A] do."""
        vae, shape = self.model.vae, (-1, self.config.candidates, -1)
        own = kl_from_normal(vae.encode(state, action))
        threshold = own.topk(max(1, round((1 - self.config.familiar) * len(own)))).values[-1]
        others = self.model.actor.sample(timed[:, None].expand(shape))
        return others, kl_from_normal(vae.encode(state[:, None].expand(shape), others)) > threshold

    @torch.no_grad()
    def _expected_cost(self, state: Tensor) -> Tensor:
        """[B, C] what whole episodes cost by Q_c, in raw units."""
        model, timed = self.model, self.model.timed(state, torch.zeros_like(state[:, 0]))
        return model.units.raw_cost(model.cost_critic_target(timed, model.actor.sample(timed))[0])

    def choose(self, state: Tensor, timestep: Tensor, options: Any, generator: Any) -> Tensor:
        """The mean of the actor's distribution."""
        return self.model.actor.mean(self.model.timed(state, timestep))
