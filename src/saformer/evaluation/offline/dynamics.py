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

VERSION = 2  # of what is learnt and how: others are learnt again
MEMBERS, WIDTH, BATCH_SIZE, LEARNING_RATE = 5, 128, 256, 2e-3
UPDATES = (500, 5000)  # at least and at most; between them, each step is seen fifteen times
SLACK = 0.05  # share of the range of logged values by which predictions may leave it
BETA = 0.5  # of beta-NLL: between likelihood (0) and least squares (1)


@dataclass(frozen=True)
class Outcome:
    """What B steps that led somewhere brought by each member, in raw units."""

    reward: Tensor  # [M, B]
    cost: Tensor  # [M, B, C] at least 0
    ends: Tensor  # [M, B] chance that the episode ends with the step


class Members(nn.Module):
    """Perceptrons of one shape, side by side."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        weights = [torch.randn(MEMBERS, a, b) / math.sqrt(a) for a, b in pairwise(sizes)]
        self.weights = nn.ParameterList(map(nn.Parameter, weights))
        biases = [torch.zeros(MEMBERS, 1, size) for size in sizes[1:]]
        self.biases = nn.ParameterList(map(nn.Parameter, biases))

    def forward(self, rows: Tensor) -> Tensor:
        """[M, B, inputs] -> [M, B, outputs]."""
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            rows = torch.baddbmm(bias, F.silu(rows) if index else rows, weight)
        return rows


class Dynamics(nn.Module):
    """Where a step leads, and what it brings there, by members that saw different trajectories."""

    def __init__(self, state: int, action: int, constraints: int, horizon: int) -> None:
        super().__init__()
        self.horizon, self.sizes = horizon, (state, action, constraints)
        given = state + action + 1
        self.moves = Members(given, WIDTH, WIDTH, 2 * state)
        self.outcomes = Members(given + state, WIDTH, WIDTH, 1 + constraints + 1)
        for name, size in (("given", given), ("change", state), ("brought", 1 + constraints)):
            self.register_buffer(f"{name}_centre", torch.zeros(size))
            self.register_buffer(f"{name}_scale", torch.ones(size))
            self.register_buffer(f"{name}_low", torch.full((size,), -torch.inf))
            self.register_buffer(f"{name}_high", torch.full((size,), torch.inf))
        self.register_buffer("can_end", torch.tensor(False))  # before the horizon; some logged did
        self.register_buffer("two_valued", torch.zeros(1 + constraints, dtype=torch.bool))
        """which of reward and costs a classifier learns"""

    @classmethod
    def of(cls, data: RelabelledStore) -> Self:
        """Untrained, of the size that the data wants; torch's own random state stays as it is."""
        steps = data.store.steps
        sizes = steps["state"].shape[1], steps["action"].shape[1], data.cost.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return cls(*sizes, data.environment.horizon)

    @torch.no_grad()
    def move(self, state: Tensor, action: Tensor, timestep: Tensor) -> Gaussian:
        """The change of state [M, B, S] after steps [B, S], [B, A], [B]."""
        given = self.normalize("given", self.given(state, action, timestep))
        change = GaussianHead.split(self.moves(given.expand(MEMBERS, *given.shape)))
        mean = self._restore("change", change.mean)
        return Gaussian(mean, change.log_deviation + self.get_buffer("change_scale").log())

    @torch.no_grad()
    def outcome(
        self, state: Tensor, action: Tensor, timestep: Tensor, next_state: Tensor, luck: Tensor
    ) -> Outcome:
        """What steps brought that led to `next_state` [B, S]. Luck [B], from 0 to 1, decides which
        of two values it was."""
        given = self.normalize("given", self.given(state, action, timestep))
        rows = torch.cat([given, self.normalize("change", next_state - state)], 1)
        brought = self.outcomes(rows.expand(MEMBERS, *rows.shape))
        low, high = self.get_buffer("brought_low"), self.get_buffer("brought_high")
        either = torch.where(luck[:, None] < brought[..., :-1].sigmoid(), high, low)
        known = self._restore("brought", brought[..., :-1])
        values = torch.where(self.get_buffer("two_valued"), either, known)
        ends = brought[..., -1].sigmoid() * self.get_buffer("can_end")
        return Outcome(values[..., 0], values[..., 1:].clamp(min=0), ends)

    def within(self, state: Tensor) -> Tensor:
        """States [B, S] as near to the logged ones as a machine's can be."""
        size = self.sizes[0]
        return state.clamp(
            self.get_buffer("given_low")[:size], self.get_buffer("given_high")[:size]
        )

    def given(self, state: Tensor, action: Tensor, timestep: Tensor) -> Tensor:
        return torch.cat([state, action, timestep[:, None] / self.horizon], 1)

    def normalize(self, name: str, values: Tensor) -> Tensor:
        return (values - self.get_buffer(f"{name}_centre")) / self.get_buffer(f"{name}_scale")

    def _restore(self, name: str, values: Tensor) -> Tensor:
        """In raw units, no further from the logged values than the slack allows."""
        raw = values * self.get_buffer(f"{name}_scale") + self.get_buffer(f"{name}_centre")
        return raw.clamp(self.get_buffer(f"{name}_low"), self.get_buffer(f"{name}_high"))

    def set_statistics(self, name: str, values: Tensor) -> None:
        deviation, low, high = values.std(0, correction=0), values.amin(0), values.amax(0)
        slack = SLACK * (high - low)
        known = {"centre": values.mean(0), "low": low - slack, "high": high + slack}
        known["scale"] = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
        for what, value in known.items():
            self.get_buffer(f"{name}_{what}").copy_(value)

    def classify(self, brought: Tensor) -> Tensor:
        """Rewards and costs [n, 1 + C] to learn, normalised, or 0 and 1 where there are two."""
        low, high, learnt = brought.amin(0), brought.amax(0), self.normalize("brought", brought)
        two = ((brought == low) | (brought == high)).all(0) & (low < high)
        self.get_buffer("two_valued").copy_(two)
        for name, value in (("brought_low", low), ("brought_high", high)):
            self.get_buffer(name)[two] = value[two]
        return torch.where(two, (brought == high).float(), learnt)


def fit_dynamics(
    data: RelabelledStore,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Dynamics:
    """Each member on trajectories drawn with replacement. The same in every process."""
    updates = int(np.clip(15 * data.store.num_steps // BATCH_SIZE, *UPDATES))
    dynamics, (given, change, brought, ended) = Dynamics.of(data), _columns(data)
    rows = {"given": given, "change": change, "brought": brought}
    for name, values in rows.items():
        dynamics.set_statistics(name, values)
        rows[name] = dynamics.normalize(name, values)
    dynamics.get_buffer("can_end").fill_(bool(ended.any()))
    rows["brought"] = dynamics.classify(brought)
    own, generator = _bootstrapped(data, seed), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(dynamics.parameters(), lr=LEARNING_RATE)
    for index in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * index / updates))
        drawn = [each[torch.randint(len(each), (BATCH_SIZE,), generator=generator)] for each in own]
        batch = torch.stack(drawn)
        columns = {name: values[batch] for name, values in rows.items()}
        loss = _loss(dynamics, **columns, ended=ended[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if progress is not None and (index + 1) % 100 == 0:
            progress(index + 1, updates)
    return dynamics.eval()


def _columns(data: RelabelledStore) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of every step: what is given, the change of state, what it brought, and whether the episode
    ended early with it."""
    every, horizon = torch.arange(data.store.num_steps), data.environment.horizon
    steps = TransitionSampler(data).transitions(every, torch.zeros_like(every))
    given = torch.cat([steps.state, steps.action, steps.timestep[:, None] / horizon], 1)
    brought = torch.cat([steps.reward, steps.cost], 1)
    ended = steps.terminated & (steps.timestep + 1 < horizon)
    return given, steps.next_state - steps.state, brought, ended.float()


def _bootstrapped(data: RelabelledStore, seed: int) -> list[Tensor]:
    """For each member, the steps of as many trajectories as there are, drawn with replacement."""
    rng, count, lengths = np.random.default_rng(seed), len(data.store), data.store.lengths
    trajectory = np.repeat(np.arange(count), lengths)
    drawn = rng.integers(count, size=(MEMBERS, count))
    repeats = (np.bincount(each, minlength=count) for each in drawn)
    every = np.arange(len(trajectory))
    return [torch.from_numpy(np.repeat(every, each[trajectory])) for each in repeats]


def _loss(
    dynamics: Dynamics, given: Tensor, change: Tensor, brought: Tensor, ended: Tensor
) -> Tensor:
    """Likelihood of where steps led, and what they brought there; all of order 1."""
    expected = GaussianHead.split(dynamics.moves(given))
    deviation = expected.log_deviation.exp()
    error = ((change - expected.mean) / deviation) ** 2
    nll = (0.5 * error + expected.log_deviation) * deviation.detach() ** (2 * BETA)
    outcome = dynamics.outcomes(torch.cat([given, change], -1))
    values, two = outcome[..., :-1], dynamics.get_buffer("two_valued")
    distance = F.huber_loss(values, brought, reduction="none")
    classed = F.binary_cross_entropy_with_logits(values, brought.clamp(0, 1), reduction="none")
    missed = torch.where(two, classed, distance).mean(-1)
    ends = F.binary_cross_entropy_with_logits(outcome[..., -1], ended, reduction="none")
    return (nll.mean(-1) + missed + ends).mean(-1).sum()
