"""Layers that hold the weights of M models: row block m of what comes in meets the weights of model
m."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from saformer.core.batch import KINDS, Dimensions
from saformer.core.gaussian import GaussianHead
from saformer.core.normalizer import Normalizer

LOG_DEVIATION_OF_NOTHING = -0.5 * math.log(2 * math.pi)
"""A Gaussian of this log-deviation has log-likelihood 0 at its mean: padded actions add nothing to
a likelihood."""


class PackedLinear(nn.Module):
    """M linear maps, one for each M-th of the rows. Outputs that a model lacks are `fill`, and
    learn nothing."""

    def __init__(self, weight: Tensor, bias: Tensor, used: Tensor, fill: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)  # [M, out, in], [M, out]
        self.register_buffer("used", used[:, None])
        self.register_buffer("fill", fill)
        self._is_padded = not bool(used.all())

    def forward(self, x: Tensor) -> Tensor:
        """[M * B, ..., in] -> [M * B, ..., out]"""
        rows = x.reshape(len(self.weight), -1, x.shape[-1])
        mapped = (
            torch.bmm(rows, self.weight.transpose(1, 2)) + self.bias[:, None]
        )  # baddbmm would copy the bias first
        return self.filled(mapped.reshape(*x.shape[:-1], -1))

    def filled(self, mapped: Tensor) -> Tensor:
        """[M * B, ..., out], with `fill` where a model has no output."""
        if not self._is_padded:
            return mapped
        rows = mapped.reshape(len(self.weight), -1, mapped.shape[-1])
        return torch.where(self.get_buffer("used"), rows, self.get_buffer("fill")).reshape(
            mapped.shape
        )


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
        return nn.functional.embedding(rows, self.weight.reshape(models * size, width)).reshape(
            *index.shape, width
        )


class PackedNormalizer(Normalizer):
    """M models' units, one for each M-th of the rows."""

    def __init__(self, parts: Sequence[Normalizer], dimensions: Dimensions) -> None:
        super().__init__(dimensions)
        for kind in KINDS:
            for name, of_nothing in (("centre", 0.0), ("scale", 1.0)):
                rows = [
                    _padded(getattr(part, name)(kind), (dimensions.of(kind),), of_nothing)
                    for part in parts
                ]
                self.register_buffer(f"{kind}_{name}", torch.stack(rows))

    def normalize(self, kind: str, raw: Tensor) -> Tensor:
        """[M * B, ..., d], raw to model units."""
        rows = raw.reshape(len(self.centre(kind)), -1, raw.shape[-1])
        return ((rows - self.centre(kind)[:, None]) / self.scale(kind)[:, None]).reshape(raw.shape)


def gaussians(model: nn.Module) -> set[str]:
    """Names of the linear maps whose outputs are means first, then log-deviations."""
    return {
        f"{name}.linear"
        for name, module in model.named_modules()
        if isinstance(module, GaussianHead)
    }


def packed_layer(parts: list[Any], dimensions: Dimensions, *, is_gaussian: bool) -> nn.Module:
    """One layer for all of these, the layers of one name."""
    if isinstance(parts[0], nn.LayerNorm):
        return PackedLayerNorm(parts)
    if isinstance(parts[0], nn.Embedding):
        return PackedEmbedding(parts)
    if isinstance(parts[0], Normalizer):
        return PackedNormalizer(parts, dimensions)
    return _packed_linear(parts, is_gaussian=is_gaussian)


def _packed_linear(parts: Sequence[nn.Linear], *, is_gaussian: bool) -> PackedLinear:
    inputs, outputs = (
        max(part.in_features for part in parts),
        max(part.out_features for part in parts),
    )
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


def _padded(values: Tensor, shape: tuple[int, ...], of_nothing: float = 0.0) -> Tensor:
    padded = values.new_full(shape, of_nothing)
    padded[tuple(slice(size) for size in values.shape)] = values
    return padded
