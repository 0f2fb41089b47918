"""COptiDICE: how much more often than the data a good policy within the limit would take each step.

Lee et al. 2022, "COptiDICE: Offline Constrained Reinforcement Learning via Stationary Distribution
Correction Estimation"; docs/agents/coptidice.md says what it leaves open.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from saformer.agents.agent import Phase
from saformer.agents.markov import (
    LimitedAgent,
    LimitedConfig,
    MarkovModel,
    MarkovOptions,
    td_target,
)
from saformer.agents.networks import MixtureActor, Multiplier, Perceptron, watched, watched_each
from saformer.core.batch import Dimensions
from saformer.core.objectives import PerSample
from saformer.data.relabel import RelabelledStore
from saformer.data.transitions import TransitionBatch


@dataclass(frozen=True)
class COptiDICEConfig(LimitedConfig):
    """What is learnt. Sizes and rates are those that Table 6 gives BCQ-L."""

    caution: float = 0.1
    """alpha: weight of the divergence from the data, in units of a step's reward."""
    cost_bound: float = 0.01
    """epsilon: how far the data may be reweighed to find the highest credible cost; 0: not."""
    multiplier: float = 0.1
    """The Lagrangian multiplier to begin with, in units of reward per unit of cost."""
    multiplier_learning_rate: float = 3e-4
    """How fast it follows broken limits."""
    components: int = 1
    """Gaussians in the actor's mixture."""
    sample: bool = True
    """Act at random: what is constrained is a distribution. Else by the actor's likeliest mean."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.caution > 0 or self.cost_bound < 0 or self.components < 1:
            rule = "caution must be above 0, cost_bound at least 0, components at least 1"
            raise ValueError(f"{rule}; got {self.caution}, {self.cost_bound}, {self.components}")


@dataclass(frozen=True)
class COptiDICEOptions(MarkovOptions):
    """How the policy acts."""

    sample: bool = True
    """At random, rather than by the mean of the actor's weightiest Gaussian."""


def correction(advantage: Tensor) -> Tensor:
    """w: how often a step should be taken, relative to the data. The w >= 0 that maximises
    w * advantage - f(w).

    f is the soft chi-square divergence of OptiDICE: x log x - x + 1 below 1, (x - 1)^2 / 2 above.
    """
    return torch.where(advantage < 0, advantage.clamp(max=0).exp(), advantage + 1)


def conjugate(advantage: Tensor) -> Tensor:
    """f*: the maximum itself. Its slope is `correction`."""
    below = advantage.clamp(max=0).exp() - 1
    return torch.where(advantage < 0, below, 0.5 * advantage.clamp(min=0).square() + advantage)


class COptiDICE(MarkovModel):
    """All networks. States and actions are in model units, values in units of a typical step."""

    def __init__(self, dimensions: Dimensions, config: COptiDICEConfig) -> None:
        super().__init__(dimensions, config)
        constraints, hidden = dimensions.constraints, config.hidden
        self.value = Perceptron(self.timed_size, hidden, 1)
        self.chi = Perceptron(self.timed_size, hidden, constraints)
        self.log_tau = nn.Parameter(torch.zeros(constraints))
        self.multiplier = Multiplier(constraints, config.multiplier)
        sizes = (self.timed_size, dimensions.action, hidden)
        self.actor = MixtureActor(*sizes, components=config.components, dropout=config.dropout)
        self.register_buffer("episode_mass", torch.ones(()))


class COptiDICEAgent(LimitedAgent):
    """Stationary distribution correction under a limit on the cost of an episode."""

    name = "coptidice"
    description = "COptiDICE: imitates the data, each step as often as a cost constraint wants it"
    config_type, rules = COptiDICEConfig, {"coptidice": COptiDICEOptions}
    mean_settings, model_type = {"sample": False}, COptiDICE
    config: COptiDICEConfig
    model: COptiDICE

    def fix_units(self, data: RelabelledStore) -> None:
        super().fix_units(data)
        mass = episode_mass(data, self.config.cost_discount)
        self.model.get_buffer("episode_mass").fill_(mass)

    @property
    def phases(self) -> tuple[Phase, ...]:
        model, rate = self.model, self.config.multiplier_learning_rate
        return (
            Phase("value", tuple(model.value.parameters()), self.value_loss),
            Phase("bound", (*model.chi.parameters(), model.log_tau), self.bound_loss),
            Phase("multiplier", (model.multiplier.value,), self.multiplier_loss, rate, 0.0),
            Phase("actor", tuple(model.actor.parameters()), self.actor_loss),
        )

    def value_loss(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """nu minimises E[nu(s_0)] / M + alpha E[f*(e / alpha)]."""
        batch = self.model.units.transitions(batch)
        advantage, initial_value = self._advantage(batch, initial=True)
        return {
            "initial": PerSample(initial_value),
            "conjugate": PerSample(self.config.caution * conjugate(advantage)),
            "correction": watched(correction(advantage)),
        }

    def bound_loss(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """chi and tau minimise tau log E[exp(x / tau)] + tau epsilon: the highest cost that a
        slightly reweighed sample of the data would show."""
        model, batch = self.model, self.model.units.transitions(batch)
        tau = model.log_tau.exp()
        cost = self._sample_cost(batch, self._correction(batch)) / tau
        highest = tau * (cost.logsumexp(0) - math.log(len(cost)) + self.config.cost_bound)  # [C]
        return {"highest": PerSample(highest.sum()[None])}

    def multiplier_loss(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """-lambda (M E[w c] - d): rises while whole episodes would cost more than the limit."""
        model, batch = self.model, self.model.units.transitions(batch)
        with torch.no_grad():
            weight = self._correction(batch)
            cost = weight[:, None] * batch.cost  # [B, C]
            if self.config.cost_bound > 0:
                sample_cost = self._sample_cost(batch, weight) / model.log_tau.exp()
                cost = cost * sample_cost.softmax(0) * len(cost)
            mass = model.get_buffer("episode_mass")
            excess = cost - model.units.get_buffer("limit") / mass
            expected_cost = mass * model.units.raw_cost(cost)
        figures = {"value": model.multiplier(), "expected_cost": expected_cost}
        return {"excess": PerSample(model.multiplier.loss(excess))} | watched_each(figures)

    def actor_loss(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """-w log pi(a | s): the data's actions, each as often as its correction says."""
        model, batch = self.model, self.model.units.transitions(batch)
        weight = self._correction(batch)
        likelihood = model.actor(model.timed(batch.state, batch.timestep)).log_prob(batch.action)
        return {"action": PerSample(-weight * likelihood)}

    def _advantage(self, batch: TransitionBatch, *, initial: bool = False) -> tuple[Tensor, Tensor]:
        """[B] e / alpha, e = r - lambda c + gamma nu(s') - nu(s); and [B or 0] nu(s_0) / M."""
        priced = batch.reward - (batch.cost @ self.model.multiplier())[:, None]
        residual, initial_value = self._residual(self.model.value, priced, batch, initial=initial)
        return residual[:, 0] / self.config.caution, initial_value[:, 0]

    @torch.no_grad()
    def _correction(self, batch: TransitionBatch) -> Tensor:
        """[B] w of each step, without gradients."""
        return correction(self._advantage(batch)[0])

    def _sample_cost(self, batch: TransitionBatch, weight: Tensor) -> Tensor:
        """[B, C] x = chi(s_0) / M + w (c + gamma chi(s') - chi(s)): what each sample says of the
        policy's cost per step. Weights [B] are the corrections."""
        residual, initial_value = self._residual(self.model.chi, batch.cost, batch, initial=True)
        return initial_value + weight[:, None] * residual

    def _residual(
        self, network: nn.Module, gain: Tensor, batch: TransitionBatch, *, initial: bool
    ) -> tuple[Tensor, Tensor]:
        """[B, k] g + gamma v(s') - v(s) of gains g and network v; and [B or 0, k] v(s_0) / M."""
        model, size, discount = self.model, len(batch.state), self.config.cost_discount
        states, timesteps = [batch.state, batch.next_state], [batch.timestep, batch.timestep + 1]
        if initial:
            states.append(batch.initial_state)
            timesteps.append(torch.zeros_like(batch.timestep))
        values = network(model.timed(torch.cat(states), torch.cat(timesteps)))
        value, next_value, initial_value = values.tensor_split((size, 2 * size))
        target = td_target(gain, next_value, batch, discount, model.horizon)
        return target - value, initial_value / model.get_buffer("episode_mass")

    def choose(
        self, state: Tensor, timestep: Tensor, options: COptiDICEOptions, generator: torch.Generator
    ) -> Tensor:
        """The actor, sampled or by its likeliest mean."""
        actions = self.model.actor(self.model.timed(state, timestep))
        return actions.sample(generator) if options.sample else actions.likeliest


def episode_mass(data: RelabelledStore, discount: float) -> float:
    """M: how many steps an episode counts, on average: its length or, discounted, what is left of
    it. Through a time-out an episode goes on, unless nothing is discounted."""
    lengths = np.asarray(data.store.lengths)
    if discount == 1:
        return float(lengths.mean())
    ended = np.asarray(data.store.episodes["terminated"])
    return float((np.where(ended, 1 - discount**lengths, 1.0) / (1 - discount)).mean())
