"""COptiDICE: how much more often than the data a good policy within the limit would take each step.

Lee et al. 2022, "COptiDICE: Offline Constrained Reinforcement Learning via Stationary Distribution
Correction Estimation"; docs/agents/coptidice.md says where we leave it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from saformer.agents.actors import MixtureActor
from saformer.agents.agent import ActsOneWay, MovingAverage, Phase
from saformer.agents.markov import MarkovPolicy
from saformer.agents.parts import Multiplier, Perceptron, of_each, watched
from saformer.agents.targets import td_target
from saformer.agents.units import Timed, Units, check_limit, fresh
from saformer.core.batch import Dimensions
from saformer.core.objectives import PerSample
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import dimensions_of
from saformer.data.transitions import TransitionBatch, TransitionSampler


@dataclass(frozen=True)
class COptiDICEConfig:
    """What is learnt. The paper has no column for it: sizes and rates are those that Table 6 gives
    BCQ-L."""

    limit: tuple[float, ...] = ()
    """What an episode may cost, for each constraint: this agent is trained for one limit."""
    cost_discount: float = 1.0
    """gamma_c: how much less a cost, and a reward, counts with every step; 1 counts all alike, up
    to the horizon."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of every network's hidden layers."""
    dropout: float = 0.1
    """Share of activations that the actor drops while training."""
    caution: float = 0.1
    """alpha: weight of the divergence from the data, in units of a step's reward."""
    cost_bound: float = 0.01
    """epsilon: how far the data may be reweighed to find the highest credible cost; 0 trusts it as
    it is."""
    multiplier: float = 0.1
    """The Lagrangian multiplier to begin with, in units of reward per unit of cost."""
    multiplier_learning_rate: float = 3e-4
    """How fast it follows broken limits."""
    components: int = 1
    """Gaussians in the actor's mixture."""
    sample: bool = True
    """Act at random, as the actor is distributed: what is constrained is a distribution. Else by
    its likeliest mean."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit", tuple(self.limit))  # JSON has no tuples
        object.__setattr__(self, "hidden", tuple(self.hidden))
        if not 0 < self.cost_discount <= 1:
            raise ValueError(f"cost_discount must lie in (0, 1], got {self.cost_discount}")
        if not self.caution > 0 or self.cost_bound < 0 or self.components < 1:
            raise ValueError(
                "caution must be above 0, cost_bound at least 0, components at least 1; got "
                f"{self.caution}, {self.cost_bound}, {self.components}"
            )


@dataclass(frozen=True)
class COptiDICEOptions:
    """How the policy acts."""

    sample: bool = True
    """At random, as the actor is distributed, rather than by the mean of its weightiest
    Gaussian."""
    seed: int = 0
    """Seed of what is drawn."""


def correction(advantage: Tensor) -> Tensor:
    """How often a step should be taken, relative to the data: the w >= 0 that maximises w *
    advantage - f(w).

    f is the soft chi-square divergence of OptiDICE: x log x - x + 1 below 1, (x - 1)^2 / 2 above.
    """
    return torch.where(advantage < 0, advantage.clamp(max=0).exp(), advantage + 1)


def conjugate(advantage: Tensor) -> Tensor:
    """The maximum itself. Its slope is `correction`."""
    below = advantage.clamp(max=0).exp() - 1
    return torch.where(advantage < 0, below, 0.5 * advantage.clamp(min=0).square() + advantage)


class Temperature(nn.Module):
    """How far the data may be reweighed: a positive number for each constraint."""

    def __init__(self, constraints: int) -> None:
        super().__init__()
        self.logarithm = nn.Parameter(torch.zeros(constraints))

    def forward(self) -> Tensor:
        """[C]."""
        return self.logarithm.exp()


class COptiDICE(nn.Module):
    """All networks of the agent. States and actions are in model units, values in units of a
    typical step."""

    def __init__(self, dimensions: Dimensions, config: COptiDICEConfig) -> None:
        super().__init__()
        constraints, hidden = dimensions.constraints, config.hidden
        self.config, self.horizon = config, dimensions.horizon
        self.units = Units(dimensions)
        self.timed = Timed(dimensions, finite=config.cost_discount == 1)
        self.value = Perceptron(self.timed.size, hidden, 1)
        self.excess = Perceptron(self.timed.size, hidden, constraints)
        self.temperature = Temperature(constraints)
        self.multiplier = Multiplier(constraints, config.multiplier)
        self.actor = MixtureActor(
            self.timed.size,
            dimensions.action,
            hidden,
            components=config.components,
            dropout=config.dropout,
        )
        self.register_buffer("episode_mass", torch.ones(()))

    def gains(
        self, network: nn.Module, gain: Tensor, batch: TransitionBatch, *, beginnings: bool = False
    ) -> tuple[Tensor, Tensor]:
        """[B, k] how much better a step was than its state led to expect, for gains [B, k].

        And [B or 0, k] what the network says of first states, for each step that follows them. All
        in one pass.
        """
        states, timesteps = [batch.state, batch.next_state], [batch.timestep, batch.timestep + 1]
        if beginnings:
            states, timesteps = (
                [*states, batch.initial_state],
                [*timesteps, torch.zeros_like(batch.timestep)],
            )
        said = network(self.timed(torch.cat(states), torch.cat(timesteps)))
        size, discount = len(batch.state), self.config.cost_discount
        expected = td_target(
            gain, said[size : 2 * size], batch, discount=discount, horizon=self.horizon
        )
        return expected - said[:size], said[2 * size :] / self.get_buffer("episode_mass")

    def advantage(
        self, batch: TransitionBatch, *, beginnings: bool = False
    ) -> tuple[Tensor, Tensor]:
        """[B] of reward less priced cost, in units of the caution; and [B or 0] the value of first
        states."""
        priced = batch.reward - (batch.cost @ self.multiplier())[:, None]
        gains, begun = self.gains(self.value, priced, batch, beginnings=beginnings)
        return gains[:, 0] / self.config.caution, begun[:, 0]

    @torch.no_grad()
    def weights(self, batch: TransitionBatch) -> Tensor:
        """[B] the correction of each step, a constant to whoever asks."""
        return correction(self.advantage(batch)[0])


class COptiDICEAgent(ActsOneWay):
    """Stationary distribution correction under a limit on the cost of an episode."""

    name = "coptidice"
    means = (("sample", False),)
    num_models = 1
    averages: tuple[MovingAverage, ...] = ()

    def __init__(self, dimensions: Dimensions, config: COptiDICEConfig) -> None:
        check_limit(config.limit, dimensions.constraints)
        self.dimensions = dimensions
        self.config = config
        self.model = COptiDICE(dimensions, config)

    @classmethod
    def create(cls, data: RelabelledStore, config: COptiDICEConfig, *, seed: int) -> COptiDICEAgent:
        """A fresh agent for this data: initialised by the seed, its units fixed by the data's
        statistics."""
        agent = fresh(lambda: cls(dimensions_of(data), config), data, config, seed=seed)
        agent.model.get_buffer("episode_mass").fill_(episode_mass(data, config.cost_discount))
        return agent

    def sampler(
        self, data: RelabelledStore, device: torch.device | str = "cpu"
    ) -> TransitionSampler:
        """Single steps."""
        return TransitionSampler(data, device=device)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What states are worth, what the policy may cost at most, what cost is worth, and how to
        act."""
        model = self.model
        bound = (*model.excess.parameters(), *model.temperature.parameters())
        rate = self.config.multiplier_learning_rate
        multiplier = tuple(model.multiplier.parameters())
        return (
            Phase("value", tuple(model.value.parameters()), self.value_terms),
            Phase("bound", bound, self.bound_terms),
            Phase(
                "multiplier",
                multiplier,
                self.multiplier_terms,
                learning_rate=rate,
                weight_decay=0.0,
            ),
            Phase("actor", tuple(model.actor.parameters()), self.actor_terms),
        )

    def value_terms(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """The dual of the most reward, less priced cost and divergence, that a flow of steps can
        have."""
        model, batch = self.model, self.model.units.transitions(batch)
        advantage, begun = model.advantage(batch, beginnings=True)
        return {
            "begun": of_each(begun),
            "conjugate": of_each(self.config.caution * conjugate(advantage)),
            "correction": watched(correction(advantage)),
        }

    def bound_terms(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """The dual of the highest cost that a slightly reweighed sample of the data would show."""
        model, batch = self.model, self.model.units.transitions(batch)
        temperature = model.temperature()
        shown = self._shown_cost(batch, model.weights(batch)) / temperature
        highest = temperature * (
            shown.logsumexp(0) - math.log(len(shown)) + self.config.cost_bound
        )  # [C]
        return {"highest": of_each(highest.sum()[None])}

    def multiplier_terms(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """Raise the price while whole episodes would cost more than the limit."""
        model, batch = self.model, self.model.units.transitions(batch)
        with torch.no_grad():
            weight = model.weights(batch)
            cost = weight[:, None] * batch.cost  # [B, C]
            if self.config.cost_bound > 0:
                shown = self._shown_cost(batch, weight) / model.temperature()
                cost = cost * shown.softmax(0) * len(cost)
            mass = model.get_buffer("episode_mass")
            loss_of = cost - model.units.get_buffer("limit") / mass
            raw = mass * model.units.raw_cost(cost)
        loss = model.multiplier.loss(loss_of)
        figures = {"value": model.multiplier(), "expected_cost": raw}
        return {"excess": of_each(loss)} | {
            f"{name}_{i}": watched(values[..., i])
            for name, values in figures.items()
            for i in range(cost.shape[1])
        }

    def actor_terms(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """The data's actions, each as often as its correction says."""
        model, batch = self.model, self.model.units.transitions(batch)
        weight = model.weights(batch)
        likelihood = model.actor(model.timed(batch.state, batch.timestep)).log_prob(batch.action)
        return {"action": of_each(-weight * likelihood)}

    def policy(self, options: COptiDICEOptions | None = None) -> MarkovPolicy:
        """The actor."""
        options = options or self.default_options
        model = self.model.eval()

        def choose(state: Tensor, timestep: Tensor, generator: torch.Generator) -> Tensor:
            actions = model.actor(model.timed(model.units.state(state), timestep))
            return model.units.raw_action(
                actions.drawn(generator) if options.sample else actions.likeliest
            )

        device = model.units.get_buffer("limit").device
        return MarkovPolicy(
            choose,
            self.dimensions,
            limit=self.config.limit,
            cost_discount=self.config.cost_discount,
            seed=options.seed,
            device=device,
        )

    @property
    def default_options(self) -> COptiDICEOptions:
        """How to act unless told otherwise."""
        return COptiDICEOptions(sample=self.config.sample)

    def _shown_cost(self, batch: TransitionBatch, weight: Tensor) -> Tensor:
        """[B, C] what each sample says of the policy's cost per step, beside what it says of the
        flow of steps.

        Their weights [B] are the corrections.
        """
        flow, begun = self.model.gains(self.model.excess, batch.cost, batch, beginnings=True)
        return begun + weight[:, None] * flow


def episode_mass(data: RelabelledStore, discount: float) -> float:
    """How many steps an episode counts, on average: its length or, discounted, what is left of it.

    Through a time-out an episode goes on, unless nothing is discounted.
    """
    lengths, terminated = (
        np.asarray(data.store.lengths),
        np.asarray(data.store.episodes["terminated"]),
    )
    if discount == 1:
        return float(lengths.mean())
    whole = np.where(terminated, 1 - discount**lengths, 1.0) / (1 - discount)
    return float(whole.mean())
