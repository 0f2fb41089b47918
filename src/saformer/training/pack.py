"""Many runs of one architecture as one program.

Windows of all models lie in one batch, each model's behind its neighbour's; only the layers that hold weights know
where one model ends and the next begins. Models are built by themselves and then stacked; states and actions of fewer
columns are padded with zeros, and what is padded neither learns nor counts. So the code of a single model serves a pack
as it is.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from saformer.agents.agent import Agent, MovingAverage, Phase
from saformer.core.batch import Dimensions, WindowBatch
from saformer.core.gaussian import GaussianHead
from saformer.core.normalizer import KINDS, Normalizer

LOG_DEVIATION_OF_NOTHING = -0.5 * math.log(2 * math.pi)
"""A Gaussian of this log-deviation has log-likelihood 0 at its mean: padded actions add nothing to a likelihood."""


class PackedLinear(nn.Module):
    """M linear maps, one for each M-th of the rows. Outputs that a model lacks are `fill`, and learn nothing."""

    def __init__(self, weight: Tensor, bias: Tensor, used: Tensor, fill: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)  # [M, out, in], [M, out]
        self.register_buffer("used", used[:, None])
        self.register_buffer("fill", fill)
        self._is_padded = not bool(used.all())

    def forward(self, x: Tensor) -> Tensor:
        """[M * B, ..., in] -> [M * B, ..., out]"""
        rows = x.reshape(len(self.weight), -1, x.shape[-1])
        mapped = torch.baddbmm(self.bias[:, None], rows, self.weight.transpose(1, 2))
        if self._is_padded:
            mapped = torch.where(self.get_buffer("used"), mapped, self.get_buffer("fill"))
        return mapped.reshape(*x.shape[:-1], -1)


class PackedLayerNorm(nn.Module):
    """M layer norms, one for each M-th of the rows."""

    def __init__(self, layers: Sequence[nn.LayerNorm]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([layer.weight.detach() for layer in layers]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach() for layer in layers]))
        self._shape, self._eps = layers[0].normalized_shape, layers[0].eps

    def forward(self, x: Tensor) -> Tensor:
        """[M * B, ..., E] -> the same."""
        normed = nn.functional.layer_norm(x, self._shape, eps=self._eps)
        rows = normed.reshape(len(self.weight), -1, x.shape[-1])
        return (rows * self.weight[:, None] + self.bias[:, None]).reshape(x.shape)


class PackedEmbedding(nn.Module):
    """M tables, one for each M-th of the rows."""

    def __init__(self, layers: Sequence[nn.Embedding]) -> None:
        super().__init__()
        size = max(layer.num_embeddings for layer in layers)
        tables = [_padded(layer.weight.detach(), (size, layer.embedding_dim)) for layer in layers]
        self.weight = nn.Parameter(torch.stack(tables))

    def forward(self, index: Tensor) -> Tensor:
        """[M * B, ...] -> [M * B, ..., E]"""
        models, size, width = self.weight.shape
        first = size * torch.arange(models, device=index.device)
        rows = index.reshape(models, -1) + first[:, None]
        return nn.functional.embedding(rows, self.weight.reshape(models * size, width)).reshape(*index.shape, width)


class PackedNormalizer(Normalizer):
    """M models' units, one for each M-th of the rows."""

    def __init__(self, parts: Sequence[Normalizer], dimensions: Dimensions) -> None:
        super().__init__(dimensions)
        for kind in KINDS:
            for name, of_nothing in (("centre", 0.0), ("scale", 1.0)):
                rows = [_padded(getattr(part, name)(kind), (dimensions.of(kind),), of_nothing) for part in parts]
                self.register_buffer(f"{kind}_{name}", torch.stack(rows))

    def normalize(self, kind: str, raw: Tensor) -> Tensor:
        """[M * B, ..., d], raw to model units."""
        rows = raw.reshape(len(self.centre(kind)), -1, raw.shape[-1])
        return ((rows - self.centre(kind)[:, None]) / self.scale(kind)[:, None]).reshape(raw.shape)


class PackedAgent:
    """Agents of one kind and one architecture, trained as one. Their own weights are set by `unpack`."""

    def __init__(self, agents: Sequence[Agent]) -> None:
        if len({type(agent) for agent in agents}) != 1 or len({repr(agent.config) for agent in agents}) != 1:
            raise ValueError("only agents of one kind and one configuration can be packed")
        self.agents = tuple(agents)
        self.num_models = len(agents)
        self.dimensions = largest([agent.dimensions for agent in agents])
        self.model = _pack([agent.model for agent in agents], self.dimensions)
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

    @torch.no_grad()
    def unpack(self) -> None:
        """Give every agent what it has learnt."""
        for number, agent in enumerate(self.agents):
            for name, parameter in agent.model.named_parameters():
                stacked = self.model.get_parameter(name)[number]
                is_gaussian = name.rpartition(".")[0] in _gaussians(agent.model)
                parameter.copy_(_own(stacked, parameter.shape, is_gaussian=is_gaussian))


def largest(parts: Sequence[Dimensions]) -> Dimensions:
    """Sizes that hold all of these; costs must agree in number."""
    if len({part.constraints for part in parts}) != 1:
        raise ValueError(f"packed runs must have as many constraints, got {[part.constraints for part in parts]}")
    return Dimensions(
        *(max(getattr(part, name) for part in parts) for name in ("state", "action", "constraints", "horizon"))
    )


def joined(batches: Sequence[WindowBatch], dimensions: Dimensions) -> WindowBatch:
    """All models' windows in one batch, states and actions padded with zeros."""

    def column(name: str) -> Tensor:
        parts = [getattr(batch, name) for batch in batches]
        if name in ("state", "action"):
            width = dimensions.of(name)
            parts = [nn.functional.pad(part, (0, width - part.shape[-1])) for part in parts]
        return torch.cat(parts)

    return WindowBatch(**{name: column(name) for name in vars(batches[0])})


def _pack(models: Sequence[nn.Module], dimensions: Dimensions) -> nn.Module:
    packed, gaussians = copy.deepcopy(models[0]), _gaussians(models[0])
    for name, module in models[0].named_modules():
        if isinstance(module, nn.Linear | nn.LayerNorm | nn.Embedding | Normalizer):
            owner, _, own_name = name.rpartition(".")
            parts: list[Any] = [model.get_submodule(name) for model in models]
            packed.get_submodule(owner).add_module(own_name, _packed(parts, dimensions, is_gaussian=name in gaussians))
    return packed


def _gaussians(model: nn.Module) -> set[str]:
    """Names of the linear maps whose outputs are means first, then log-deviations."""
    return {f"{name}.linear" for name, module in model.named_modules() if isinstance(module, GaussianHead)}


def _packed(parts: list[Any], dimensions: Dimensions, *, is_gaussian: bool) -> nn.Module:
    if isinstance(parts[0], nn.LayerNorm):
        return PackedLayerNorm(parts)
    if isinstance(parts[0], nn.Embedding):
        return PackedEmbedding(parts)
    if isinstance(parts[0], Normalizer):
        return PackedNormalizer(parts, dimensions)
    return _packed_linear(parts, is_gaussian=is_gaussian)


def _packed_linear(parts: Sequence[nn.Linear], *, is_gaussian: bool) -> PackedLinear:
    inputs, outputs = max(part.in_features for part in parts), max(part.out_features for part in parts)
    weight = parts[0].weight.new_zeros(len(parts), outputs, inputs)
    bias = weight.new_zeros(len(parts), outputs)
    used = torch.zeros_like(bias, dtype=torch.bool)
    for number, part in enumerate(parts):
        places = _places(part.out_features, outputs, is_gaussian=is_gaussian)
        weight[number, places, : part.in_features] = part.weight.detach()
        bias[number, places] = part.bias.detach()
        used[number, places] = True
    fill = weight.new_zeros(outputs)
    if is_gaussian:
        fill[outputs // 2 :] = LOG_DEVIATION_OF_NOTHING
    return PackedLinear(weight, bias, used, fill)


def _places(own: int, outputs: int, *, is_gaussian: bool) -> Tensor:
    """Where a model's outputs stand among the pack's."""
    if not is_gaussian:
        return torch.arange(own)
    half = torch.arange(own // 2)
    return torch.cat([half, outputs // 2 + half])


def _own(stacked: Tensor, shape: torch.Size, *, is_gaussian: bool) -> Tensor:
    """A model's part of a padded parameter."""
    if is_gaussian:
        stacked = stacked[_places(shape[0], len(stacked), is_gaussian=True).to(stacked.device)]
    return stacked[tuple(slice(size) for size in shape)]


def _padded(values: Tensor, shape: tuple[int, ...], of_nothing: float = 0.0) -> Tensor:
    padded = values.new_full(shape, of_nothing)
    padded[tuple(slice(size) for size in values.shape)] = values
    return padded
