"""How a machine moves, learnt from its logs: networks that say what a step leads to."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saformer.core.gaussian import Gaussian, GaussianHead
from saformer.data.relabel import RelabelledStore
from saformer.data.transitions import TransitionSampler

VERSION = 1  # of what is learnt and how: others are learnt again
MEMBERS, WIDTH, BATCH_SIZE, LEARNING_RATE = 5, 128, 256, 2e-3
UPDATES = 6000
SLACK = 0.05  # share of the range of logged values by which predictions may leave it
BETA = 0.5  # of beta-NLL: between likelihood (0) and least squares (1)


@dataclass(frozen=True)
class Prediction:
    """What each member expects of B steps, in raw units."""

    change: Gaussian  # [M, B, S] of the state
    reward: Tensor  # [M, B]
    cost: Tensor  # [M, B, C] at least 0
    ends: Tensor  # [M, B] chance that the episode ends with the step


class Dynamics(nn.Module):
    """Several perceptrons that learnt from different trajectories, side by side: the members."""

    def __init__(self, state: int, action: int, constraints: int, horizon: int) -> None:
        super().__init__()
        self.horizon, self.sizes = horizon, (state, 1, constraints)
        inputs, outputs = state + action + 1, sum(self.sizes)
        sizes = (inputs, WIDTH, WIDTH, 2 * outputs + 1)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(MEMBERS, a, b) / math.sqrt(a)) for a, b in pairwise(sizes)
        )
        self.biases = nn.ParameterList(
            nn.Parameter(torch.zeros(MEMBERS, 1, size)) for size in sizes[1:]
        )
        for name, size in (("input", inputs), ("output", outputs)):
            self.register_buffer(f"{name}_centre", torch.zeros(size))
            self.register_buffer(f"{name}_scale", torch.ones(size))
        for name, size in (("output", outputs), ("state", state)):
            self.register_buffer(f"{name}_low", torch.full((size,), -torch.inf))
            self.register_buffer(f"{name}_high", torch.full((size,), torch.inf))

    @classmethod
    def of(cls, data: RelabelledStore) -> Self:
        """Untrained, of the size that the data wants; torch's own random state stays as it is."""
        steps = data.store.steps
        sizes = steps["state"].shape[1], steps["action"].shape[1], data.cost.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return cls(*sizes, data.environment.horizon)

    def inputs(self, state: Tensor, action: Tensor, timestep: Tensor) -> Tensor:
        """[B, S], [B, A], [B] -> [B, I] of order 1."""
        raw = torch.cat([state, action, timestep[:, None] / self.horizon], 1)
        return (raw - self.get_buffer("input_centre")) / self.get_buffer("input_scale")

    def forward(self, inputs: Tensor) -> tuple[Gaussian, Tensor]:
        """[M, B, I] -> outputs [M, B, O], of order 1, and the log-odds of an end [M, B]."""
        rows = inputs
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            rows = torch.baddbmm(bias, rows if index == 0 else F.silu(rows), weight)
        return GaussianHead.split(rows[..., :-1]), rows[..., -1]

    @torch.no_grad()
    def predict(self, state: Tensor, action: Tensor, timestep: Tensor) -> Prediction:
        """What every member expects of steps: [B, S], [B, A], [B]."""
        inputs = self.inputs(state, action, timestep)
        outputs, odds = self(inputs.expand(MEMBERS, *inputs.shape))
        scale, centre = self.get_buffer("output_scale"), self.get_buffer("output_centre")
        low, high = self.get_buffer("output_low"), self.get_buffer("output_high")
        mean = (outputs.mean * scale + centre).clamp(low, high)
        change, reward, cost = mean.split(self.sizes, -1)
        spread = (outputs.log_deviation + scale.log())[..., : self.sizes[0]]
        return Prediction(
            Gaussian(change, spread), reward[..., 0], cost.clamp(min=0), odds.sigmoid()
        )


def fit_dynamics(
    data: RelabelledStore,
    *,
    seed: int = 0,
    updates: int = UPDATES,
    progress: Callable[[int, int], None] | None = None,
) -> Dynamics:
    """Each member by maximum likelihood on trajectories drawn with replacement. The same in every
    process."""
    dynamics = Dynamics.of(data)
    inputs, outputs, ended = _columns(data)
    _set_statistics(dynamics, inputs, outputs)
    inputs = (inputs - dynamics.get_buffer("input_centre")) / dynamics.get_buffer("input_scale")
    outputs = (outputs - dynamics.get_buffer("output_centre")) / dynamics.get_buffer("output_scale")
    rows, generator = _bootstrapped(data, seed), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(dynamics.parameters(), lr=LEARNING_RATE)
    for index in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * index / updates))
        drawn = [own[torch.randint(len(own), (BATCH_SIZE,), generator=generator)] for own in rows]
        batch = torch.stack(drawn)
        loss = _loss(dynamics, inputs[batch], outputs[batch], ended[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if progress is not None and (index + 1) % 100 == 0:
            progress(index + 1, updates)
    return dynamics.eval()


def _columns(data: RelabelledStore) -> tuple[Tensor, Tensor, Tensor]:
    """Of every step: what the networks read, what they are to say, and whether the episode ended
    early with it."""
    every, horizon = torch.arange(data.store.num_steps), data.environment.horizon
    steps = TransitionSampler(data).transitions(every, torch.zeros_like(every))
    progress = steps.timestep[:, None] / horizon
    inputs = torch.cat([steps.state, steps.action, progress], 1)
    outputs = torch.cat([steps.next_state - steps.state, steps.reward, steps.cost], 1)
    return inputs, outputs, steps.terminated & (steps.timestep + 1 < horizon)


def _set_statistics(dynamics: Dynamics, inputs: Tensor, outputs: Tensor) -> None:
    for name, columns in (("input", inputs), ("output", outputs)):
        deviation = columns.std(0, correction=0)
        dynamics.get_buffer(f"{name}_centre").copy_(columns.mean(0))
        scale = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
        dynamics.get_buffer(f"{name}_scale").copy_(scale)
    for name, columns in (("output", outputs), ("state", inputs[:, : dynamics.sizes[0]])):
        low, high = columns.amin(0), columns.amax(0)
        slack = SLACK * (high - low)
        dynamics.get_buffer(f"{name}_low").copy_(low - slack)
        dynamics.get_buffer(f"{name}_high").copy_(high + slack)


def _bootstrapped(data: RelabelledStore, seed: int) -> list[Tensor]:
    """For each member, the steps of as many trajectories as there are, drawn with replacement."""
    rng, count, lengths = np.random.default_rng(seed), len(data.store), data.store.lengths
    trajectory = np.repeat(np.arange(count), lengths)
    drawn = rng.integers(count, size=(MEMBERS, count))
    repeats = (np.bincount(each, minlength=count) for each in drawn)
    every = np.arange(len(trajectory))
    return [torch.from_numpy(np.repeat(every, each[trajectory])) for each in repeats]


def _loss(dynamics: Dynamics, inputs: Tensor, outputs: Tensor, ended: Tensor) -> Tensor:
    expected, odds = dynamics(inputs)
    deviation = expected.log_deviation.exp()
    error = ((outputs - expected.mean) / deviation) ** 2
    nll = (0.5 * error + expected.log_deviation) * deviation.detach() ** (2 * BETA)
    ends = F.binary_cross_entropy_with_logits(odds, ended.float(), reduction="none")
    return (nll.mean(-1) + ends).mean(-1).sum()
