"""What the training loop trains: an agent by itself, or many agents as one program."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from saformer.agents.agent import Agent, MovingAverage, Phase
from saformer.data.sampling import WindowSampler
from saformer.data.transitions import TransitionSampler

Samplers = Sequence[Any]
Generators = Sequence[torch.Generator]


@dataclass(frozen=True)
class Batches:
    """The batches that updates learn from, made in two steps."""

    gather: Callable[..., Any]  # the batch of what was drawn
    draw: Callable[[], tuple[Tensor, ...]] = tuple
    """indices of samples, or nothing if `gather` draws; on a GPU drawn beside the update before"""


@dataclass(frozen=True)
class Slot:
    """Where a learner keeps one parameter of one of its models."""

    parameter: nn.Parameter  # the learner's: [M, ...] in a pack
    part: Callable[[Tensor], Tensor]
    """the model's own view of a tensor of that shape: the parameter, an optimiser's averages"""

    def read(self, stacked: Tensor, shape: torch.Size) -> Tensor:
        return self.part(stacked).reshape(shape)

    def write(self, stacked: Tensor, value: Tensor) -> None:
        part = self.part(stacked)
        part.copy_(value.reshape(part.shape))


class Learner(ABC):
    """M agents and one model that holds the weights of all; `unpack` sets the agents' own weights.

    Samples of all models lie in one batch, each model's behind its neighbour's, and parameters of a
    pack have a leading axis M.
    """

    def __init__(self, agents: Sequence[Agent], model: nn.Module) -> None:
        self.agents, self.num_models, self.model = tuple(agents), len(agents), model
        self._learnt_names = _learnt_names(agents[0])
        as_one = agents[0].with_model(model)
        self.phases: tuple[Phase, ...] = as_one.phases
        self.averages: tuple[MovingAverage, ...] = as_one.averages

    @abstractmethod
    def batches(self, samplers: Samplers, size: int, generators: Generators, first: int) -> Batches:
        """Batches of `size` samples per model, from this update on: the first."""

    @abstractmethod
    def slot(self, index: int, name: str) -> Slot:
        """Where the parameter of this name of an agent's model is kept."""

    @torch.no_grad()
    def unpack(self, *indices: int) -> None:
        """Give these agents, by default all, what they have learnt."""
        for index in indices or range(self.num_models):
            for name in self._learnt_names:
                own, slot = self.agents[index].model.get_parameter(name), self.slot(index, name)
                if slot.parameter is not own:
                    own.copy_(slot.read(slot.parameter, own.shape))


def _learnt_names(agent: Agent) -> tuple[str, ...]:
    """Of the parameters that updates change: a model holds more once its agent is finished."""
    parts = [phase.parameters for phase in agent.phases] + [a.average for a in agent.averages]
    learnt = {id(parameter) for part in parts for parameter in part}
    return tuple(n for n, value in agent.model.named_parameters() if id(value) in learnt)


class SingleAgent(Learner):
    """One agent, trained in place."""

    def __init__(self, agent: Agent) -> None:
        super().__init__([agent], agent.model)

    def batches(self, samplers: Samplers, size: int, generators: Generators, first: int) -> Batches:
        sampler, generator = samplers[0], generators[0]
        if isinstance(sampler, TransitionSampler):
            return Batches(sampler.transitions, lambda: sampler.drawn(size, generator))
        if isinstance(sampler, WindowSampler):
            return Batches(sampler.windows, lambda: (sampler.starts(size, generator),))
        return Batches(lambda: sampler.sample(size, generator))

    def slot(self, index: int, name: str) -> Slot:
        return Slot(self.model.get_parameter(name), lambda tensor: tensor)
