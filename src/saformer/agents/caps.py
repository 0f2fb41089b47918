"""CAPS: several heads, each trained for another trade of reward against cost, and at every step the
most rewarding of those that can still keep the budget.

Chemingui et al. 2025, "Constraint-Adaptive Policy Switching for Offline Safe Reinforcement
Learning" (AAAI), with IQL; docs/agents/caps.md says what the paper leaves open.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saformer.agents.agent import Phase
from saformer.agents.iql import IQLAgent, IQLConfig, IQLModel, expectile_loss, nothing
from saformer.agents.markov import MarkovOptions, td_target
from saformer.agents.networks import Mixture, MixtureActor, Perceptron
from saformer.core.batch import Dimensions
from saformer.core.objectives import PerSample
from saformer.data.transitions import TransitionBatch


@dataclass(frozen=True)
class CAPSConfig(IQLConfig):
    """What is learnt."""

    heads: int = 4
    """K: from reward alone to cost alone, the weight of cost in equal steps between them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads < 2:
            raise ValueError(f"heads must be at least 2 (reward and cost), got {self.heads}")


class CAPS(IQLModel):
    """Values of reward and of least cost, and heads over one representation of the state."""

    def __init__(self, dimensions: Dimensions, config: CAPSConfig) -> None:
        super().__init__(dimensions, config)
        width = config.hidden[-1]
        self.representation = Perceptron(
            self.timed_size, config.hidden[:-1], width, dropout=config.dropout
        )
        how = {"components": config.components, "dropout": config.dropout}
        self.heads = nn.ModuleList(
            MixtureActor(width, dimensions.action, (width,), **how)  # type: ignore[arg-type]
            for _ in range(config.heads)
        )

    def actions(self, timed: Tensor) -> list[Mixture]:
        """Of each head, over [..., A]."""
        features = F.relu(self.representation(timed))
        return [head(features) for head in self.heads]


class CAPSAgent(IQLAgent):
    """Constraint-adaptive policy switching."""

    name = "caps"
    description = "CAPS: at each step the best of several heads that can still keep the limit"
    config_type, rules = CAPSConfig, {"caps": MarkovOptions}
    model_type = CAPS
    config: CAPSConfig
    model: CAPS

    @property
    def phases(self) -> tuple[Phase, ...]:
        model = self.model
        rewards = (*model.critic.parameters(), *model.value.parameters())
        actors = (*model.representation.parameters(), *model.heads.parameters())
        return (
            self.cost_phase,
            Phase("reward", rewards, self.reward_loss),
            Phase("heads", actors, self.heads_loss),
        )

    def reward_loss(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """(Q_r(s, a) - r - gamma V_r(s'))^2, and the high expectile of Q_r for V_r."""
        model, batch = self.model, self.model.units.transitions(batch)
        timed, following = self.timed_pair(batch)
        with torch.no_grad():
            next_value = model.value(following, nothing(following))[0]
            best = model.critic_target(timed, batch.action).amin(0)
        discount, horizon = self.config.discount, self.dimensions.horizon
        target = td_target(batch.reward, next_value, batch, discount, horizon)
        value = model.value(timed, nothing(timed))[0]
        high = expectile_loss((best - value) / model.reward_scale, self.config.expectile)
        return {
            "error": model.critic.error(model.critic(timed, batch.action), target),
            "expectile": PerSample(high.sum(-1)),
        }

    def heads_loss(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """-exp(beta A_k(s, a)) log pi_k(a | s), with A_k = (1 - lambda_k) A_r - lambda_k A_c."""
        model, batch = self.model, self.model.units.transitions(batch)
        timed, _ = self.timed_pair(batch)
        with torch.no_grad():
            reward, cost = self._advantages(timed, batch.action)
        last = max(1, self.config.heads - 1)
        shares = [head / last for head in range(self.config.heads)]
        heads = zip(shares, model.actions(timed), strict=True)
        losses = [
            self.imitation(head.log_prob(batch.action), (1 - share) * reward - share * cost)
            for share, head in heads
        ]
        return {"action": PerSample(torch.stack(losses).mean(0))}

    def _advantages(self, timed: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """[B] of reward and, over all constraints, of cost, in a typical step's."""
        model = self.model
        reward = model.critic_target(timed, action).amin(0) - model.value(timed, nothing(timed))[0]
        least = model.cost_critic_target(timed, action).amax(0)
        return reward[..., 0], (least - model.cost_value(timed, nothing(timed))[0]).sum(-1)

    def choose_within(self, state: Tensor, timestep: Tensor, remaining: Tensor) -> Tensor:
        """Of the heads' actions whose least cost fits into what remains, that of the highest Q_r;
        where none does, the one that passes it by the least."""
        model, timed = self.model, self.model.timed(state, timestep)
        action = torch.stack([head.likeliest.clamp(-1, 1) for head in model.actions(timed)])
        each = timed.expand(len(action), *timed.shape)
        overrun = (model.least_cost(each, action) - remaining).amax(-1)  # [K, l]
        value = model.critic_target(each, action).amin(0)[..., 0]
        is_safe = overrun <= 0
        best = value.masked_fill(~is_safe, -torch.inf).argmax(0)
        chosen = torch.where(is_safe.any(0), best, overrun.argmin(0))
        return action[chosen, torch.arange(len(chosen), device=chosen.device)]
