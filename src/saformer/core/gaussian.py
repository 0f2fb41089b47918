"""Diagonal Gaussians: the actor's predictions of cost-to-go, return-to-go and action."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

LOG_DEVIATION_RANGE = (-5.0, 2.0)  # model units; the floor keeps sure tokens from dominating


@dataclass(frozen=True)
class Gaussian:
    """Independent normals over the last axis."""

    mean: Tensor
    log_deviation: Tensor

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-likelihood, summed over the last axis: [..., d] -> [...]."""
        standardised = (value - self.mean) * torch.exp(-self.log_deviation)
        return (-0.5 * standardised**2 - self.log_deviation - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Tensor:
        """Shannon entropy, summed over the last axis: [..., d] -> [...]."""
        return (self.log_deviation + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def at(self, noise: Tensor) -> Tensor:
        """The point that lies `noise` standard deviations from the mean."""
        return self.mean + torch.exp(self.log_deviation) * noise


class GaussianHead(nn.Module):
    """Reads a Gaussian off a trunk output: [..., E] -> Gaussian over [..., d]."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2 * size)

    def forward(self, output: Tensor) -> Gaussian:
        return self.split(self.linear(output))

    @staticmethod
    def split(outputs: Tensor) -> Gaussian:
        """Mean and clipped log-deviation, side by side in [..., 2 * d]."""
        mean, log_deviation = outputs.chunk(2, dim=-1)
        return Gaussian(mean, log_deviation.clamp(*LOG_DEVIATION_RANGE))
