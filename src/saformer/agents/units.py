"""The units that agents of single steps speak, and the one limit that they are trained for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from saformer.agents.agent import Agent
from saformer.core.batch import Dimensions
from saformer.core.normalizer import Normalizer
from saformer.data.relabel import RelabelledStore, cached_on_data
from saformer.data.sampling import dimensions_of, statistics_of
from saformer.data.transitions import TransitionBatch

Made = TypeVar("Made", bound=Agent)


class Units(nn.Module):
    """Raw to model units for single steps. States are standardised, actions lie in [-1, 1].

    The unit of reward, and of each cost, is the root mean square of a step of the data: scaling
    rewards, or costs and limits together, changes nothing.
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
        for name, size in _typical_step(data).items():
            self.get_buffer(name).copy_(size)
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

    def mean_cost_to_go(self, data: RelabelledStore) -> Tensor:
        """[C] of the data's steps, each counted from itself on, in model units; undiscounted, of a
        whole horizon."""
        return _mean_cost_to_go(data) / self.get_buffer("cost")

    def raw_cost(self, cost: Tensor) -> Tensor:
        """Costs [..., C] as they were measured."""
        return cost * self.get_buffer("cost")

    def raw_action(self, action: Tensor) -> Tensor:
        """Actions [..., A] as an environment wants them, within bounds."""
        raw = self.normalizer.restore("action", action)
        return raw.clamp(self.get_buffer("action_low"), self.get_buffer("action_high"))


class Timed(nn.Module):
    """States as a finite-horizon network sees them: with t / T beside them if `finite`, else as
    they are."""

    def __init__(self, dimensions: Dimensions, *, finite: bool) -> None:
        super().__init__()
        self.finite, self.horizon = finite, dimensions.horizon
        self.size = dimensions.state + int(finite)

    def forward(self, state: Tensor, timestep: Tensor) -> Tensor:
        """[..., S], [...] -> [..., S + 1] or [..., S]."""
        if not self.finite:
            return state
        return torch.cat(
            [state, (timestep / self.horizon).clamp(max=1.0)[..., None].to(state.dtype)], dim=-1
        )


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
            f"the agent is trained for one limit, a number for each of {constraints} "
            f"constraints; got {tuple(limit)}: "
            "set its config's limit (--limit)"
        )
    if not all(np.isfinite(value) and value >= 0 for value in limit):
        raise ValueError(f"a limit must be a finite number of at least 0, got {tuple(limit)}")


def fresh(make: Callable[[], Made], data: RelabelledStore, config: OneLimit, *, seed: int) -> Made:
    """An agent whose `model.units` are fixed by this data, initialised by the seed."""
    if data.cost_discount != config.cost_discount:
        raise ValueError(
            f"the data counts costs at {data.cost_discount}, the agent at {config.cost_discount}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        agent = make()
    agent.model.get_submodule("units").fix(data, config.limit)  # type: ignore[operator]
    return agent


@cached_on_data
def _typical_step(data: RelabelledStore) -> dict[str, Tensor]:
    """The root mean square of rewards [1] and of costs [C]."""
    return {
        "reward": _root_mean_square(data.store.gather("reward")[:, None]),
        "cost": _root_mean_square(data.cost),
    }


@cached_on_data
def _mean_cost_to_go(data: RelabelledStore) -> Tensor:
    """[C] of the data's steps, each counted from itself on, in raw units; undiscounted, for all of
    the horizon."""
    steps = np.arange(data.store.num_steps) - np.repeat(data.store.starts, data.store.lengths)
    found = (data.cost_to_go / data.cost_discount ** steps[:, None]).mean(0)
    left = 1 - steps / dimensions_of(data).horizon if data.cost_discount == 1 else np.ones(1)
    return torch.from_numpy(found / left.mean()).float()


def _root_mean_square(values: np.ndarray) -> Tensor:
    """[steps, k] -> [k]; a column of zeros has unit 1."""
    size = np.sqrt(np.square(values, dtype=np.float64).mean(0))
    return torch.from_numpy(np.where(size > 0, size, 1.0)).float()
