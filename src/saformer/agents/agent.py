"""What every trainable method offers."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypeVar

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


class Agent(ABC):
    """Can be trained by `fit`, saved with its run, and asked for a policy."""

    name: str
    """on the command line"""
    mean_settings: tuple[tuple[str, Any], ...] = ()
    """options under which its policy acts by its mean"""
    config: Any
    """a frozen dataclass with `cost_discount`; with `limit` if it is trained for one limit"""
    model: nn.Module
    """everything that a checkpoint must hold"""

    def __init__(self, dimensions: Dimensions, config: Any) -> None:
        self.dimensions = dimensions
        self.config = config

    @classmethod
    def create(cls, data: RelabelledStore, config: Any, *, seed: int) -> Self:
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

    @abstractmethod
    def sampler(self, data: RelabelledStore, device: torch.device | str = "cpu") -> Sampler:
        """Draws what its phases learn from."""

    @property
    @abstractmethod
    def phases(self) -> tuple[Phase, ...]:
        """What one update optimises, in order."""

    @property
    def averages(self) -> tuple[MovingAverage, ...]:
        """What follows the optimised parameters: target networks."""
        return ()

    def finish(self, data: RelabelledStore) -> None:  # noqa: B027 - most have nothing to fit
        """Fit what its way of acting needs besides the trained weights: the last stage of training.
        What is fitted is part of the model."""

    @abstractmethod
    def options(self, *, shielded: bool = False) -> Any:
        """How its policy usually acts, by itself or within a shield: a frozen dataclass, whose type
        names the rule (`Kind.rules`)."""

    def mean_options(self, options: Any = None) -> Any:
        """The same options (the usual ones) changed so that it acts by its mean."""
        return replace(options or self.options(), **dict(self.mean_settings))

    @abstractmethod
    def policy(self, options: Any = None) -> Policy:
        """What has been learnt, ready to act, by the rule that the options belong to."""


SomeAgent = TypeVar("SomeAgent", bound=Agent)


def with_model(agent: SomeAgent, model: nn.Module) -> SomeAgent:
    """The same agent around another model, which its phases and averages then are of."""
    other = copy.copy(agent)
    other.model = model
    return other
