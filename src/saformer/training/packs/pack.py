"""Many runs of one architecture as one program.

Windows of all models lie in one batch, and only the layers that hold weights know where one model
ends and the next begins. States and actions of fewer columns are padded with zeros, and what is
padded neither learns nor counts. So the code of a single model serves a pack as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

import torch
from torch import Tensor, nn

from saformer.agents.agent import Agent
from saformer.core.batch import Dimensions
from saformer.data.sampling import PackedSampler
from saformer.training.packs.layers import gaussians, packed_layer, stacked
from saformer.training.packs.learner import Batches, Generators, Learner, Samplers, Slot


class PackedAgent(Learner):
    """Agents of one kind and one architecture, trained as one.

    With `fused`, transformer blocks are computed by the kernels: bfloat16, on a GPU.
    """

    def __init__(
        self, agents: Sequence[Agent], *, seeds: Sequence[int] | None = None, fused: bool = False
    ) -> None:
        kinds = {(type(agent), repr(but_for_the_limit(agent.config))) for agent in agents}
        if len(kinds) != 1:
            raise ValueError("only agents of one kind and one configuration can be packed")
        self.dimensions = largest([agent.dimensions for agent in agents])
        model = _pack([agent.model for agent in agents], self.dimensions)
        device = next(model.parameters()).device
        self._seeds = torch.tensor(seeds or [0] * len(agents), device=device)
        self._moved: dict[str, tuple[str, slice]] = {}
        if fused:
            from saformer.kernels.training import fuse  # Triton comes with PyTorch for GPUs

            self._moved = fuse(model)
        model.register_buffer("updates", torch.zeros((), dtype=torch.int64, device=device))
        super().__init__(agents, model)

    def batches(self, samplers: Samplers, size: int, generators: Generators, first: int) -> Batches:
        self.model.get_buffer("updates").fill_(first)
        windows = PackedSampler(samplers, self.dimensions)

        def draw() -> tuple[Tensor, ...]:
            return (windows.drawn(size, generators),) if windows.draws_apart else ()

        def gather(*drawn: Tensor) -> Any:
            self.begin_update()
            return windows.gathered(*drawn) if drawn else windows.sample(size, generators)

        return Batches(gather, draw)

    def begin_update(self) -> None:
        """Draw the salts of fused dropout: a function of the run's seed and of the update."""
        if self._moved:
            from saformer.kernels.parts import draw_salts

            updates, salts = self.model.get_buffer("updates"), self.model.get_buffer("salts")
            draw_salts(self._seeds, updates, salts)

    def slot(self, index: int, name: str) -> Slot:
        shape = self.agents[index].model.get_parameter(name).shape
        if name in self._moved:
            owner, span = self._moved[name]
            parameter = self.model.get_parameter(owner)
            return Slot(parameter, lambda tensor: tensor[index][span].view(shape))
        parameter = self.model.get_parameter(name)
        if name.rpartition(".")[0] in gaussians(self.agents[index].model):
            half = shape[0] // 2
            return Slot(parameter, lambda tensor: tensor[index].unflatten(0, (2, -1))[:, :half])
        own = tuple(slice(size) for size in shape)
        return Slot(parameter, lambda tensor: tensor[index][own])


def but_for_the_limit(config: Any) -> Any:
    """A config without its limit, which lies in the data or in a buffer: limits can be packed."""
    return replace(config, limit=()) if getattr(config, "limit", ()) else config


def largest(parts: Sequence[Dimensions]) -> Dimensions:
    """Sizes that hold all of these; costs must agree in number."""
    constraints = [part.constraints for part in parts]
    if len(set(constraints)) != 1:
        raise ValueError(f"packed runs must have as many constraints, got {constraints}")
    return Dimensions(*map(max, zip(*map(astuple, parts), strict=True)))


def _pack(models: Sequence[nn.Module], dimensions: Dimensions) -> nn.Module:
    packed, heads = copy.deepcopy(models[0]), gaussians(models[0])
    for name, module in models[0].named_modules():
        parts: list[Any] = [model.get_submodule(name) for model in models]
        layer = packed_layer(parts, dimensions, is_gaussian=name in heads)
        if layer is not None:
            owner, _, own_name = name.rpartition(".")
            packed.get_submodule(owner).add_module(own_name, layer)
        else:
            for own_name, _ in module.named_parameters(recurse=False):
                packed.get_submodule(name).register_parameter(own_name, stacked(parts, own_name))
    return packed
