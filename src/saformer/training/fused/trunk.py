"""A pack's transformer whose blocks are fused: the same weights in fewer, larger tensors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor, nn

from saformer.core.gaussian import GaussianHead
from saformer.core.tokens import Layout, TokenEmbedding
from saformer.core.transformer import Block, Trunk
from saformer.training.fused.block import block as fused_block
from saformer.training.fused.block_kernels import VECTORS, WEIGHTS
from saformer.training.fused.embedding import embed as fused_embed
from saformer.training.fused.heads import FEWEST_OUTPUTS
from saformer.training.fused.heads import answer as fused_answer

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
EPS = 1e-5
PLACES_PER_BLOCK = 3
"""Where a block drops: after attention, after the perceptron, within attention."""


class FusedBlock(nn.Module):
    """M blocks; matrices in one tensor, biases and norms in another."""

    def __init__(self, packed: Block) -> None:
        super().__init__()
        self.heads, self.rate = packed.attention.heads, packed.attention.dropout
        parts = dict(packed.named_parameters())
        self._sizes = {name: part[0].numel() for name, part in parts.items()}
        self.weights = _joined([parts[f"{NAMES[name]}.weight"] for name in WEIGHTS])
        self.vectors = _joined([parts[_vector_name(name)] for name in VECTORS])

    def forward(self, x: Tensor, salts: Tensor, tokens: int, places: Sequence[int]) -> Tensor:
        """[M * B, K * tokens, W], [3, M] -> answers at these of each step's tokens, [M * B, K *
        len(places), W]."""
        rounded = self.weights.detach().bfloat16()
        rate = self.rate if self.training else 0.0
        out: Tensor = fused_block(
            x, self.weights, rounded, self.vectors, salts, tokens, places, self.heads, rate, EPS
        )[0]
        return out

    def places(self) -> Iterator[tuple[str, str, slice]]:
        """Where each parameter of a plain block lies: its name, our tensor's name, its place in a
        model's row."""
        names = {
            "weights": [f"{NAMES[name]}.weight" for name in WEIGHTS],
            "vectors": [*map(_vector_name, VECTORS)],
        }
        for owner, parts in names.items():
            begin = 0
            for name in parts:
                yield name, owner, slice(begin, begin + self._sizes[name])
                begin += self._sizes[name]


class FusedTrunk(nn.Module):
    """What a pack's `Trunk` becomes. Dropout is a function of `salts` [places, M], which change
    with every update."""

    def __init__(self, packed: Trunk) -> None:
        super().__init__()
        self.norm = packed.norm
        self.blocks = nn.ModuleList(
            FusedBlock(part) for part in packed.blocks if isinstance(part, Block)
        )
        num_models, num_places = len(self.norm.weight), 1 + PLACES_PER_BLOCK * len(self.blocks)
        device = self.norm.weight.device
        self.register_buffer(
            "salts", torch.zeros(num_places, num_models, dtype=torch.int32, device=device)
        )

    def places(self) -> Iterator[tuple[str, str, slice]]:
        """Where each parameter of a plain trunk's blocks lies: its name, our tensor's, its place in
        a model's row."""
        for number, part in enumerate(self.blocks):
            assert isinstance(part, FusedBlock)
            for name, owner, place in part.places():
                yield f"blocks.{number}.{name}", f"blocks.{number}.{owner}", place

    def head_outputs(
        self, tokens: Tensor, layout: Layout, heads: Mapping[str, nn.Module]
    ) -> list[Any]:
        """As `Trunk.head_outputs`, of tokens already dropped: [M * B, K * len(layout), W]."""
        salts, x = self.get_buffer("salts"), tokens
        every, read = list(range(len(layout))), sorted(layout.kinds.index(kind) for kind in heads)
        for number, part in enumerate(self.blocks, 1):
            own = salts[PLACES_PER_BLOCK * (number - 1) + 1 :][:PLACES_PER_BLOCK]
            x = part(x, own, len(layout), read if number == len(self.blocks) else every)
        in_order = [heads[layout.kinds[place]] for place in read]
        maps: list[Any] = [
            head.linear if isinstance(head, GaussianHead) else head for head in in_order
        ]
        outputs = triton.next_power_of_2(
            max(FEWEST_OUTPUTS, *(part.weight.shape[1] for part in maps))
        )
        weight = torch.stack(
            [F.pad(part.weight, (0, 0, 0, outputs - part.weight.shape[1])) for part in maps], 1
        )
        bias = torch.stack(
            [F.pad(part.bias, (0, outputs - part.bias.shape[1])) for part in maps], 1
        )
        mapped = fused_answer(x, self.norm.weight, self.norm.bias, weight, bias, EPS)
        found = {}
        for number, (place, head, part) in enumerate(zip(read, in_order, maps, strict=True)):
            own = part.filled(mapped[:, number :: len(read), : part.weight.shape[1]])
            found[layout.kinds[place]] = head.split(own) if isinstance(head, GaussianHead) else own
        return [found[kind] for kind in heads]


class FusedEmbedding(nn.Module):
    """What a pack's `TokenEmbedding` becomes, with the dropout that a plain `Trunk` begins with."""

    def __init__(self, packed: TokenEmbedding, rate: float) -> None:
        super().__init__()
        self.layout, self.horizon, self.rate = packed.layout, packed.horizon, rate
        self.of_kind, self.of_time, self.norm = packed.of_kind, packed.of_time, packed.norm
        self._maps: list[Any] = [self.of_kind[kind] for kind in self.layout.kinds]
        device = self.of_time.weight.device
        self.sizes = [part.weight.shape[-1] for part in self._maps]
        firsts = torch.tensor(
            [0, *itertools.accumulate(self.sizes)], dtype=torch.int32, device=device
        )
        self.register_buffer("firsts", firsts)
        self.register_buffer(
            "salts", torch.zeros(len(self.of_time.weight), dtype=torch.int32, device=device)
        )

    def embed(self, values: Mapping[str, Tensor], timestep: Tensor) -> Tensor:
        """As `TokenEmbedding.embed`: {kind: [M * B, K, _]}, [M * B, K] -> [M * B, K * len(values),
        W]."""
        tokens: Tensor = fused_embed(
            torch.cat([values[kind] for kind in self.layout.kinds], -1),
            timestep.clamp(max=self.horizon - 1),
            torch.cat([part.weight for part in self._maps], -1),
            torch.stack([part.bias for part in self._maps], 1),
            self.of_time.weight,
            self.norm.weight,
            self.norm.bias,
            self.get_buffer("firsts"),
            self.get_buffer("salts"),
            self.sizes,
            self.rate if self.training else 0.0,
            EPS,
        )[0]
        return tokens


def _joined(parts: list[nn.Parameter]) -> nn.Parameter:
    return nn.Parameter(torch.cat([part.detach().flatten(1) for part in parts], 1))


def _vector_name(name: str) -> str:
    return NORMS.get(name) or f"{NAMES[name]}.bias"
