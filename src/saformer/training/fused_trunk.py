"""A pack's transformer whose blocks are fused: the same weights in fewer, larger tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from saformer.core.tokens import TokenEmbedding
from saformer.core.transformer import Block, Trunk
from saformer.training.fused import block as fused_block
from saformer.training.fused import dropout
from saformer.training.kernels import VECTORS, WEIGHTS

NAMES = {
    "query_key_value": "attention.query_key_value",
    "output": "attention.output",
    "up": "perceptron.0",
    "down": "perceptron.2",
}
NORMS = {
    "attention_gain": "attention_norm.weight",
    "attention_shift": "attention_norm.bias",
    "perceptron_gain": "perceptron_norm.weight",
    "perceptron_shift": "perceptron_norm.bias",
}
PLACES_PER_BLOCK = 3
"""Where a block drops: after attention, after the perceptron, within attention."""


class FusedBlock(nn.Module):
    """M blocks; matrices in one tensor, biases and norms in another."""

    def __init__(self, packed: Block) -> None:
        super().__init__()
        self.heads, self.rate, self.eps = packed.attention.heads, packed.attention.dropout, 1e-5
        parts = dict(packed.named_parameters())
        self._sizes = {name: part[0].numel() for name, part in parts.items()}
        self.weights = _joined([parts[f"{NAMES[name]}.weight"] for name in WEIGHTS])
        self.vectors = _joined([parts[_vector_name(name)] for name in VECTORS])

    def forward(self, x: Tensor, salts: Tensor) -> Tensor:
        """[M * B, T, W], [3, M] -> [M * B, T, W]"""
        rounded = self.weights.detach().bfloat16()
        rate = self.rate if self.training else 0.0
        out: Tensor = fused_block(x, self.weights, rounded, self.vectors, salts, self.heads, rate, self.eps)[0]
        return out

    def places(self) -> Iterator[tuple[str, str, slice]]:
        """Where each parameter of a plain block lies: its name, our tensor's name, its place in a model's row."""
        names = {"weights": [f"{NAMES[name]}.weight" for name in WEIGHTS], "vectors": [*map(_vector_name, VECTORS)]}
        for owner, parts in names.items():
            begin = 0
            for name in parts:
                yield name, owner, slice(begin, begin + self._sizes[name])
                begin += self._sizes[name]


class FusedTrunk(nn.Module):
    """What a pack's `Trunk` becomes. Dropout is a function of `salts` [places, M], which change with every update."""

    def __init__(self, packed: Trunk) -> None:
        super().__init__()
        self.rate, self.norm = packed.drop.p, packed.norm
        self.blocks = nn.ModuleList(FusedBlock(part) for part in packed.blocks if isinstance(part, Block))
        num_models, num_places = len(self.norm.weight), 1 + PLACES_PER_BLOCK * len(self.blocks)
        device = self.norm.weight.device
        self.register_buffer("salts", torch.zeros(num_places, num_models, dtype=torch.int32, device=device))

    def places(self) -> Iterator[tuple[str, str, slice]]:
        """Where each parameter of a plain trunk's blocks lies: its name, our tensor's, its place in a model's row."""
        for number, part in enumerate(self.blocks):
            assert isinstance(part, FusedBlock)
            for name, owner, place in part.places():
                yield f"blocks.{number}.{name}", f"blocks.{number}.{owner}", place

    def forward(self, tokens: Tensor) -> Tensor:
        """[M * B, T, W] -> [M * B, T, W]"""
        salts = self.get_buffer("salts")
        x = dropout(tokens, salts[0], self.rate) if self.training and self.rate else tokens
        for number, part in enumerate(self.blocks):
            first = 1 + PLACES_PER_BLOCK * number
            x = part(x, salts[first : first + PLACES_PER_BLOCK])
        normed: Tensor = self.norm(x)
        return normed


class FusedEmbedding(nn.Module):
    """What a pack's `TokenEmbedding` becomes: each kind is normed by itself, so that nothing is interleaved twice."""

    def __init__(self, packed: TokenEmbedding) -> None:
        super().__init__()
        self.layout, self.horizon = packed.layout, packed.horizon
        self.of_kind, self.of_time, self.norm = packed.of_kind, packed.of_time, packed.norm

    def embed(self, values: Mapping[str, Tensor], timestep: Tensor) -> Tensor:
        """As `TokenEmbedding.embed`: {kind: [M * B, K, _]}, [M * B, K] -> [M * B, K * len(values), W]."""
        time = self.of_time(timestep.clamp(max=self.horizon - 1))
        tokens = [self.norm(self.of_kind[kind](value) + time) for kind, value in values.items()]
        return torch.stack(tokens, dim=2).flatten(1, 2)


def _joined(parts: list[nn.Parameter]) -> nn.Parameter:
    return nn.Parameter(torch.cat([part.detach().flatten(1) for part in parts], 1))


def _vector_name(name: str) -> str:
    return NORMS.get(name) or f"{NAMES[name]}.bias"
