"""What every trainable method offers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from saformer.core.batch import Dimensions, WindowBatch
from saformer.core.objectives import PerSample
from saformer.core.policy import Policy


@dataclass(frozen=True)
class Phase:
    """One optimisation within an update: these parameters, this loss. The loss is the sum of the terms' means."""

    name: str
    parameters: tuple[nn.Parameter, ...]
    terms: Callable[[WindowBatch], dict[str, PerSample]]


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
    def window(self) -> int:
        """Steps per training window."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What one update optimises, in order."""

    @property
    def default_options(self) -> Any:
        """How its policy acts unless told otherwise: a frozen dataclass of the agent's own."""

    def policy(self, options: Any = None) -> Policy:
        """What has been learnt, ready to act."""
