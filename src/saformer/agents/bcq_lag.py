"""BCQ-Lagrangian: actions like the data's, the best of them by two critics and a price on cost.

Fujimoto, Meger, Precup 2019, "Off-Policy Deep Reinforcement Learning without Exploration" (BCQ),
with a Lagrangian relaxation of the limit; docs/agents/bcq_lag.md says what that leaves open.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from saformer.agents.agent import Phase
from saformer.agents.checked import check_memory
from saformer.agents.markov import MarkovOptions, MarkovPolicy, td_target
from saformer.agents.networks import Multiplier, Perceptron, target_of, watched, watched_each
from saformer.agents.q_learning import QAgent, QConfig, QModel
from saformer.core.batch import Dimensions
from saformer.core.objectives import PerSample
from saformer.data.transitions import TransitionBatch


@dataclass(frozen=True)
class BCQLagConfig(QConfig):
    """What is learnt. The defaults are the paper's Table 6 and, where it is silent, BCQ's own."""

    multiplier: float = 0.1
    """The Lagrangian multiplier to begin with: steps' rewards that a step's cost is worth."""
    multiplier_learning_rate: float = 3e-4
    """How fast it follows broken limits."""
    perturbation: float = 0.05
    """Phi: how far an action may be moved from the data's, in half ranges."""
    candidates: int = 10
    """Actions compared in each state while training."""
    acting_candidates: int = 100
    """Actions compared when acting, unless the policy is asked for another number."""
    pessimism: float = 0.75
    """Weight of the worse of two critics: the lower reward, the higher cost."""
    code_bound: float = 0.5
    """Codes are drawn from a normal distribution and cut here."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates < 1 or self.acting_candidates < 1:
            counts = f"{self.candidates} and {self.acting_candidates}"
            raise ValueError(f"candidates must be at least 1, got {counts}")


@dataclass(frozen=True)
class BCQLagOptions(MarkovOptions):
    """How the policy acts."""

    candidates: int = 100
    """Actions that are sampled and compared in each state; the first has a code of zeros."""

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise ValueError(f"candidates must be at least 1, got {self.candidates}")


class BCQLag(QModel):
    """All networks. States and actions are in model units, values in units of a typical step."""

    def __init__(self, dimensions: Dimensions, config: BCQLagConfig) -> None:
        super().__init__(dimensions, config)
        sizes = (self.timed_size + dimensions.action, config.hidden, dimensions.action)
        self.perturbation = Perceptron(*sizes, dropout=config.dropout)
        self.perturbation_target = target_of(self.perturbation)
        self.add_critics(dimensions, config)
        self.multiplier = Multiplier(dimensions.constraints, config.multiplier)


class BCQLagAgent(QAgent):
    """BCQ under a limit on the cost of an episode."""

    name = "bcq_lag"
    description = "BCQ-Lagrangian: actions like the data's, the best by critics and a price on cost"
    config_type, rules = BCQLagConfig, {"bcq_lag": BCQLagOptions}
    renamed, mean_settings = {"candidates": "acting_candidates"}, {"candidates": 1}
    model_type = BCQLag
    config: BCQLagConfig
    model: BCQLag

    @property
    def phases(self) -> tuple[Phase, ...]:
        model, rate = self.model, self.config.multiplier_learning_rate
        critics = (*model.critic.parameters(), *model.cost_critic.parameters())
        return (
            Phase("vae", tuple(model.vae.parameters()), self.vae_loss),
            Phase("critics", critics, self.critic_loss),
            Phase("perturbation", tuple(model.perturbation.parameters()), self.perturbation_loss),
            Phase("multiplier", (model.multiplier.value,), self.multiplier_loss, rate, 0.0),
        )

    def critic_loss(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """Both critics follow the policy that acts: r + gamma Q_r(s', a') and
        c + gamma_c Q_c(s', a') for the best candidate a'."""
        model, config, batch = self.model, self.config, self.model.units.transitions(batch)
        noise, horizon = self._noise(batch.state, config.candidates), self.dimensions.horizon
        _, value, cost = self._best(batch.next_state, batch.timestep + 1, noise)
        target = td_target(batch.reward, value, batch, config.discount, horizon)
        cost_target = td_target(batch.cost, cost, batch, config.cost_discount, horizon)
        timed = model.timed(batch.state, batch.timestep)
        value = model.critic(batch.state, batch.action)
        cost = model.cost_critic(timed, batch.action)
        return {
            "reward_error": model.critic.error(value, target),
            "cost_error": model.cost_critic.error(cost, cost_target),
            "reward_value": watched(target[:, 0]),
        }

    def perturbation_loss(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """-Q_r(s, a) + lambda Q_c(s, a) of the perturbed action, by the first of each pair."""
        model, batch = self.model, self.model.units.transitions(batch)
        timed = model.timed(batch.state, batch.timestep)
        action = self._like_data(batch.state, self._noise(batch.state, 1)[:, 0])
        action = self._perturb(model.perturbation, timed, action)
        value = model.critic(batch.state, action)[0] / model.critic.scale
        cost = model.cost_critic(timed, action)[0] / model.critic.scale
        price = cost @ model.multiplier()
        return {"reward": PerSample(-value[:, 0]), "cost": PerSample(price)}

    def multiplier_loss(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """-lambda (E[Q_c(s_0, a)] - d): rises while whole episodes cost more than the limit."""
        model, batch = self.model, self.model.units.transitions(batch)
        state, limit = batch.initial_state, model.units.get_buffer("limit")
        noise = self._noise(state, self.config.candidates)
        _, _, cost = self._best(state, torch.zeros_like(batch.timestep), noise)
        loss = model.multiplier.loss((cost - limit) / model.cost_critic.scale)
        figures = {"value": model.multiplier(), "expected_cost": model.units.raw_cost(cost)}
        return {"excess": PerSample(loss)} | watched_each(figures)

    @torch.no_grad()
    def _best(self, state: Tensor, timestep: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """Of the candidates with codes from noise [B, N, 2 A], the one of the highest Q_r - lambda
        Q_c: its action [B, A], reward [B, 1] and costs [B, C] to come, by the target networks."""
        model, pessimism, count = self.model, self.config.pessimism, noise.shape[1]
        state = state[:, None].expand(-1, count, -1)
        timed = model.timed(state, timestep[:, None].expand(-1, count))
        action = self._perturb(model.perturbation_target, timed, self._like_data(state, noise))
        values, costs = model.critic_target(state, action), model.cost_critic_target(timed, action)
        value = torch.lerp(values.amax(0), values.amin(0), pessimism)  # [B, N, 1]
        cost = torch.lerp(costs.amin(0), costs.amax(0), pessimism)  # [B, N, C]
        best = (value[..., 0] - cost @ model.multiplier()).argmax(1)[:, None, None]
        columns = (action, value, cost)
        return tuple(each.gather(1, best.expand(-1, -1, each.shape[-1]))[:, 0] for each in columns)

    def _like_data(self, state: Tensor, noise: Tensor) -> Tensor:
        """Actions [..., A] of the VAE, from normal noise [..., 2 A]."""
        bound = self.config.code_bound
        return self.model.vae.decode(state, noise.clamp(-bound, bound)).detach()

    def _perturb(self, network: nn.Module, timed: Tensor, action: Tensor) -> Tensor:
        """Actions [..., A] moved by at most Phi."""
        move = torch.tanh(network(torch.cat([timed, action], dim=-1)))
        return (action + self.config.perturbation * move).clamp(-1, 1)

    def _noise(self, state: Tensor, candidates: int) -> Tensor:
        shape = (len(state), candidates, self.model.vae.code)
        return torch.randn(*shape, device=state.device, dtype=state.dtype)

    def policy(self, options: Any = None) -> MarkovPolicy:
        options = options or self.options()
        check_memory(options.candidates, self.model, max(self.config.hidden))
        return super().policy(options)

    def choose(
        self, state: Tensor, timestep: Tensor, options: BCQLagOptions, generator: torch.Generator
    ) -> Tensor:
        """The best of sampled actions."""
        shape = (len(state), options.candidates, self.model.vae.code)
        noise = torch.randn(*shape, generator=generator, device=state.device)
        noise[:, 0] = 0
        return self._best(state, timestep, noise)[0]
