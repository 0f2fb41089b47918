"""Constrained Decision Transformer: asked for a return and a cost at once."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from saformer.agents.agent import Phase
from saformer.agents.networks import EntropyConfig, EntropyWeight, entropy_terms, fix_action_units
from saformer.agents.sequence import (
    SequenceAgent,
    SequenceConfig,
    SequenceModel,
    SequenceOptions,
    SequencePolicy,
)
from saformer.core.batch import Dimensions, WindowBatch
from saformer.core.gaussian import GaussianHead
from saformer.core.objectives import PerSample, over_valid_steps
from saformer.core.tokens import Layout
from saformer.data.limits import augment, pareto_front
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import WindowSampler

LAYOUT = Layout(("return_to_go", "cost_to_go", "state", "action"))
FRONT_SIZE = 64
"""Trajectories of the front that a model remembers, to know what to ask for under a limit."""


@dataclass(frozen=True)
class CDTConfig(EntropyConfig, SequenceConfig):
    """What is learnt. Sizes are the paper's Table 6 (DT's); the rest are CDT's authors' values."""

    cost_weight: float = 0.02
    """Weight of the squared error of each step's cost, which is predicted on the side."""
    augmentation: float = 0.3
    """Copies of the front's trajectories with prompts beyond them, as a share of all; 0: none."""

    def __post_init__(self) -> None:
        EntropyConfig.__post_init__(self)
        SequenceConfig.__post_init__(self)
        for name in ("cost_weight", "augmentation"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")


@dataclass(frozen=True)
class CDTOptions(SequenceOptions):
    """How a trained CDT acts."""

    target_return: float | None = None
    """The return to ask for; by default the highest that the data shows within each limit."""


class CDTModel(nn.Module):
    """The transformer, a head for the cost of a step, the temperature, and the data's front."""

    def __init__(self, dimensions: Dimensions, config: CDTConfig) -> None:
        super().__init__()
        self.sequence = SequenceModel(LAYOUT, dimensions, config.trunk, GaussianHead)
        self.cost_head = nn.Linear(config.trunk.width, dimensions.constraints)
        self.temperature = EntropyWeight(config.initial_temperature)
        front_cost = torch.full((FRONT_SIZE, dimensions.constraints), torch.inf)
        self.register_buffer("front_cost", front_cost)
        self.register_buffer("front_return", torch.zeros(FRONT_SIZE))

    def remember_front(self, data: RelabelledStore) -> None:
        """Costs and returns of the front, or of an even choice of it; the highest return first."""
        front = pareto_front(data)
        chosen = front[np.unique(np.linspace(0, len(front) - 1, FRONT_SIZE).round().astype(int))]
        cost, earned = data.episode_cost[chosen], data.episode_return[chosen]
        self.get_buffer("front_cost")[: len(chosen)] = torch.from_numpy(cost)
        self.get_buffer("front_return")[: len(chosen)] = torch.from_numpy(earned)
        self.get_buffer("front_return")[len(chosen) :] = float(earned[-1])

    def best_return(self, limit: Tensor) -> Tensor:
        """[L] the highest return of the front within each limit [L, C], or its lowest return."""
        cost, earned = self.get_buffer("front_cost"), self.get_buffer("front_return")
        within = (cost <= limit[:, None]).all(-1)  # [L, FRONT_SIZE]
        return torch.where(within, earned, earned[-1]).amax(1)


class CDTAgent(SequenceAgent):
    """Constrained Decision Transformer (Liu et al., 2023)."""

    name = "cdt"
    description = "Constrained Decision Transformer: asked for a return and a cost, for all limits"
    config_type, rules = CDTConfig, {"cdt": CDTOptions}
    config: CDTConfig
    model: CDTModel

    def __init__(self, dimensions: Dimensions, config: CDTConfig) -> None:
        super().__init__(dimensions, config)
        self.model = CDTModel(dimensions, config)

    def fix_units(self, data: RelabelledStore) -> None:
        fix_action_units(self.model.sequence, data)
        self.model.remember_front(data)

    def sampler(self, data: RelabelledStore, device: torch.device | str = "cpu") -> WindowSampler:
        """Windows of K steps, of the data and of prompts beyond its front."""
        if self.config.augmentation:
            data = augment(data, self.config.augmentation)
        return super().sampler(data, device)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The network, then the temperature; neither moves the other."""
        network = (*self.model.sequence.parameters(), *self.model.cost_head.parameters())
        temperature, rate = tuple(self.model.temperature.parameters()), self.config.temperature_rate
        return (
            Phase("actor", network, self.actor_terms),
            Phase("temperature", temperature, self.temperature_terms, rate, weight_decay=0.0),
        )

    def actor_terms(self, batch: WindowBatch) -> dict[str, PerSample]:
        """The action's likelihood, its entropy by the temperature (Eq. 8), and each step's cost."""
        batch = self.model.sequence.normalizer.window(batch)
        heads = {"state": self.model.sequence.action_head, "action": self.model.cost_head}
        action, cost = self.model.sequence.head_outputs(batch, heads)
        weight, target = self.model.temperature, self.config.target_entropy
        bonus, _ = entropy_terms(weight, action, batch.valid, target)
        likelihood = over_valid_steps(-action.log_prob(batch.action), batch.valid)
        return {"action": likelihood, **bonus, "cost_error": self._cost_error(cost, batch)}

    def temperature_terms(self, batch: WindowBatch) -> dict[str, PerSample]:
        """The dual of Eq. 8: raises the temperature while the entropy is too low."""
        batch = self.model.sequence.normalizer.window(batch)
        with torch.no_grad():
            action = self.model.sequence(batch)
        weight, target = self.model.temperature, self.config.target_entropy
        return entropy_terms(weight, action, batch.valid, target)[1]

    def _cost_error(self, predicted: Tensor, batch: WindowBatch) -> PerSample:
        """Squared error of each step's cost (what the cost-to-go falls by), summed over constraints
        in deviations of the cost-to-go over the horizon: of order 1 whatever the cost's unit."""
        cost = self.dimensions.horizon * (batch.cost_to_go[:, :-1] - batch.cost_to_go[:, 1:])
        error = ((predicted[:, :-1] - cost) ** 2).sum(-1)
        valid = batch.valid[:, :-1] & batch.valid[:, 1:]
        return over_valid_steps(error, valid).scaled(self.config.cost_weight)

    def policy(self, options: CDTOptions | None = None) -> SequencePolicy:
        options = options or self.options()

        def target(limit: Tensor) -> Tensor:
            if options.target_return is None:
                return self.model.best_return(limit)
            return limit.new_full((len(limit),), options.target_return)

        return SequencePolicy(self.model.sequence, self.config, target, options)
