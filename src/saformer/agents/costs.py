"""What actions earn and cost: their own step, and what follows it.

A step is one of a thousand that an undiscounted cost critic counts. What one action saves is lost
in such a value; and dropout hides the rest. So what a step costs by itself is learnt apart, and a
cost critic counts what follows the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from saformer.agents.parts import Perceptron, TwinCritic
from saformer.agents.targets import steps_that_count
from saformer.agents.units import Timed
from saformer.core.batch import Dimensions


class WithCritics(Protocol):
    """The config of an agent with critics of reward and cost."""

    @property
    def discount(self) -> float:
        """gamma, of rewards."""

    @property
    def cost_discount(self) -> float:
        """gamma_c."""

    @property
    def hidden(self) -> tuple[int, ...]:
        """Widths of hidden layers."""

    @property
    def dropout(self) -> float:
        """Share of activations that critics drop while training."""


class StepCost(nn.Module):
    """What a step costs by itself, for each constraint; learnt from the data as it stands, nothing
    dropped out."""

    def __init__(self, dimensions: Dimensions, hidden: Sequence[int]) -> None:
        super().__init__()
        self.network = Perceptron(
            dimensions.state + dimensions.action, hidden, dimensions.constraints
        )

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """[..., S], [..., A] -> [..., C]."""
        found: Tensor = self.network(torch.cat([state, action], dim=-1))
        return found


class CountsCosts(nn.Module):
    """A model that knows what a step costs by itself, and asks a critic what follows it."""

    timed: Timed
    step_cost: StepCost

    def all_cost(
        self, critic: TwinCritic, state: Tensor, timestep: Tensor, action: Tensor
    ) -> Tensor:
        """[2, ..., C] what actions cost from here on: their own step, and by this critic what
        follows it."""
        return self.step_cost(state, action) + critic(self.timed(state, timestep + 1), action)


def reward_critic(dimensions: Dimensions, config: WithCritics) -> TwinCritic:
    """Of rewards to come, in states as they are."""
    scale = steps_that_count(config.discount, dimensions.horizon)
    return TwinCritic(
        dimensions.state, dimensions.action, 1, config.hidden, scale=scale, dropout=config.dropout
    )


def cost_critic(dimensions: Dimensions, timed: Timed, config: WithCritics) -> TwinCritic:
    """Of costs to come, in states as `timed` gives them."""
    return TwinCritic(
        timed.size,
        dimensions.action,
        dimensions.constraints,
        config.hidden,
        scale=steps_that_count(config.cost_discount, dimensions.horizon),
        dropout=config.dropout,
        finite=timed.finite,
    )
