"""The only place where quantities are scaled: raw units outside, model units inside."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from saformer.core.batch import KINDS, Dimensions, WindowBatch


class Normalizer(nn.Module):
    """Maps each kind of token to model units and back: model = (raw - centre) / scale.

    The statistics are buffers, so they travel with the weights; they are set once, before training,
    and stay frozen. A column that never changes has scale 1."""

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
                given = f"got {centre}, {scale}"
                raise ValueError(f"{kind} needs finite statistics, a positive scale: {given}")
            self.centre(kind).copy_(centre)
            self.scale(kind).copy_(scale)

    def centre(self, kind: str) -> Tensor:
        return self._buffers[f"{kind}_centre"]  # type: ignore[return-value]  # get_buffer is slow

    def scale(self, kind: str) -> Tensor:
        return self._buffers[f"{kind}_scale"]  # type: ignore[return-value]

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
