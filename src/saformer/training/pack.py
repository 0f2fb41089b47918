"""Many runs of one architecture as one program.

Windows of all models lie in one batch, each model's behind its neighbour's; only the layers that
hold weights know where one model ends and the next begins. Models are built by themselves and then
stacked; states and actions of fewer columns are padded with zeros, and what is padded neither
learns nor counts. So the code of a single model serves a pack as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from saformer.agents.agent import Agent, MovingAverage, Phase
from saformer.core.batch import Dimensions
from saformer.core.normalizer import Normalizer
from saformer.training.packed_layers import gaussians, packed_layer


@dataclass(frozen=True)
class Slot:
    """Where a pack keeps one parameter of one of its models."""

    parameter: nn.Parameter
    """the pack's: [M, ...]"""
    part: Callable[[Tensor], Tensor]
    """of a tensor of that shape (the parameter, an optimiser's averages), a view of what belongs to
    the model"""

    def read(self, stacked: Tensor, shape: torch.Size) -> Tensor:
        """The model's own part."""
        return self.part(stacked).reshape(shape)

    def write(self, stacked: Tensor, value: Tensor) -> None:
        """Put it back."""
        part = self.part(stacked)
        part.copy_(value.reshape(part.shape))


class PackedAgent:
    """Agents of one kind and one architecture, trained as one. Their own weights are set by
    `unpack`.

    With `fused`, transformer blocks are computed by the kernels: bfloat16, on a GPU.
    """

    def __init__(
        self, agents: Sequence[Agent], *, seeds: Sequence[int] | None = None, fused: bool = False
    ) -> None:
        configs = {repr(but_for_the_limit(agent.config)) for agent in agents}
        if len({type(agent) for agent in agents}) != 1 or len(configs) != 1:
            raise ValueError("only agents of one kind and one configuration can be packed")
        self.agents = tuple(agents)
        self.num_models = len(agents)
        self.dimensions = largest([agent.dimensions for agent in agents])
        self.model = _pack([agent.model for agent in agents], self.dimensions)
        device = next(self.model.parameters()).device
        self._seeds = torch.tensor(seeds or [0] * len(agents), device=device)
        self._moved: dict[str, tuple[str, slice]] = {}
        if fused:
            from saformer.kernels.training import fuse  # Triton comes with PyTorch for GPUs

            self._moved = fuse(self.model)
        self.model.register_buffer("updates", torch.zeros((), dtype=torch.int64, device=device))
        # an agent's losses read its model: this one reads all of them
        self._as_one = copy.copy(agents[0])
        vars(self._as_one)["model"] = self.model

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The agents' own, of all models at once."""
        return self._as_one.phases

    @property
    def averages(self) -> tuple[MovingAverage, ...]:
        """The agents' own, of all models at once."""
        return self._as_one.averages

    def begin_update(self) -> None:
        """What fused transformers drop is a function of the run's seed and of the update."""
        if self._moved:
            from saformer.kernels.launch import draw_salts

            draw_salts(
                self._seeds, self.model.get_buffer("updates"), self.model.get_buffer("salts")
            )

    def slot(self, number: int, name: str) -> Slot:
        """Where the parameter of this name of an agent's model is kept."""
        shape = self.agents[number].model.get_parameter(name).shape
        if name in self._moved:
            owner, part = self._moved[name]
            return Slot(
                self.model.get_parameter(owner), lambda stacked: stacked[number][part].view(shape)
            )
        parameter = self.model.get_parameter(name)
        if name.rpartition(".")[0] in gaussians(self.agents[number].model):
            return Slot(
                parameter, lambda stacked: stacked[number].unflatten(0, (2, -1))[:, : shape[0] // 2]
            )
        return Slot(
            parameter, lambda stacked: stacked[number][tuple(slice(size) for size in shape)]
        )

    @torch.no_grad()
    def unpack(self, *numbers: int) -> None:
        """Give these agents, by default all, what they have learnt."""
        for number in numbers or range(self.num_models):
            for name, parameter in self.agents[number].model.named_parameters():
                slot = self.slot(number, name)
                parameter.copy_(slot.read(slot.parameter, parameter.shape))


def but_for_the_limit(config: Any) -> Any:
    """A config without the one limit that an agent is trained for: it lies in the data or in a
    buffer, so that runs for different limits can be trained together."""
    return replace(config, limit=()) if getattr(config, "limit", ()) else config


def largest(parts: Sequence[Dimensions]) -> Dimensions:
    """Sizes that hold all of these; costs must agree in number."""
    if len({part.constraints for part in parts}) != 1:
        raise ValueError(
            f"packed runs must have as many constraints, got {[part.constraints for part in parts]}"
        )
    return Dimensions(
        *(
            max(getattr(part, name) for part in parts)
            for name in ("state", "action", "constraints", "horizon")
        )
    )


def _pack(models: Sequence[nn.Module], dimensions: Dimensions) -> nn.Module:
    packed, heads = copy.deepcopy(models[0]), gaussians(models[0])
    for name, module in models[0].named_modules():
        if isinstance(module, nn.Linear | nn.LayerNorm | nn.Embedding | Normalizer):
            owner, _, own_name = name.rpartition(".")
            parts: list[Any] = [model.get_submodule(name) for model in models]
            packed.get_submodule(owner).add_module(
                own_name, packed_layer(parts, dimensions, is_gaussian=name in heads)
            )
    return packed
