"""What is still possible from a state, as far as the data shows: networks that policies ask.

Two questions have a value each. What must at least be spent from here on? And what can be earned
from here on within a budget? Beside the first: what do cheap courses do here, and how much of what
they cost is chance? `rules.fitting` says how all that is learnt as training ends.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saformer.core.batch import Dimensions

MEMBERS, WIDTH, FRONT_SIZE = 4, 64, 256
TINY, ROUNDING = 1e-6, 1e-3


class Perceptrons(nn.Module):
    """Several perceptrons side by side, the members. Their weights are buffers: no optimiser, pack
    or rounded export touches them."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.depth = len(sizes) - 1
        for index, (before, after) in enumerate(pairwise(sizes)):
            weight = torch.randn(MEMBERS, before, after) / before**0.5
            self.register_buffer(f"weight_{index}", weight)
            self.register_buffer(f"bias_{index}", torch.zeros(MEMBERS, 1, after))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Columns [..., _] that all members see -> [M, ..., outputs]"""
        x = torch.cat(inputs, -1)
        rows = x.reshape(-1, x.shape[-1]).expand(MEMBERS, -1, -1)
        for index in range(self.depth):
            weight, bias = self.get_buffer(f"weight_{index}"), self.get_buffer(f"bias_{index}")
            rows = torch.baddbmm(bias, rows if index == 0 else F.gelu(rows), weight)
        return rows.reshape(MEMBERS, *x.shape[:-1], -1)


class Outlook(nn.Module):
    """What is still possible, by members that saw different trajectories. States and actions are in
    model units, costs in `cost_scale`, rewards standardised, budgets as rates (`budget_rate`). Of
    two settings the first is for episodes that may not be ended, the second for those that may."""

    def __init__(self, dimensions: Dimensions) -> None:
        super().__init__()
        self.dimensions = dimensions
        state, action, costs = dimensions.state, dimensions.action, dimensions.constraints
        self.least_net = Perceptrons(state + 1, WIDTH, WIDTH, 2 * costs)
        self.brake_net = Perceptrons(state + 1, WIDTH, WIDTH, action)
        self.chance_net = Perceptrons(state + 1, WIDTH, WIDTH, costs)
        self.surprise_net = Perceptrons(state + action + 1, WIDTH, WIDTH, costs)
        self.best_net = Perceptrons(state + 1 + costs, WIDTH, WIDTH, 1)
        self.step_net = Perceptrons(state + action + 1, WIDTH, WIDTH, 1 + 3 * costs)
        self.then_net = Perceptrons(state + action + 1 + costs, WIDTH, WIDTH, 1)
        for name, size in (("cost", costs), ("reward", 1)):
            self.register_buffer(f"{name}_centre", torch.zeros(size))
            self.register_buffer(f"{name}_scale", torch.ones(size))
        self.register_buffer("dearest", torch.ones(costs))  # rate of the dearest recorded episode
        self.register_buffer("left", torch.zeros(dimensions.horizon + 1))  # see `weight_left`
        self.register_buffer("idle", torch.zeros(action))  # doing nothing, raw units
        self.register_buffer("idle_cost", torch.zeros(costs))  # of a step that does nothing
        self.register_buffer("can_idle", torch.tensor(False))  # the data shows it
        self.register_buffer("unforeseen", torch.zeros(costs))  # that a step may cost beyond `step`
        self.register_buffer("critic_error", torch.full((costs,), torch.inf))  # squared, per cost
        self.register_buffer("state_centre", torch.zeros(state))  # of recorded ones
        self.register_buffer("state_axes", torch.zeros(state, state))  # see `is_usual`
        self.register_buffer("front_cost", torch.full((FRONT_SIZE, costs), torch.inf))
        self.register_buffer("front_return", torch.zeros(FRONT_SIZE))

    def least(self, state: Tensor, timestep: Tensor) -> Tensor:
        """[M, ..., 2, C] rate of the least cost from a state on, by setting."""
        return F.softplus(self.least_net(state, self._time(timestep)).unflatten(-1, (2, -1)))

    def brake(self, state: Tensor, timestep: Tensor) -> Tensor:
        """[M, ..., A] what the cheapest recorded courses do in a state."""
        return self.brake_net(state, self._time(timestep))

    def chance(self, state: Tensor, timestep: Tensor) -> Tensor:
        """[M, ..., C] rate of the variance of what cheap courses cost from a state on."""
        return F.softplus(self.chance_net(state, self._time(timestep)))

    def best(self, state: Tensor, timestep: Tensor, budget: Tensor) -> Tensor:
        """[M, ...] rate of the best return from a state on, within a budget."""
        return self.best_net(state, self._time(timestep), budget)[..., 0]

    def surprise(self, state: Tensor, action: Tensor, timestep: Tensor) -> Tensor:
        """[M, ..., C] by how much a step makes that variance more than its rate has it."""
        return self.surprise_net(state, action, self._time(timestep))

    def step(self, state: Tensor, action: Tensor, timestep: Tensor) -> tuple[Tensor, ...]:
        """[M, ..., C] cost and [M, ...] reward of a step; [M, ..., 2, C] by how much it changes the
        least cost still to come."""
        outputs = self.step_net(state, action, self._time(timestep))
        costs = self.dimensions.constraints
        cost, reward, change = outputs.split([costs, 1, 2 * costs], -1)
        return cost, reward[..., 0], change.unflatten(-1, (2, -1))

    def then(self, state: Tensor, action: Tensor, timestep: Tensor, budget: Tensor) -> Tensor:
        """[M, ...] `best` after a step, within what remains of the budget after it."""
        return self.then_net(state, action, self._time(timestep), budget)[..., 0]

    def frontier(self, limit: Tensor) -> Tensor:
        """[L] the return, in model units, that the data shows to be possible in limits [L, C]."""
        earned = self.get_buffer("front_return")
        within = (self.get_buffer("front_cost") <= limit[:, None]).all(-1)
        return torch.where(within, earned, earned[-1]).amax(1)

    def is_usual(self, state: Tensor) -> Tensor:
        """[...] whether states lie where all but rare recorded ones do, by Mahalanobis distance."""
        from_centre = state - self.get_buffer("state_centre")
        return ((from_centre @ self.get_buffer("state_axes")) ** 2).sum(-1) <= 1

    def weight_left(self, timestep: Tensor) -> Tensor:
        """How much a cost of 1 at every step from this one on counts in all: [...]."""
        return self.get_buffer("left")[timestep.clamp(max=self.dimensions.horizon)]

    def steps_left(self, timestep: Tensor) -> Tensor:
        return (self.dimensions.horizon - timestep).clamp(min=0)

    def budget_rate(self, budget: Tensor, timestep: Tensor) -> Tensor:
        """A budget [..., C] over what is left of the episode, as far as anybody spent so much."""
        rate = budget / self.weight_left(timestep)[..., None].clamp(min=TINY)
        rate = torch.minimum(rate.clamp(min=0), self.get_buffer("dearest"))
        return rate / self.get_buffer("cost_scale")

    def _time(self, timestep: Tensor) -> Tensor:
        return (timestep / self.dimensions.horizon).clamp(max=1.0)[..., None]
