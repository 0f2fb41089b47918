"""What every trainable method offers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import nn

from saformer.core.batch import Dimensions
from saformer.core.objectives import PerSample
from saformer.core.policy import Policy
from saformer.data.relabel import RelabelledStore


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
        """A frozen dataclass."""

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

    def finish(self, data: RelabelledStore) -> None:
        """Fit what its way of acting needs besides the trained weights: the last stage of training.
        What is fitted is part of the model."""

    @property
    def default_options(self) -> Any:
        """`options()`."""

    def options(self, *, shielded: bool = False) -> Any:
        """How its policy usually acts, by itself or within a shield: a frozen dataclass, whose type
        names the rule (`Kind.rules`)."""

    def mean_options(self, options: Any = None) -> Any:
        """The same options (the usual ones) changed so that it acts by its mean."""

    def policy(self, options: Any = None) -> Policy:
        """What has been learnt, ready to act, by the rule that the options belong to."""


class ActsOneWay:
    """For agents of one rule, with nothing to fit once they are trained."""

    means: tuple[tuple[str, Any], ...] = ()
    """options under which they act by their mean"""

    @property
    def default_options(self) -> Any:
        raise NotImplementedError

    def finish(self, data: RelabelledStore) -> None:
        pass

    def options(self, *, shielded: bool = False) -> Any:
        return self.default_options

    def mean_options(self, options: Any = None) -> Any:
        return replace(options or self.default_options, **dict(self.means))
