"""Small networks that several agents are made of."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saformer.agents.agent import MovingAverage
from saformer.core.gaussian import Gaussian, GaussianHead
from saformer.core.objectives import PerSample

Network = TypeVar("Network", bound=nn.Module)


class Perceptron(nn.Module):
    """Linear layers with ReLU and dropout between them."""

    def __init__(
        self, inputs: int, hidden: Sequence[int], outputs: int, *, dropout: float = 0.0
    ) -> None:
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


class TwinLinear(nn.Module):
    """Two linear maps, each of its own half of what comes in, computed at once."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        weight, bias = (
            [part.get_parameter(name).detach() for part in (first, second)]
            for name in ("weight", "bias")
        )
        self.weight, self.bias = (
            nn.Parameter(torch.stack(weight)),
            nn.Parameter(torch.stack(bias)),
        )  # [2, out, in]

    def forward(self, x: Tensor) -> Tensor:
        """[2, ..., inputs] -> [2, ..., outputs]."""
        mapped = torch.baddbmm(self.bias[:, None], x.flatten(1, -2), self.weight.mT)
        return mapped.unflatten(1, x.shape[1:-1])


class TwinCritic(nn.Module):
    """Two estimates of what follows a state and an action. `scale` is how large values get: outputs
    are of order 1.

    If `finite`, the state's last column is the share of the horizon that has passed, and values are
    in proportion to what is left of it: a constant output is then consistent with itself from step
    to step, and nothing has to travel from the horizon to the beginning, step by step and update by
    update, before values stop rising.
    """

    def __init__(
        self,
        state: int,
        action: int,
        values: int,
        hidden: Sequence[int],
        *,
        scale: float,
        dropout: float,
        finite: bool = False,
    ) -> None:
        super().__init__()
        self.scale, self.dropout, self.finite = scale, dropout, finite
        first, second = (Perceptron(state + action, hidden, values) for _ in range(2))
        self.layers = nn.ModuleList(map(TwinLinear, first.layers, second.layers))
        self.output = TwinLinear(first.output, second.output)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """[..., S], [..., A] -> [2, ..., values]."""
        both = torch.cat([state, action], dim=-1)
        x = both.expand(2, *both.shape)
        for layer in self.layers:
            x = F.dropout(F.relu(layer(x)), self.dropout, self.training)
        said: Tensor = self.scale * self.output(x)
        return said * (1 - state[..., -1:]) if self.finite else said

    @torch.no_grad()
    def begin_at(self, value: Tensor) -> None:
        """Expect this [values], more or less, until something is learnt; if finite, of a whole
        horizon."""
        self.output.bias.copy_((value / self.scale).expand_as(self.output.bias))

    def error(self, said: Tensor, target: Tensor) -> PerSample:
        """Squared difference of what both said [2, B, values] from the target [B, values], in the
        critic's scale."""
        difference = (said - target) / self.scale
        return of_each(difference.square().sum((0, -1)))


def pessimistic(lower: Tensor, higher: Tensor, weight: float) -> Tensor:
    """Between two estimates: `weight` for the worse one, which comes first."""
    return torch.lerp(higher, lower, weight)


class ConditionalVAE(nn.Module):
    """Actions as the data has them in a state: an encoder, a decoder, and a code of twice the
    action's size.

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
        """[...] the negative evidence bound at the middle of the code: large for actions unlike the
        data's."""
        code = self.encode(state, action)
        return self.misfit(state, action, code.mean) + kl_weight * divergence_from_normal(code)


def divergence_from_normal(code: Gaussian) -> Tensor:
    """Kullback-Leibler divergence from a standard normal, summed over the last axis."""
    variance = torch.exp(2 * code.log_deviation)
    return 0.5 * (variance + code.mean.square() - 1 - 2 * code.log_deviation).sum(-1)


def of_each(values: Tensor) -> PerSample:
    """One value [B] for each sample."""
    return PerSample(values, 1)


def watched(values: Tensor) -> PerSample:
    """A figure to be shown beside the losses: [] for the whole batch, or [B]."""
    return PerSample(values.detach().reshape(-1), 1, watched=True)


def target_of(network: Network) -> Network:
    """A copy that follows by a moving average: nothing is ever differentiated by it, and it drops
    nothing out."""
    target = copy.deepcopy(network).requires_grad_(False)
    for module in target.modules():
        if isinstance(module, Perceptron | TwinCritic):
            module.dropout = 0.0
    return target


def follow(target: nn.Module, network: nn.Module, rate: float) -> MovingAverage:
    """The target's moving average."""
    return MovingAverage(tuple(target.parameters()), tuple(network.parameters()), rate)


class Multiplier(nn.Module):
    """What a unit of each cost is worth in units of reward; raised while a limit is broken, and
    never below 0."""

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
