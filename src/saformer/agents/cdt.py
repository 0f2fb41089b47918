"""Constrained Decision Transformer: asked for a return and a cost at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from saformer.agents.agent import ActsOneWay, MovingAverage, Phase
from saformer.agents.sequence import (
    Drawing,
    Noise,
    SequenceModel,
    SequencePolicy,
    check_config,
    seeded,
)
from saformer.agents.temperature import Temperature, entropy_terms
from saformer.core.batch import Dimensions, WindowBatch
from saformer.core.gaussian import GaussianHead
from saformer.core.objectives import PerSample, action_entropy, over_valid_steps
from saformer.core.tokens import Layout
from saformer.core.transformer import TrunkConfig
from saformer.data.pareto import augment, pareto_front
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import WindowSampler

LAYOUT = Layout(("return_to_go", "cost_to_go", "state", "action"))
FRONT_SIZE = 64
"""Trajectories of the front that a model remembers, to know what to ask for under a limit."""


@dataclass(frozen=True)
class CDTConfig:
    """What is learnt. Sizes are the paper's Table 6 (DT's column); what is CDT's own has its
    authors' values."""

    window: int = 20
    """K: steps that the network looks back over, the present one included."""
    target_entropy: float | None = None
    """Least entropy of the action, summed over its dimensions, in model units; by default minus
    their number."""
    initial_temperature: float = 0.1
    """Weight of the entropy at first; it rises while the entropy is too low and falls otherwise."""
    temperature_rate: float = 1e-4
    """Learning rate of that weight."""
    cost_weight: float = 0.02
    """Weight of the squared error of each step's cost, which is predicted on the side."""
    augmentation: float = 0.3
    """Copies of the front's trajectories with prompts beyond them, as a share of all trajectories;
    0 for none."""
    cost_discount: float = 1.0
    """gamma_c: how much less a cost counts with every step of the episode; 1 counts all alike."""
    trunk: TrunkConfig = field(default_factory=TrunkConfig)
    """Size of the transformer."""

    def __post_init__(self) -> None:
        check_config(self)
        for name in ("initial_temperature", "temperature_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("cost_weight", "augmentation"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")


@dataclass(frozen=True)
class CDTOptions:
    """How a trained CDT acts."""

    target_return: float | None = None
    """The return to ask for; by default the highest that the data shows within each limit."""
    noise: Noise = "none"
    """none: act by the mean; normal: a sample; two_point: one deviation above or below, for data of
    either sign."""
    temperature: float = 1.0
    """Spread of the noise, in deviations."""
    seed: int = 0
    """Seed of the noise."""


class CDTModel(nn.Module):
    """The transformer, a head for the cost of a step, the temperature, and what the data shows to
    be possible."""

    def __init__(self, dimensions: Dimensions, config: CDTConfig) -> None:
        super().__init__()
        self.sequence = SequenceModel(LAYOUT, dimensions, config.trunk, GaussianHead)
        self.cost_head = nn.Linear(config.trunk.width, dimensions.constraints)
        self.temperature = Temperature(config.initial_temperature)
        self.register_buffer(
            "front_cost", torch.full((FRONT_SIZE, dimensions.constraints), torch.inf)
        )
        self.register_buffer("front_return", torch.zeros(FRONT_SIZE))

    def remember_front(self, data: RelabelledStore) -> None:
        """Keep the costs and returns of the front, or of an even choice of it; the highest return
        first."""
        front = pareto_front(data)
        chosen = front[np.unique(np.linspace(0, len(front) - 1, FRONT_SIZE).round().astype(int))]
        cost, earned = data.episode_cost[chosen], data.episode_return[chosen]
        self.get_buffer("front_cost")[: len(chosen)] = torch.from_numpy(cost)
        self.get_buffer("front_return")[: len(chosen)] = torch.from_numpy(earned)
        self.get_buffer("front_return")[len(chosen) :] = float(earned[-1])

    def best_return(self, limit: Tensor) -> Tensor:
        """The highest return that the front shows within each limit [L, C], its lowest where it
        shows none: [L]."""
        cost, earned = self.get_buffer("front_cost"), self.get_buffer("front_return")
        within = (cost <= limit[:, None]).all(-1)  # [L, FRONT_SIZE]
        return torch.where(within, earned, earned[-1]).amax(1)


class CDTAgent(ActsOneWay):
    """Constrained Decision Transformer (Liu et al., 2023)."""

    name = "cdt"
    means = (("noise", "none"),)
    num_models = 1
    averages: tuple[MovingAverage, ...] = ()

    def __init__(self, dimensions: Dimensions, config: CDTConfig) -> None:
        self.dimensions = dimensions
        self.config = config
        self.model = CDTModel(dimensions, config)

    @classmethod
    def create(cls, data: RelabelledStore, config: CDTConfig, *, seed: int) -> CDTAgent:
        """A fresh agent for this data: initialised by the seed, its units fixed by the data's
        statistics."""
        agent = seeded(cls, data, config, seed=seed)
        agent.model.sequence.fix_units(data)
        agent.model.remember_front(data)
        return agent

    def sampler(self, data: RelabelledStore, device: torch.device | str = "cpu") -> WindowSampler:
        """Windows of K steps, of the data and of prompts beyond its front."""
        if self.config.augmentation:
            data = augment(data, self.config.augmentation)
        return WindowSampler(data, window=self.config.window, device=device)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The network, then the temperature; neither moves the other."""
        network = (*self.model.sequence.parameters(), *self.model.cost_head.parameters())
        temperature, rate = tuple(self.model.temperature.parameters()), self.config.temperature_rate
        return (
            Phase("actor", network, self.actor_terms),
            Phase(
                "temperature",
                temperature,
                self.temperature_terms,
                learning_rate=rate,
                weight_decay=0.0,
            ),
        )

    def actor_terms(self, batch: WindowBatch) -> dict[str, PerSample]:
        """The action's likelihood, its entropy at the present temperature (Eq. 8), and each step's
        cost."""
        batch = self.model.sequence.normalizer.window(batch)
        heads = {"state": self.model.sequence.action_head, "action": self.model.cost_head}
        action, cost = self.model.sequence.answers(batch, heads)
        entropy = action_entropy(action, batch.valid)
        bonus, _ = self._entropy_constrained(entropy)
        return {
            "action": over_valid_steps(-action.log_prob(batch.action), batch.valid),
            "entropy_bonus": bonus,
            "cost_error": self._cost_error(cost, batch),
            "entropy": replace(entropy, watched=True),
        }

    def temperature_terms(self, batch: WindowBatch) -> dict[str, PerSample]:
        """The dual of Eq. 8: its minimisation raises the temperature while the entropy is too
        low."""
        batch = self.model.sequence.normalizer.window(batch)
        with torch.no_grad():
            entropy = action_entropy(self.model.sequence(batch), batch.valid)
        temperature = self.model.temperature(entropy.sums).exp()
        return {
            "dual": self._entropy_constrained(entropy)[1],
            "temperature": PerSample(temperature, 1, watched=True),
        }

    def _entropy_constrained(self, entropy: PerSample) -> tuple[PerSample, PerSample]:
        """What the entropy adds to the actor's loss, and the temperature's loss."""
        wanted = self.config.target_entropy
        target = -float(self.dimensions.action) if wanted is None else wanted
        return entropy_terms(self.model.temperature, entropy, target)

    def _cost_error(self, predicted: Tensor, batch: WindowBatch) -> PerSample:
        """Squared error of each step's cost, summed over constraints: what the cost-to-go falls by
        until the next.

        In deviations of the cost-to-go over the horizon, so that it is of the order of 1 whatever
        the cost's unit.
        """
        cost = self.dimensions.horizon * (batch.cost_to_go[:, :-1] - batch.cost_to_go[:, 1:])
        error = ((predicted[:, :-1] - cost) ** 2).sum(-1)
        return over_valid_steps(error, batch.valid[:, :-1] & batch.valid[:, 1:]).scaled(
            self.config.cost_weight
        )

    @property
    def default_options(self) -> CDTOptions:
        """How to act unless told otherwise."""
        return CDTOptions()

    def policy(self, options: CDTOptions | None = None) -> SequencePolicy:
        """Acts towards a return and a cost."""
        options = options or self.default_options
        asked = options.target_return

        def target(limit: Tensor) -> Tensor:
            return (
                self.model.best_return(limit)
                if asked is None
                else limit.new_full((len(limit),), asked)
            )

        return SequencePolicy(
            self.model.sequence,
            window=self.config.window,
            cost_discount=self.config.cost_discount,
            target=target,
            drawing=Drawing(options.noise, options.temperature, options.seed),
        )
