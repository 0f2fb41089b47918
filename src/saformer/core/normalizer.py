"""The only place where quantities are scaled: raw units outside, model units inside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from saformer.core.batch import KINDS, Dimensions, WindowBatch


class Normalizer(nn.Module):
    """Maps each kind of token to model units and back: model = (raw - centre) / scale.

    The statistics are buffers, so they travel with the weights; they are set once, before training,
    and stay frozen. A column that never changes has scale 1.
    """

    def __init__(self, dimensions: Dimensions) -> None:
        super().__init__()
        for kind in KINDS:
            self.register_buffer(f"{kind}_centre", torch.zeros(dimensions.of(kind)))
            self.register_buffer(f"{kind}_scale", torch.ones(dimensions.of(kind)))

    def set_statistics(self, statistics: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """Fix centre and scale of each kind: {"state": (centre [S], scale [S]), ...}."""
        for kind in KINDS:
            centre, scale = statistics[kind]
            if not (torch.isfinite(torch.stack([centre, scale])).all() and (scale > 0).all()):
                raise ValueError(
                    f"statistics of {kind} must be finite with a positive scale, got {centre}, "
                    f"{scale}"
                )
            self.centre(kind).copy_(centre)
            self.scale(kind).copy_(scale)

    def centre(self, kind: str) -> Tensor:
        return self.get_buffer(f"{kind}_centre")

    def scale(self, kind: str) -> Tensor:
        return self.get_buffer(f"{kind}_scale")

    def normalize(self, kind: str, raw: Tensor) -> Tensor:
        """Raw to model units."""
        return (raw - self.centre(kind)) / self.scale(kind)

    def restore(self, kind: str, model: Tensor) -> Tensor:
        """Model to raw units."""
        return model * self.scale(kind) + self.centre(kind)

    def window(self, batch: WindowBatch) -> WindowBatch:
        """The same windows in model units."""
        normalized = {kind: self.normalize(kind, getattr(batch, kind)) for kind in KINDS}
        return replace(batch, **normalized)


def mean_and_deviation(blocks: Callable[[], Iterable[Tensor]]) -> tuple[Tensor, Tensor]:
    """Centre and scale that standardise values given as blocks [n, d], which are read twice; a
    constant column keeps scale 1."""
    counts, sums, largest = zip(
        *((len(b), b.double().sum(0), b.double().abs().amax(0)) for b in blocks()), strict=True
    )
    centre = torch.stack(sums).sum(0) / sum(counts)
    squares = torch.stack([((block.double() - centre) ** 2).sum(0) for block in blocks()]).sum(0)
    deviation = (squares / sum(counts)).sqrt()
    constant = deviation <= 1e-6 * torch.stack(largest).amax(0).clamp(min=1e-30)
    return centre.float(), torch.where(constant, 1.0, deviation).float()


def centre_and_half_range(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Centre and scale that map [low, high] to [-1, 1]; an empty range keeps scale 1."""
    half_range = (high - low) / 2
    return (low + high) / 2, torch.where(half_range > 0, half_range, torch.ones_like(half_range))
