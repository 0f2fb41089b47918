"""How a step becomes tokens: which kinds, in which order, and where each network finds them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saformer.core.batch import Dimensions


@dataclass(frozen=True)
class Layout:
    """The order of tokens within one step, declared once."""

    kinds: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.kinds)

    def at(self, kind: str, outputs: Tensor) -> Tensor:
        """Outputs at the tokens of one kind: [B, K * len, E] -> [B, K, E]."""
        return outputs[:, self.kinds.index(kind) :: len(self)]

    def before(self, kind: str) -> tuple[str, ...]:
        """The kinds of a step up to this one, without it."""
        return self.kinds[: self.kinds.index(kind)]


class TokenEmbedding(nn.Module):
    """Lifts tokens of every kind to the trunk's width and marks each with its time step."""

    def __init__(self, layout: Layout, dimensions: Dimensions, width: int) -> None:
        super().__init__()
        self.layout = layout
        self.horizon = dimensions.horizon
        linears = {kind: nn.Linear(dimensions.of(kind), width) for kind in layout.kinds}
        self.of_kind = nn.ModuleDict(linears)
        self.of_time = nn.Embedding(dimensions.horizon, width)
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.of_time.weight, std=0.02)

    def embed(self, values: Mapping[str, Tensor], timestep: Tensor) -> Tensor:
        """Steps of these kinds, interleaved: {kind: [B, K, _]}, [B, K] -> [B, K * kinds, E]."""
        time = self.of_time(timestep.clamp(max=self.horizon - 1))
        embedded = [self.of_kind[kind](value) + time for kind, value in values.items()]
        return self.norm(torch.stack(embedded, dim=2)).flatten(1, 2)  # type: ignore[no-any-return]
