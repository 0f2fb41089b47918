"""Many runs of one agent of single steps as one program, by vmap over their stacked weights.

Such agents take quantiles, weights and signs over their batch, and keep limits and multipliers
beside their layers, so that rows of several models cannot lie behind each other as windows do
(`training.packs.pack`). Nor do they attend to anything, for which vmap has no fast kernels.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from saformer.agents.agent import Agent
from saformer.core.objectives import PerSample
from saformer.data.transitions import PackedTransitions
from saformer.training.packs.layers import stacked
from saformer.training.packs.learner import Batches, Generators, Learner, Samplers, Slot
from saformer.training.packs.pack import but_for_the_limit

Terms = Callable[[Any], dict[str, PerSample]]


class StackedAgent(Learner):
    """Agents of one kind, one configuration and one size, each with a limit of its own, as one.

    What a loss draws (dropout, noise) differs from model to model and from what it would be alone.
    """

    def __init__(self, agents: Sequence[Agent]) -> None:
        kinds = {(type(a), repr(but_for_the_limit(a.config)), a.dimensions) for a in agents}
        if len(kinds) != 1:
            shared = "one kind, one configuration and one size"
            raise ValueError(f"only agents of {shared} can be stacked")
        super().__init__(agents, _stacked([agent.model for agent in agents]))
        self.phases = tuple(replace(p, terms=self._of_all(p.terms)) for p in self.phases)

    def batches(self, samplers: Samplers, size: int, generators: Generators, first: int) -> Batches:
        steps = PackedTransitions(samplers, self.agents[0].dimensions)
        return Batches(steps.gathered, lambda: steps.drawn(size, generators))

    def slot(self, index: int, name: str) -> Slot:
        return Slot(self.model.get_parameter(name), lambda tensor: tensor[index])

    def _of_all(self, terms: Terms) -> Terms:
        """The same terms, of a batch [M * B, ...]."""
        single, num_models = _Terms(self.model, terms), self.num_models

        def of_one(tensors: dict[str, Tensor], kind: type, columns: dict[str, Tensor]) -> Any:
            return functional_call(single, tensors, (kind(**columns),))

        def of_all(batch: Any) -> dict[str, PerSample]:
            rows = vars(batch).items()
            columns = {name: value.unflatten(0, (num_models, -1)) for name, value in rows}
            tensors = {**dict(single.named_parameters()), **dict(single.named_buffers())}
            mapped = vmap(of_one, in_dims=(0, None, 0), randomness="different")
            losses, watched = mapped(tensors, type(batch), columns)
            figures = {n: PerSample(means, 1, watched=True) for n, means in watched.items()}
            return {name: PerSample(means, 1) for name, means in losses.items()} | figures

        return of_all


class _Terms(nn.Module):
    """Terms that read a model, as a module that holds it: vmap maps tensors alone, and puts each
    model's weights in the place of the stacked ones while it calls this."""

    def __init__(self, model: nn.Module, terms: Terms) -> None:
        super().__init__()
        self.model, self._terms = model, terms

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
            learns = parameter.requires_grad
            module.register_parameter(own, stacked(parts, own).requires_grad_(learns))
        for own, _ in module.named_buffers(recurse=False):
            module.register_buffer(own, torch.stack([part.get_buffer(own) for part in parts]))
    return whole
