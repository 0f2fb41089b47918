"""Layers that hold the weights of M models: block m of the rows meets the weights of model m."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from saformer.core.batch import KINDS, Dimensions
from saformer.core.gaussian import GaussianHead
from saformer.core.normalizer import Normalizer

LOG_DEVIATION_OF_NOTHING = -0.5 * math.log(2 * math.pi)
"""Its Gaussian has log-likelihood 0 at its mean: padded actions add nothing to a likelihood."""


class PackedLinear(nn.Module):
    """M linear maps: weights [M, out, in], biases [M, out]. Outputs that a model lacks are `fill`,
    and learn nothing. With `is_gaussian`, outputs are means first, then log-deviations."""

    def __init__(self, parts: Sequence[nn.Linear], *, is_gaussian: bool) -> None:
        super().__init__()
        inputs = max(part.in_features for part in parts)
        outputs = max(part.out_features for part in parts)
        weight = parts[0].weight.new_zeros(len(parts), outputs, inputs)
        bias = weight.new_zeros(len(parts), outputs)
        used = torch.zeros_like(bias, dtype=torch.bool)
        for index, part in enumerate(parts):
            columns = torch.arange(part.out_features)  # where its outputs stand among all
            if is_gaussian:
                columns[part.out_features // 2 :] += (outputs - part.out_features) // 2
            weight[index, columns, : part.in_features] = part.weight.detach()
            bias[index, columns] = part.bias.detach()
            used[index, columns] = True
        fill = weight.new_zeros(outputs)
        if is_gaussian:
            fill[outputs // 2 :] = LOG_DEVIATION_OF_NOTHING
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.register_buffer("used", used[:, None])
        self.register_buffer("fill", fill)
        self._is_padded = not bool(used.all())

    def forward(self, x: Tensor) -> Tensor:
        """[M * B, ..., in] -> [M * B, ..., out]"""
        rows = x.reshape(len(self.weight), -1, x.shape[-1])
        # baddbmm would copy the bias first
        mapped = torch.bmm(rows, self.weight.transpose(1, 2)) + self.bias[:, None]
        return self.filled(mapped.reshape(*x.shape[:-1], -1))

    def filled(self, mapped: Tensor) -> Tensor:
        """[M * B, ..., out], with `fill` where a model has no output."""
        if not self._is_padded:
            return mapped
        rows = mapped.reshape(len(self.weight), -1, mapped.shape[-1])
        filled = torch.where(self.get_buffer("used"), rows, self.get_buffer("fill"))
        return filled.reshape(mapped.shape)


class PackedLayerNorm(nn.Module):
    """M layer norms."""

    def __init__(self, layers: Sequence[nn.LayerNorm]) -> None:
        super().__init__()
        self.weight, self.bias = stacked(layers, "weight"), stacked(layers, "bias")
        self._shape, self._eps = layers[0].normalized_shape, layers[0].eps

    def forward(self, x: Tensor) -> Tensor:
        """[M * B, ..., E] -> the same."""
        normed = nn.functional.layer_norm(x, self._shape, eps=self._eps)
        rows = normed.reshape(len(self.weight), -1, x.shape[-1])
        return (rows * self.weight[:, None] + self.bias[:, None]).reshape(x.shape)


class PackedEmbedding(nn.Module):
    """M tables."""

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
        tables = self.weight.reshape(models * size, width)
        return nn.functional.embedding(rows, tables).reshape(*index.shape, width)


class PackedNormalizer(Normalizer):
    """M models' units."""

    def __init__(self, parts: Sequence[Normalizer], dimensions: Dimensions) -> None:
        super().__init__(dimensions)
        for kind in KINDS:
            shape = (dimensions.of(kind),)
            centres = [_padded(part.centre(kind), shape) for part in parts]
            scales = [_padded(part.scale(kind), shape, 1.0) for part in parts]
            self.register_buffer(f"{kind}_centre", torch.stack(centres))
            self.register_buffer(f"{kind}_scale", torch.stack(scales))

    def normalize(self, kind: str, raw: Tensor) -> Tensor:
        """[M * B, ..., d], raw to model units."""
        rows = raw.reshape(len(self.centre(kind)), -1, raw.shape[-1])
        return ((rows - self.centre(kind)[:, None]) / self.scale(kind)[:, None]).reshape(raw.shape)


class PackedModule(nn.Module):
    """M modules with parameters of their own and no layers, such as one learnt number."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        for name, _ in parts[0].named_parameters():
            self.register_parameter(name, stacked(parts, name))
        # in a tuple, so that its parameters are not the pack's
        self._single = (copy.deepcopy(parts[0]),)

    def forward(self, *rows: Tensor) -> Tensor:
        """Each [M * B, ...] -> [M * B, ...]"""
        parameters: dict[str, Tensor] = dict(self.named_parameters())
        num_models = len(next(iter(parameters.values())))

        def call(own: dict[str, Tensor], *own_rows: Tensor) -> Any:
            return functional_call(self._single[0], own, own_rows)

        each = [part.unflatten(0, (num_models, -1)) for part in rows]
        called: Tensor = vmap(call)(parameters, *each)
        return called.flatten(0, 1)


def gaussians(model: nn.Module) -> set[str]:
    """Names of the linear maps whose outputs are means first, then log-deviations."""
    modules = model.named_modules()
    return {f"{name}.linear" for name, module in modules if isinstance(module, GaussianHead)}


def packed_layer(parts: list[Any], sizes: Dimensions, *, is_gaussian: bool) -> nn.Module | None:
    """One layer for all of these, the modules of one name; None for those that only hold others."""
    match parts[0]:
        case nn.Linear():
            return PackedLinear(parts, is_gaussian=is_gaussian)
        case nn.LayerNorm():
            return PackedLayerNorm(parts)
        case nn.Embedding():
            return PackedEmbedding(parts)
        case Normalizer():
            return PackedNormalizer(parts, sizes)
    has_layers, has_parameters = list(parts[0].children()), list(parts[0].parameters())
    return PackedModule(parts) if has_parameters and not has_layers else None


def stacked(parts: Sequence[nn.Module], name: str) -> nn.Parameter:
    """[M, ...] of the parameter of this name of each."""
    return nn.Parameter(torch.stack([part.get_parameter(name).detach() for part in parts]))


def _padded(values: Tensor, shape: tuple[int, ...], fill: float = 0.0) -> Tensor:
    padded = values.new_full(shape, fill)
    padded[tuple(slice(size) for size in values.shape)] = values
    return padded
