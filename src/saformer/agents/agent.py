"""What every trainable method offers."""

import copy
import math
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
from torch import nn

from saformer.core.batch import Dimensions
from saformer.core.objectives import PerSample
from saformer.core.policy import Policy
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import dimensions_of
from saformer.data.sources.source import Progress


class Sampler(Protocol):
    """Draws what an agent learns from: a dataclass of tensors whose first axis counts samples."""

    def sample(self, batch_size: int, generator: torch.Generator) -> Any:
        """A batch, with replacement."""


@dataclass(frozen=True)
class Phase:
    """One optimisation within an update: these parameters, this loss. The loss is the sum of the
    terms' means, but for those that are only watched.

    Every phase sees the parameters as they were before the update, and changes its own alone,
    whatever else its loss depends on."""

    name: str
    parameters: tuple[nn.Parameter, ...]
    terms: Callable[[Any], dict[str, PerSample]]
    learning_rate: float | None = None  # its own, held constant; None: the schedule of `FitConfig`
    weight_decay: float | None = None  # its own; None: that of `FitConfig`


@dataclass(frozen=True)
class MovingAverage:
    """Parameters that follow others after every update: average += rate * (followed - average)."""

    average: tuple[nn.Parameter, ...]
    followed: tuple[nn.Parameter, ...]
    rate: float


class Agent(ABC):
    """Can be trained by `fit`, saved with its run, and asked for a policy."""

    name: ClassVar[str]  # on the command line
    description: ClassVar[str]  # one line
    config_type: ClassVar[type[Any]]
    """a frozen dataclass with `cost_discount`; with `limit` if it is trained for one limit"""
    rules: ClassVar[Mapping[str, type[Any]]]  # the options of each by its name, the default first
    renamed: ClassVar[Mapping[str, str]] = {}  # options that the config has under another name
    mean_settings: ClassVar[Mapping[str, Any]] = {}  # options by which it acts by its mean
    has_one_limit: ClassVar[bool] = False  # trained for one, rather than told it when it acts
    verifies: ClassVar[bool] = False
    """whether a critic forecasts costs: then it can be judged without rollouts, and fine-tuned"""
    ignores_costs: ClassVar[bool] = False  # neither learns from them nor hears of a limit
    config: Any
    model: nn.Module  # everything that a checkpoint must hold

    def __init__(self, dimensions: Dimensions, config: Any) -> None:
        self.dimensions, self.config = dimensions, config

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

    def finish(  # noqa: B027 - most have nothing to fit
        self, data: RelabelledStore, progress: Progress | None = None
    ) -> None:
        """The last stage of training: fit what acting needs beside the weights, in the model."""

    def options(self, *, shielded: bool = False) -> Any:
        """How its policy usually acts, by itself or within a shield: of one of its `rules`."""
        return self.options_of(self.config)

    @classmethod
    def options_of(cls, config: Any, rule: str | None = None) -> Any:
        """The options of a rule as the config would have them, by default of its own rule or else
        of the first."""
        values = vars(config)
        rule = rule or values.get("rule", next(iter(cls.rules)))
        if rule not in cls.rules:
            raise ValueError(f"unknown rule {rule!r}; known are {', '.join(cls.rules)}")
        names = {each.name: each.name for each in fields(cls.rules[rule])} | dict(cls.renamed)
        own = {name: values[source] for name, source in names.items() if source in values}
        return cls.rules[rule](**own)

    @classmethod
    def rule_of(cls, options: Any) -> str:
        """The name of the rule that these options belong to."""
        return next(name for name, rule in cls.rules.items() if isinstance(options, rule))

    @staticmethod
    def changed(options: Any, changes: Mapping[str, Any]) -> Any:
        """The options with these changes, each checked to be of its field's kind."""
        hints = typing.get_type_hints(type(options))
        unknown = ", ".join(sorted(set(changes) - set(hints)))
        if unknown:
            known = ", ".join(sorted(hints))
            raise ValueError(f"{type(options).__name__} has no option {unknown}; it has {known}")
        checked = {name: _of_kind(name, value, hints[name]) for name, value in changes.items()}
        return replace(options, **checked)

    @staticmethod
    def with_may_end(options: Any, may_end: bool) -> Any:
        """The options, and whether episodes may end early where their rule reads that."""
        return replace(options, may_end=may_end) if hasattr(options, "may_end") else options

    def mean_options(self, options: Any = None) -> Any:
        """The same options (the usual ones) changed so that it acts by its mean."""
        return replace(options or self.options(), **self.mean_settings)

    def with_model(self, model: nn.Module) -> Self:
        """The same agent around another model, which its phases and averages then are of."""
        other = copy.copy(self)
        other.model = model
        return other

    @abstractmethod
    def policy(self, options: Any = None) -> Policy:
        """What has been learnt, ready to act, by the rule that the options belong to."""


def _of_kind(name: str, value: Any, hint: Any) -> Any:
    if typing.get_origin(hint) is Literal and value not in typing.get_args(hint):
        raise ValueError(f"{name} is one of {', '.join(typing.get_args(hint))}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r}")
    if hint is int and value != int(value):
        raise ValueError(f"{name} is a whole number, got {value!r}")
    return int(value) if hint is int else value
