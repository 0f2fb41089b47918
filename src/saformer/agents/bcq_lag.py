"""BCQ-Lagrangian: actions like the data's, the best of them by two critics and a price on cost.

Fujimoto et al. 2019 (BCQ) with a Lagrangian relaxation of the limit; docs/agents/bcq_lag.md says
where we leave it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saformer.agents.agent import ActsOneWay, MovingAverage, Phase
from saformer.agents.costs import CountsCosts, StepCost, cost_critic, reward_critic
from saformer.agents.markov import MarkovPolicy
from saformer.agents.parts import (
    ConditionalVAE,
    Multiplier,
    Perceptron,
    follow,
    of_each,
    pessimistic,
    target_of,
    watched,
)
from saformer.agents.targets import td_target
from saformer.agents.units import Timed, Units, check_limit, fresh
from saformer.core.batch import Dimensions
from saformer.core.objectives import PerSample
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import dimensions_of
from saformer.data.transitions import TransitionBatch, TransitionSampler


@dataclass(frozen=True)
class BCQLagConfig:
    """What is learnt. The defaults are the paper's Table 6 and, where it is silent, BCQ's own."""

    limit: tuple[float, ...] = ()
    """What an episode may cost, for each constraint: this agent is trained for one limit."""
    cost_discount: float = 1.0
    """gamma_c: how much less a cost counts with every step of the episode; 1 counts all alike, up
    to the horizon."""
    discount: float = 0.99
    """gamma, of rewards."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of every network's hidden layers."""
    dropout: float = 0.1
    """Share of activations that critics and perturbation drop while training."""
    multiplier: float = 0.1
    """The Lagrangian multiplier to begin with: what a step's cost is worth in a step's reward, both
    typical ones."""
    multiplier_learning_rate: float = 3e-4
    """How fast it follows broken limits."""
    average_rate: float = 0.05
    """tau: how fast target networks follow."""
    perturbation: float = 0.05
    """Phi: how far an action may be moved from the data's, in half ranges."""
    candidates: int = 10
    """Actions compared in each state while training."""
    acting_candidates: int = 100
    """Actions compared when acting, unless the policy is asked for another number."""
    pessimism: float = 0.75
    """Weight of the worse of two critics: the lower reward, the higher cost."""
    kl_weight: float = 1.0
    """Weight of the code's divergence in the VAE."""
    vae_deviation: float = 0.1
    """Deviation of the VAE's decoder, in half ranges: finer differences between actions do not
    count."""
    code_bound: float = 0.5
    """Codes are drawn from a normal distribution and cut here."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit", tuple(self.limit))  # JSON has no tuples
        object.__setattr__(self, "hidden", tuple(self.hidden))
        for name in ("cost_discount", "discount"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in (0, 1], got {getattr(self, name)}")
        if self.candidates < 1 or self.acting_candidates < 1:
            raise ValueError(
                f"candidates must be at least 1, got {self.candidates} and {self.acting_candidates}"
            )


@dataclass(frozen=True)
class BCQLagOptions:
    """How the policy acts."""

    candidates: int = 100
    """Actions that are sampled and compared in each state. The first is always that of the code's
    middle."""
    seed: int = 0
    """Seed of the samples."""

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise ValueError(f"candidates must be at least 1, got {self.candidates}")


class BCQLag(CountsCosts):
    """All networks of the agent. States and actions are in model units, values in units of a
    typical step."""

    def __init__(self, dimensions: Dimensions, config: BCQLagConfig) -> None:
        super().__init__()
        state, action, hidden, dropout = (
            dimensions.state,
            dimensions.action,
            config.hidden,
            config.dropout,
        )
        self.config = config
        self.units = Units(dimensions)
        self.timed = Timed(dimensions, finite=config.cost_discount == 1)
        self.vae = ConditionalVAE(state, action, hidden, deviation=config.vae_deviation)
        self.perturbation = Perceptron(self.timed.size + action, hidden, action, dropout=dropout)
        self.reward = reward_critic(dimensions, config)
        self.step_cost, self.cost = (
            StepCost(dimensions, hidden),
            cost_critic(dimensions, self.timed, config),
        )
        self.multiplier = Multiplier(dimensions.constraints, config.multiplier)
        self.perturbation_target = target_of(self.perturbation)
        self.reward_target, self.cost_target = target_of(self.reward), target_of(self.cost)

    def priced(self, reward: Tensor, cost: Tensor) -> Tensor:
        """[...] rewards to come [..., 1] less what costs to come [..., C] are worth, in the reward
        critic's scale."""
        return (reward[..., 0] - cost @ self.multiplier()) / self.reward.scale

    def perturbed(self, network: nn.Module, timed: Tensor, action: Tensor) -> Tensor:
        """Actions [..., A] moved by at most Phi, in states with their time beside them."""
        move = torch.tanh(network(torch.cat([timed, action], dim=-1)))
        return (action + self.config.perturbation * move).clamp(-1, 1)

    def like_the_data(self, state: Tensor, noise: Tensor) -> Tensor:
        """Actions [..., A] that the data might have, from normal noise [..., code]."""
        bound = self.config.code_bound
        return self.vae.decode(state, noise.clamp(-bound, bound)).detach()

    @torch.no_grad()
    def best(self, state: Tensor, timestep: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of the candidates that noise [B, N, code] stands for, the one of the highest reward less
        priced cost.

        [B, A] itself, [B, 1] its reward and [B, C] its costs to come, by the target networks.
        """
        state, timestep = (
            state[:, None].expand(-1, noise.shape[1], -1),
            timestep[:, None].expand(-1, noise.shape[1]),
        )
        timed = self.timed(state, timestep)
        action = self.perturbed(self.perturbation_target, timed, self.like_the_data(state, noise))
        reward, cost = (
            self.reward_target(state, action),
            self.all_cost(self.cost_target, state, timestep, action),
        )
        reward = pessimistic(reward.amin(0), reward.amax(0), self.config.pessimism)  # [B, N, 1]
        cost = pessimistic(cost.amax(0), cost.amin(0), self.config.pessimism).clamp(
            min=0
        )  # [B, N, C]
        chosen = self.priced(reward, cost).argmax(1)[:, None, None]
        picked = (
            values.gather(1, chosen.expand(-1, -1, values.shape[-1]))[:, 0]
            for values in (action, reward, cost)
        )
        return tuple(picked)  # type: ignore[return-value]


class BCQLagAgent(ActsOneWay):
    """BCQ under a limit on the cost of an episode."""

    name = "bcq_lag"
    means = (("candidates", 1),)
    num_models = 1

    def __init__(self, dimensions: Dimensions, config: BCQLagConfig) -> None:
        check_limit(config.limit, dimensions.constraints)
        self.dimensions = dimensions
        self.config = config
        self.model = BCQLag(dimensions, config)

    @classmethod
    def create(cls, data: RelabelledStore, config: BCQLagConfig, *, seed: int) -> BCQLagAgent:
        """A fresh agent for this data: initialised by the seed, its units fixed by the data's
        statistics."""
        agent = fresh(lambda: cls(dimensions_of(data), config), data, config, seed=seed)
        for critic in (agent.model.cost, agent.model.cost_target):
            critic.begin_at(agent.model.units.mean_cost_to_go(data))
        return agent

    def sampler(
        self, data: RelabelledStore, device: torch.device | str = "cpu"
    ) -> TransitionSampler:
        """Single steps."""
        return TransitionSampler(data, device=device)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What the data does, what actions bring, which are better, and what cost is worth."""
        model, config = self.model, self.config
        critics = tuple(
            p for part in (model.reward, model.step_cost, model.cost) for p in part.parameters()
        )
        return (
            Phase("vae", tuple(model.vae.parameters()), self.vae_terms),
            Phase("critics", critics, self.critic_terms),
            Phase("perturbation", tuple(model.perturbation.parameters()), self.perturbation_terms),
            Phase(
                "multiplier",
                tuple(model.multiplier.parameters()),
                self.multiplier_terms,
                learning_rate=config.multiplier_learning_rate,
                weight_decay=0.0,
            ),
        )

    @property
    def averages(self) -> tuple[MovingAverage, ...]:
        """Target networks."""
        model, rate = self.model, self.config.average_rate
        return (
            follow(model.perturbation_target, model.perturbation, rate),
            follow(model.reward_target, model.reward, rate),
            follow(model.cost_target, model.cost, rate),
        )

    def vae_terms(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """The actions of the data."""
        batch = self.model.units.transitions(batch)
        return self.model.vae.terms(batch.state, batch.action, self.config.kl_weight)

    def critic_terms(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """Both critics follow the policy that acts: reward and costs of the same action in the next
        state."""
        model, config, batch = self.model, self.config, self.model.units.transitions(batch)
        _, reward, cost = model.best(
            batch.next_state, batch.timestep + 1, self._noise(batch.state, config.candidates)
        )
        horizon = self.dimensions.horizon
        reward_target = td_target(
            batch.reward, reward, batch, discount=config.discount, horizon=horizon
        )
        follows = td_target(
            torch.zeros_like(cost), cost, batch, discount=config.cost_discount, horizon=horizon
        )
        after = model.timed(batch.state, batch.timestep + 1)
        return {
            "reward_error": model.reward.error(
                model.reward(batch.state, batch.action), reward_target
            ),
            "step_error": of_each(
                (model.step_cost(batch.state, batch.action) - batch.cost).square().sum(-1)
            ),
            "cost_error": model.cost.error(model.cost(after, batch.action), follows),
            "reward_value": watched(reward_target[:, 0]),
        }

    def perturbation_terms(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """Move the data's actions to more reward and less priced cost, by the first of each pair of
        critics."""
        model, batch = self.model, self.model.units.transitions(batch)
        timed = model.timed(batch.state, batch.timestep)
        action = model.like_the_data(batch.state, self._noise(batch.state, 1)[:, 0])
        action = model.perturbed(model.perturbation, timed, action)
        reward = model.reward(batch.state, action)[0] / model.reward.scale
        cost = (
            model.all_cost(model.cost, batch.state, batch.timestep, action)[0] / model.reward.scale
        )
        return {"reward": of_each(-reward[:, 0]), "cost": of_each(cost @ model.multiplier())}

    def multiplier_terms(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """Raise the price while whole episodes are expected to cost more than the limit."""
        model, batch = self.model, self.model.units.transitions(batch)
        state, limit = batch.initial_state, model.units.get_buffer("limit")
        noise = self._noise(state, self.config.candidates)
        _, _, cost = model.best(state, torch.zeros_like(batch.timestep), noise)
        raw = model.units.raw_cost(cost)
        loss = model.multiplier.loss((cost - limit) / model.cost.scale)
        figures = {"value": model.multiplier(), "expected_cost": raw}
        return {"excess": of_each(loss)} | {
            f"{name}_{i}": watched(values[..., i])
            for name, values in figures.items()
            for i in range(len(limit))
        }

    def policy(self, options: BCQLagOptions | None = None) -> MarkovPolicy:
        """The best of sampled actions, by what has been learnt so far."""
        options = options or self.default_options
        model = self.model.eval()

        def choose(state: Tensor, timestep: Tensor, generator: torch.Generator) -> Tensor:
            shape = (len(state), options.candidates, model.vae.code)
            noise = torch.randn(*shape, generator=generator, device=state.device)
            noise[:, 0] = 0
            action, _, _ = model.best(model.units.state(state), timestep, noise)
            return model.units.raw_action(action)

        device = model.multiplier.value.device
        return MarkovPolicy(
            choose,
            self.dimensions,
            limit=self.config.limit,
            cost_discount=self.config.cost_discount,
            seed=options.seed,
            device=device,
        )

    @property
    def default_options(self) -> BCQLagOptions:
        """How to act unless told otherwise."""
        return BCQLagOptions(candidates=self.config.acting_candidates)

    def _noise(self, state: Tensor, candidates: int) -> Tensor:
        return torch.randn(
            len(state), candidates, self.model.vae.code, device=state.device, dtype=state.dtype
        )
