"""Many runs of one agent of single steps as one program, by vmap over their stacked weights.

Such agents take quantiles, weights and signs over their batch, and keep limits and multipliers
beside their layers, so that rows of several models cannot lie behind each other as windows do
(`training.pack`). Nor do they attend to anything, for which vmap has no fast kernels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from saformer.agents.agent import Agent, MovingAverage, Phase
from saformer.core.objectives import PerSample
from saformer.training.packs.pack import Slot, but_for_the_limit

Terms = Callable[[Any], dict[str, PerSample]]


class StackedAgent:
    """Agents of one kind, one configuration and one size, each with a limit of its own, trained as
    one.

    Their own weights are set by `unpack`. What a loss draws (dropout, noise) differs from model to
    model and from what it would be alone.
    """

    def __init__(self, agents: Sequence[Agent]) -> None:
        kinds = {
            (type(agent), repr(but_for_the_limit(agent.config)), agent.dimensions)
            for agent in agents
        }
        if len(kinds) != 1:
            raise ValueError(
                "only agents of one kind, one configuration and one size can be stacked"
            )
        self.agents = tuple(agents)
        self.num_models = len(agents)
        self.dimensions = agents[0].dimensions
        self.model = _stacked([agent.model for agent in agents])
        # an agent's losses read its model: while they are called, this one holds the weights of
        # each in turn
        self._as_one = copy.copy(agents[0])
        vars(self._as_one)["model"] = self.model

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The agents' own, of all models at once."""
        own = self._as_one.phases
        return tuple(
            Phase(p.name, p.parameters, self._of_all(p.terms), p.learning_rate, p.weight_decay)
            for p in own
        )

    @property
    def averages(self) -> tuple[MovingAverage, ...]:
        """The agents' own, of all models at once."""
        return self._as_one.averages

    def slot(self, number: int, name: str) -> Slot:
        """Where the parameter of this name of an agent's model is kept."""
        return Slot(self.model.get_parameter(name), lambda stacked: stacked[number])

    @torch.no_grad()
    def unpack(self, *numbers: int) -> None:
        """Give these agents, by default all, what they have learnt."""
        for number in numbers or range(self.num_models):
            for name, parameter in self.agents[number].model.named_parameters():
                parameter.copy_(self.model.get_parameter(name)[number])

    def _of_all(self, terms: Terms) -> Terms:
        """The same terms of a batch [M * B, ...] that holds each model's samples behind its
        neighbour's."""
        one, num_models = _Calling(self.model, terms), self.num_models

        def of_one(tensors: dict[str, Tensor], kind: type, columns: dict[str, Tensor]) -> Any:
            return functional_call(one, tensors, (kind(**columns),))

        def of_all(batch: Any) -> dict[str, PerSample]:
            columns = {
                name: value.unflatten(0, (num_models, -1)) for name, value in vars(batch).items()
            }
            tensors = {**dict(one.named_parameters()), **dict(one.named_buffers())}
            found = vmap(of_one, in_dims=(0, None, 0), randomness="different")(
                tensors, type(batch), columns
            )
            return {
                name: PerSample(means, 1, watched=watched)
                for watched, parts in zip((False, True), found, strict=True)
                for name, means in parts.items()
            }

        return of_all


class _Calling(nn.Module):
    """Terms that read a model, as a module that holds it: what vmap can map has no objects in it,
    only tensors."""

    def __init__(self, model: nn.Module, terms: Terms) -> None:
        super().__init__()
        self.model = model
        self._terms = terms

    def forward(self, batch: Any) -> tuple[dict[str, Tensor], ...]:
        """Means by name: of what is minimised, and of what is only watched."""
        terms = self._terms(batch)
        return tuple(
            {name: term.mean() for name, term in terms.items() if term.watched is watched}
            for watched in (False, True)
        )


@torch.no_grad()
def _stacked(models: Sequence[nn.Module]) -> nn.Module:
    """A model whose every tensor has a leading axis M."""
    whole = copy.deepcopy(models[0])
    for name, module in whole.named_modules():
        parts = [model.get_submodule(name) for model in models]
        for own, parameter in module.named_parameters(recurse=False):
            stacked = torch.stack([part.get_parameter(own) for part in parts])
            module.register_parameter(
                own, nn.Parameter(stacked, requires_grad=parameter.requires_grad)
            )
        for own, _ in module.named_buffers(recurse=False):
            module.register_buffer(own, torch.stack([part.get_buffer(own) for part in parts]))
    return whole
