"""Small networks that several agents are made of, and the units that they speak."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saformer.agents.agent import Agent, MovingAverage
from saformer.core.batch import Dimensions, TransitionBatch
from saformer.core.gaussian import Gaussian, GaussianHead
from saformer.core.normalizer import Normalizer
from saformer.core.objectives import PerSample
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import statistics_of

Made = TypeVar("Made", bound=Agent)


class Units(nn.Module):
    """Raw to model units for single steps. States are standardised, actions lie in [-1, 1].

    The unit of reward, and of each cost, is the root mean square of a step of the data: scaling rewards, or costs and
    limits together, changes nothing.
    """

    def __init__(self, dimensions: Dimensions) -> None:
        super().__init__()
        self.horizon = dimensions.horizon
        self.normalizer = Normalizer(dimensions)
        self.register_buffer("action_low", torch.full((dimensions.action,), -torch.inf))
        self.register_buffer("action_high", torch.full((dimensions.action,), torch.inf))
        self.register_buffer("reward", torch.ones(1))
        self.register_buffer("cost", torch.ones(dimensions.constraints))
        self.register_buffer("limit", torch.zeros(dimensions.constraints))

    def fix(self, data: RelabelledStore, limit: Sequence[float]) -> None:
        """Take everything from this data, once, before training; the limit is in raw units."""
        self.normalizer.set_statistics(statistics_of(data))
        environment = data.store.environment
        self.get_buffer("action_low").copy_(torch.tensor(environment.action_low))
        self.get_buffer("action_high").copy_(torch.tensor(environment.action_high))
        self.get_buffer("reward").copy_(_root_mean_square(data.store.gather("reward")[:, None]))
        self.get_buffer("cost").copy_(_root_mean_square(data.cost))
        self.get_buffer("limit").copy_(torch.tensor(tuple(limit)) / self.get_buffer("cost"))

    def transitions(self, batch: TransitionBatch) -> TransitionBatch:
        """The same steps in model units."""
        return replace(
            batch,
            state=self.state(batch.state),
            action=self.normalizer.normalize("action", batch.action),
            reward=batch.reward / self.get_buffer("reward"),
            cost=batch.cost / self.get_buffer("cost"),
            next_state=self.state(batch.next_state),
            initial_state=self.state(batch.initial_state),
        )

    def state(self, raw: Tensor) -> Tensor:
        """States [..., S] in model units."""
        return self.normalizer.normalize("state", raw)

    def raw_cost(self, cost: Tensor) -> Tensor:
        """Costs [..., C] as they were measured."""
        return cost * self.get_buffer("cost")

    def raw_action(self, action: Tensor) -> Tensor:
        """Actions [..., A] as an environment wants them, within bounds."""
        raw = self.normalizer.restore("action", action)
        return raw.clamp(self.get_buffer("action_low"), self.get_buffer("action_high"))


class Timed(nn.Module):
    """States as a finite-horizon network sees them: with t / T beside them if `finite`, else as they are."""

    def __init__(self, dimensions: Dimensions, *, finite: bool) -> None:
        super().__init__()
        self.finite, self.horizon = finite, dimensions.horizon
        self.size = dimensions.state + int(finite)

    def forward(self, state: Tensor, timestep: Tensor) -> Tensor:
        """[..., S], [...] -> [..., S + 1] or [..., S]."""
        if not self.finite:
            return state
        return torch.cat([state, (timestep / self.horizon).clamp(max=1.0)[..., None].to(state.dtype)], dim=-1)


class Perceptron(nn.Module):
    """Linear layers with ReLU and dropout between them."""

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        sizes = (inputs, *hidden)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.output = nn.Linear(sizes[-1], outputs)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        for layer in self.layers:
            x = F.dropout(F.relu(layer(x)), self.dropout, self.training)
        return self.output(x)


class TwinCritic(nn.Module):
    """Two estimates of what follows a state and an action. `scale` is how large values get: outputs are of order 1."""

    def __init__(
        self, state: int, action: int, values: int, hidden: Sequence[int], *, scale: float, dropout: float
    ) -> None:
        super().__init__()
        self.scale = scale
        self.first, self.second = (Perceptron(state + action, hidden, values, dropout=dropout) for _ in range(2))

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """[..., S], [..., A] -> [2, ..., values]."""
        both = torch.cat([state, action], dim=-1)
        return self.scale * torch.stack([self.first(both), self.second(both)])

    def error(self, state: Tensor, action: Tensor, target: Tensor) -> PerSample:
        """Squared difference from the target [B, values], over twins and values, in the critic's scale."""
        difference = (self(state, action) - target) / self.scale
        return of_each(difference.square().sum((0, -1)))


def pessimistic(lower: Tensor, higher: Tensor, weight: float) -> Tensor:
    """Between two estimates: `weight` for the worse one, which comes first."""
    return weight * lower + (1 - weight) * higher


@dataclass(frozen=True)
class Squashed:
    """A Gaussian before it is squashed to actions between -1 and 1."""

    before: Gaussian

    @property
    def middle(self) -> Tensor:
        """The action of the mean."""
        return torch.tanh(self.before.mean)

    def drawn(self) -> Tensor:
        """An action at random, differentiable by the distribution."""
        return torch.tanh(self.before.at(torch.randn_like(self.before.mean)))


class SquashedActor(nn.Module):
    """A distribution of actions in a state."""

    def __init__(self, state: int, action: int, hidden: Sequence[int], *, dropout: float) -> None:
        super().__init__()
        self.trunk = Perceptron(state, hidden[:-1], hidden[-1], dropout=dropout)
        self.head = GaussianHead(hidden[-1], action)

    def forward(self, state: Tensor) -> Squashed:
        """[..., S] -> over [..., A]."""
        return Squashed(self.head(F.relu(self.trunk(state))))


class ConditionalVAE(nn.Module):
    """Actions as the data has them in a state: an encoder, a decoder, and a code of twice the action's size.

    The decoder's likelihood is a Gaussian of a fixed `deviation`, in model units.
    """

    def __init__(self, state: int, action: int, hidden: Sequence[int], *, deviation: float) -> None:
        super().__init__()
        self.code = 2 * action
        self.deviation = deviation
        self.encoder = Perceptron(state + action, hidden[:-1], hidden[-1])
        self.head = GaussianHead(hidden[-1], self.code)
        self.decoder = Perceptron(state + self.code, hidden, action)

    def encode(self, state: Tensor, action: Tensor) -> Gaussian:
        """Where an action [..., A] lies among those of the data."""
        return self.head(F.relu(self.encoder(torch.cat([state, action], dim=-1))))

    def decode(self, state: Tensor, code: Tensor) -> Tensor:
        """The action [..., A] of a code."""
        return torch.tanh(self.decoder(torch.cat([state, code], dim=-1)))

    def misfit(self, state: Tensor, action: Tensor, code: Tensor) -> Tensor:
        """Negative log-likelihood of an action, but for a constant: [...]."""
        error = (action - self.decode(state, code)) / self.deviation
        return 0.5 * error.square().sum(-1)

    def terms(self, state: Tensor, action: Tensor, kl_weight: float) -> dict[str, PerSample]:
        """The negative evidence bound of the data's actions [B, A]."""
        code = self.encode(state, action)
        drawn = code.at(torch.randn_like(code.mean))
        return {
            "misfit": of_each(self.misfit(state, action, drawn)),
            "divergence": of_each(kl_weight * divergence_from_normal(code)),
        }

    def strangeness(self, state: Tensor, action: Tensor, kl_weight: float) -> Tensor:
        """[...] the negative evidence bound at the middle of the code: large for actions unlike the data's."""
        code = self.encode(state, action)
        return self.misfit(state, action, code.mean) + kl_weight * divergence_from_normal(code)


def divergence_from_normal(code: Gaussian) -> Tensor:
    """Kullback-Leibler divergence from a standard normal, summed over the last axis."""
    variance = torch.exp(2 * code.log_deviation)
    return 0.5 * (variance + code.mean.square() - 1 - 2 * code.log_deviation).sum(-1)


def of_each(values: Tensor) -> PerSample:
    """One value [B] for each sample."""
    return PerSample(values, torch.ones_like(values))


def watched(values: Tensor, like: Tensor) -> PerSample:
    """A figure to be shown beside the losses: [] for the whole batch, or [B]."""
    return PerSample(values.detach().expand(len(like)), torch.ones_like(like), watched=True)


def target_of(network: nn.Module) -> nn.Module:
    """A copy that follows by a moving average: nothing is ever differentiated by it, and it drops nothing out."""
    target = copy.deepcopy(network).requires_grad_(False)
    for module in target.modules():
        if isinstance(module, Perceptron):
            module.dropout = 0.0
    return target


def follow(target: nn.Module, network: nn.Module, rate: float) -> MovingAverage:
    """The target's moving average."""
    return MovingAverage(tuple(target.parameters()), tuple(network.parameters()), rate)


class Multiplier(nn.Module):
    """What a unit of each cost is worth in units of reward; raised while a limit is broken, and never below 0."""

    def __init__(self, constraints: int, initial: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.full((constraints,), float(initial)))

    def forward(self) -> Tensor:
        """[C], a constant to whoever asks."""
        return self.value.detach().clamp(min=0)

    def loss(self, excess: Tensor) -> Tensor:
        """[B, C] by how much limits are broken -> [B]. At 0 there is nowhere to fall."""
        excess = excess.detach()
        held = (self.value.detach() <= 0) & (excess.mean(0) < 0)
        return -(self.value * torch.where(held, 0.0, excess)).sum(-1)


class OneLimit(Protocol):
    """The config of an agent that is trained for one limit."""

    @property
    def limit(self) -> tuple[float, ...]:
        """In raw units, for each constraint."""

    @property
    def cost_discount(self) -> float:
        """gamma_c."""


def check_limit(limit: Sequence[float], constraints: int) -> None:
    """There must be a number for each constraint."""
    if len(limit) != constraints:
        raise ValueError(
            f"the agent is trained for one limit, a number for each of {constraints} constraints; got {tuple(limit)}: "
            "set its config's limit (--limit)"
        )
    if not all(np.isfinite(value) and value >= 0 for value in limit):
        raise ValueError(f"a limit must be a finite number of at least 0, got {tuple(limit)}")


def fresh(make: Callable[[], Made], data: RelabelledStore, config: OneLimit, *, seed: int) -> Made:
    """An agent whose `model.units` are fixed by this data, initialised by the seed."""
    if data.cost_discount != config.cost_discount:
        raise ValueError(f"the data counts costs at {data.cost_discount}, the agent at {config.cost_discount}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        agent = make()
    agent.model.get_submodule("units").fix(data, config.limit)  # type: ignore[operator]
    return agent


def _root_mean_square(values: np.ndarray) -> Tensor:
    """[steps, k] -> [k]; a column of zeros has unit 1."""
    size = np.sqrt(np.square(values, dtype=np.float64).mean(0))
    return torch.from_numpy(np.where(size > 0, size, 1.0)).float()
