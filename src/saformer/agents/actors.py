"""Distributions of actions in a state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saformer.agents.parts import Perceptron
from saformer.core.gaussian import Gaussian, GaussianHead


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


@dataclass(frozen=True)
class Mixture:
    """Gaussians over actions [..., A], and the logarithms of their weights [..., K]."""

    parts: Gaussian
    """over [..., K, A]"""
    log_weight: Tensor

    @property
    def likeliest(self) -> Tensor:
        """The mean of the weightiest."""
        return self._of(self.log_weight.argmax(-1), self.parts.mean)

    def log_prob(self, action: Tensor) -> Tensor:
        """[..., A] -> [...]."""
        return (self.log_weight + self.parts.log_prob(action[..., None, :])).logsumexp(-1)

    def drawn(self, generator: torch.Generator) -> Tensor:
        """Actions [l, A] at random."""
        which = torch.multinomial(self.log_weight.exp(), 1, generator=generator)[..., 0]
        noise = torch.randn(
            self.parts.mean.shape, generator=generator, device=self.parts.mean.device
        )
        return self._of(which, self.parts.at(noise))

    def _of(self, which: Tensor, values: Tensor) -> Tensor:
        place = which[..., None, None].expand(*which.shape, 1, values.shape[-1])
        return values.gather(-2, place)[..., 0, :]


class MixtureActor(nn.Module):
    """A distribution of actions in a state, with as many modes as it has components."""

    def __init__(
        self, state: int, action: int, hidden: Sequence[int], *, components: int, dropout: float
    ) -> None:
        super().__init__()
        self.components = components
        self.trunk = Perceptron(state, hidden[:-1], hidden[-1], dropout=dropout)
        self.head = GaussianHead(hidden[-1], components * action)
        self.weight = nn.Linear(hidden[-1], components)
        if components > 1:  # alike, they would all learn the same
            nn.init.uniform_(self.head.linear.bias[: components * action], -1.0, 1.0)

    def forward(self, state: Tensor) -> Mixture:
        """[..., S] -> over [..., A]."""
        features = F.relu(self.trunk(state))
        flat = self.head(features)
        mean, log_deviation = (
            side.unflatten(-1, (self.components, -1)) for side in (flat.mean, flat.log_deviation)
        )
        return Mixture(Gaussian(mean, log_deviation), F.log_softmax(self.weight(features), dim=-1))
