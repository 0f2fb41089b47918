"""What every trainable method offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import nn

from saformer.core.batch import Dimensions
from saformer.core.objectives import PerSample
from saformer.core.policy import Policy
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import dimensions_of


class Sampler(Protocol):
    """Draws what an agent learns from: a dataclass of tensors whose first axis counts samples."""

    def sample(self, batch_size: int, generator: torch.Generator) -> Any:
        """A batch, with replacement."""


@dataclass(frozen=True)
class Phase:
    """One optimisation within an update: these parameters, this loss. The loss is the sum of the
    terms' means, but for those that are only watched.

    Every phase sees the parameters as they were before the update, and changes its own alone,
    whatever else its loss depends on.
    """

    name: str
    parameters: tuple[nn.Parameter, ...]
    terms: Callable[[Any], dict[str, PerSample]]
    learning_rate: float | None = None
    """its own, held constant; None for the schedule of `FitConfig`"""
    weight_decay: float | None = None
    """its own; None for that of `FitConfig`"""


@dataclass(frozen=True)
class MovingAverage:
    """Parameters that follow others after every update: average += rate * (followed - average)."""

    average: tuple[nn.Parameter, ...]
    followed: tuple[nn.Parameter, ...]
    rate: float


class AgentConfig(Protocol):
    """A frozen dataclass. An agent that is trained for one limit also has `limit`."""

    @property
    def cost_discount(self) -> float:
        """gamma_c."""


class Agent(Protocol):
    """Can be trained by `fit`, saved with its run, and asked for a policy."""

    @property
    def name(self) -> str:
        """What it is called on the command line."""

    @property
    def dimensions(self) -> Dimensions:
        """The sizes of its task."""

    @property
    def config(self) -> Any:
        """A frozen dataclass: an `AgentConfig`."""

    @property
    def model(self) -> nn.Module:
        """Everything that a checkpoint must hold."""

    @property
    def num_models(self) -> int:
        """1: an agent is one model; a pack of them is several."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What one update optimises, in order."""

    @property
    def averages(self) -> tuple[MovingAverage, ...]:
        """What follows the optimised parameters: target networks."""

    def sampler(self, data: RelabelledStore, device: torch.device | str = "cpu") -> Sampler:
        """Draws what its phases learn from."""

    @property
    def default_options(self) -> Any:
        """How its policy acts unless told otherwise: a frozen dataclass of the agent's own."""

    def policy(self, options: Any = None) -> Policy:
        """What has been learnt, ready to act."""


Config = TypeVar("Config", bound=AgentConfig)


class AgentBase(ABC, Generic[Config]):
    """What most agents have in common: they are one model, made for one dataset by one seed."""

    num_models = 1

    def __init__(self, dimensions: Dimensions, config: Config) -> None:
        self.dimensions = dimensions
        self.config = config

    @classmethod
    def create(cls, data: RelabelledStore, config: Config, *, seed: int) -> Self:
        """A fresh agent for this data: initialised by the seed, units fixed by the data."""
        if data.cost_discount != config.cost_discount:
            counted = f"the data counts costs at {data.cost_discount}"
            raise ValueError(f"{counted}, the agent at {config.cost_discount}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            agent = cls(dimensions_of(data), config)
        agent.fix_units(data)
        return agent

    @abstractmethod
    def fix_units(self, data: RelabelledStore) -> None:
        """Set statistics and bounds from the data, once, before training."""

    @property
    def averages(self) -> tuple[MovingAverage, ...]:
        return ()
