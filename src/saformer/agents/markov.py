"""What agents of single steps share: units, time, and a policy that looks at the present state and
step alone. BCQ-L, CPQ and COptiDICE are trained for one limit; CAPS and BCRL (`agents.iql`) not.

A limit d is a promise about whole episodes: the costs of an episode, each discounted by gamma_c
from its beginning on, sum to d at most. A critic that counts with the same gamma_c says at the
*first* state of an episode what the whole of it will cost, however early it ends, since nothing is
counted after a termination. So there the critic is compared with d itself.

At gamma_c = 1 a time-out leaves values without a finite solution. The problem is finite-horizon
then: networks see t / T, and nothing follows step T.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Generator, Tensor, nn

from saformer.agents.agent import Agent
from saformer.agents.lanes import LanePolicy
from saformer.agents.networks import ActionUnits, fix_action_units
from saformer.core.batch import Dimensions
from saformer.core.policy import Decision
from saformer.data.relabel import RelabelledStore, cached_on_data
from saformer.data.sampling import dimensions_of
from saformer.data.transitions import TransitionBatch, TransitionSampler


@dataclass(frozen=True)
class MarkovConfig:
    """What is learnt by an agent of single steps."""

    cost_discount: float = 1.0
    """gamma_c: how much less a cost counts with every step; 1 counts all alike, up to the end."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of every network's hidden layers."""
    dropout: float = 0.1
    """Share of activations that critics and actors drop while training."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))  # JSON has no tuples
        for name in ("cost_discount", "discount"):
            if not 0 < getattr(self, name, 1.0) <= 1:
                raise ValueError(f"{name} must lie in (0, 1], got {getattr(self, name)}")


@dataclass(frozen=True)
class LimitedConfig(MarkovConfig):
    """Of one that is trained for one limit."""

    limit: tuple[float, ...] = ()
    """What an episode may cost, for each constraint: this agent is trained for one limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "limit", tuple(self.limit))


def td_target(
    gain: Tensor, next_value: Tensor, batch: TransitionBatch, discount: float, horizon: int
) -> Tensor:
    """What was gained (reward, or each cost) and the discounted value of what follows: all [B, k].

    Nothing follows a termination. A time-out ends the recording, not the task, so discounted values
    go on through it. Undiscounted ones stop at the horizon."""
    shapes = f"{tuple(gain.shape)} gains, {tuple(next_value.shape)} values"
    assert gain.shape == next_value.shape, shapes
    goes_on = ~batch.terminated
    if discount == 1:
        goes_on = goes_on & (batch.timestep + 1 < horizon)
    return gain + discount * torch.where(goes_on[:, None], next_value, 0.0)


def steps_that_count(discount: float, horizon: int) -> float:
    """How many steps' worth a value is, at most: T, or 1 / (1 - discount) if that is less."""
    return float(horizon) if discount == 1 else min(float(horizon), 1 / (1 - discount))


class Units(ActionUnits):
    """Raw to model units for single steps. States are standardised, actions lie in [-1, 1].

    The unit of reward, and of each cost, is the root mean square of a step of the data: scaling
    rewards, or costs and limits together, changes nothing."""

    def __init__(self, dimensions: Dimensions) -> None:
        super().__init__(dimensions)
        self.register_buffer("reward", torch.ones(1))
        self.register_buffer("cost", torch.ones(dimensions.constraints))
        self.register_buffer("limit", torch.zeros(dimensions.constraints))

    def fix(self, data: RelabelledStore) -> None:
        """Take everything but the limit from this data."""
        fix_action_units(self, data)
        for name, size in _typical_step(data).items():
            self.get_buffer(name).copy_(size)

    def fix_limit(self, limit: tuple[float, ...]) -> None:
        """In raw units."""
        self.get_buffer("limit").copy_(torch.tensor(limit) / self.get_buffer("cost"))

    def transitions(self, batch: TransitionBatch) -> TransitionBatch:
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
        return self.normalizer.normalize("state", raw)

    def raw_cost(self, cost: Tensor) -> Tensor:
        return cost * self.get_buffer("cost")


class MarkovModel(nn.Module):
    """Units, and states as networks see them: with t / T if costs are not discounted."""

    def __init__(self, dimensions: Dimensions, config: MarkovConfig) -> None:
        super().__init__()
        self.finite, self.horizon = config.cost_discount == 1, dimensions.horizon
        self.timed_size = dimensions.state + int(self.finite)
        self.units = Units(dimensions)

    def timed(self, state: Tensor, timestep: Tensor) -> Tensor:
        """[..., S], [...] -> [..., S + 1] or [..., S]."""
        if not self.finite:
            return state
        share = (timestep / self.horizon).clamp(max=1.0)[..., None].to(state.dtype)
        return torch.cat([state, share], dim=-1)


class MarkovAgent(Agent):
    """An agent of single steps."""

    model_type: ClassVar[type[MarkovModel]]
    config: MarkovConfig
    model: MarkovModel

    def __init__(self, dimensions: Dimensions, config: MarkovConfig) -> None:
        super().__init__(dimensions, config)
        self.model = self.model_type(dimensions, config)

    def fix_units(self, data: RelabelledStore) -> None:
        self.model.units.fix(data)

    def sampler(
        self, data: RelabelledStore, device: torch.device | str = "cpu"
    ) -> TransitionSampler:
        return TransitionSampler(data, device=device)


class LimitedAgent(MarkovAgent):
    """One that is trained for one limit on the cost of an episode."""

    has_one_limit = True
    config: LimitedConfig

    def __init__(self, dimensions: Dimensions, config: LimitedConfig) -> None:
        if len(config.limit) != dimensions.constraints:
            needed = f"the agent needs a limit for each of {dimensions.constraints} constraints"
            raise ValueError(f"{needed}; got {config.limit}: set its config's limit (--limit)")
        if not all(np.isfinite(value) and value >= 0 for value in config.limit):
            raise ValueError(f"a limit must be a finite number of at least 0, got {config.limit}")
        super().__init__(dimensions, config)

    def fix_units(self, data: RelabelledStore) -> None:
        super().fix_units(data)
        self.model.units.fix_limit(self.config.limit)

    @abstractmethod
    def choose(self, state: Tensor, timestep: Tensor, options: Any, generator: Generator) -> Tensor:
        """States [l, S] and timesteps [l] -> actions [l, A], all in model units."""

    def policy(self, options: MarkovOptions | None = None) -> MarkovPolicy:
        return MarkovPolicy(self, options or self.options())


@dataclass(frozen=True)
class MarkovOptions:
    """How such a policy acts."""

    seed: int = 0
    """Seed of whatever it draws."""


class MarkovPolicy(LanePolicy):
    """Acts as the agent chooses, whatever limit an episode is given: it was trained for one."""

    def __init__(self, agent: LimitedAgent, options: MarkovOptions) -> None:
        self._agent, self._options, self._units = agent, options, agent.model.eval().units
        device = self._units.get_buffer("limit").device
        super().__init__(agent.dimensions, agent.config.cost_discount, options.seed, device)

    def _decide(self, state: Tensor, account: Tensor, lanes: Tensor) -> Decision:
        timestep = account[:, -1].long()
        state = self._units.state(state)
        action = self._agent.choose(state, timestep, self._options, self._generator)
        return Decision(self._units.raw_action(action))


@cached_on_data
def _typical_step(data: RelabelledStore) -> dict[str, Tensor]:
    """The root mean square of rewards [1] and of costs [C]."""
    reward = data.store.gather("reward")[:, None]
    return {"reward": _root_mean_square(reward), "cost": _root_mean_square(data.cost)}


def _root_mean_square(values: np.ndarray) -> Tensor:
    """[steps, k] -> [k]; a column of zeros has unit 1."""
    size = np.sqrt(np.square(values, dtype=np.float64).mean(0))
    return torch.from_numpy(np.where(size > 0, size, 1.0)).float()


@cached_on_data
def mean_cost_to_go(data: RelabelledStore) -> Tensor:
    """[C] of a step of the data, counted from itself on; undiscounted, of a whole horizon."""
    steps = np.arange(data.store.num_steps) - np.repeat(data.store.starts, data.store.lengths)
    mean = (data.cost_to_go / data.cost_discount ** steps[:, None]).mean(0)
    left = 1 - steps / dimensions_of(data).horizon if data.cost_discount == 1 else np.ones(1)
    return torch.from_numpy(mean / left.mean()).float()
