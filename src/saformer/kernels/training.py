"""A pack's transformers computed by kernels in bfloat16: the same weights in fewer tensors."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor, nn

from saformer.core.gaussian import GaussianHead
from saformer.core.tokens import Layout, TokenEmbedding
from saformer.core.transformer import Block, Trunk
from saformer.kernels.block import fused_block
from saformer.kernels.ends import FEWEST_OUTPUTS, fused_embedding, fused_heads

MAPS = ("attention.query_key_value", "attention.output", "perceptron.0", "perceptron.2")
NORMS = ("attention_norm", "perceptron_norm")
PARAMETERS = {
    "weights": [f"{name}.weight" for name in MAPS],
    "vectors": [f"{name}.bias" for name in MAPS]
    + [f"{name}.{part}" for name in NORMS for part in ("weight", "bias")],
}
"""Parameters of a plain block as they lie in a fused block's tensors (see `block`)."""
EPS = 1e-5
SITES_PER_BLOCK = 3  # where a block drops: after attention, after the MLP, within attention


class FusedBlock(nn.Module):
    """M blocks; matrices in one tensor, biases and norms in another."""

    def __init__(self, packed: Block) -> None:
        super().__init__()
        self.heads, self.rate = packed.attention.heads, packed.attention.dropout
        parts = dict(packed.named_parameters())
        self.weights = _joined([parts[name] for name in PARAMETERS["weights"]])
        self.vectors = _joined([parts[name] for name in PARAMETERS["vectors"]])

    def forward(self, x: Tensor, salts: Tensor, tokens: int, positions: Sequence[int]) -> Tensor:
        """[M * B, K * tokens, W], [3, M] -> outputs [M * B, K * len(positions), W]."""
        rounded = self.weights.detach().bfloat16()
        rate = self.rate if self.training else 0.0
        out: Tensor = fused_block(x, self.weights, rounded, self.vectors, salts, tokens, positions,
            self.heads, rate, EPS)[0]  # fmt: skip
        return out


class FusedTrunk(nn.Module):
    """A pack's `Trunk`. Dropout is a function of `salts` [sites, M], which every update draws."""

    def __init__(self, packed: Trunk, salts: Tensor) -> None:
        super().__init__()
        self.norm, blocks = packed.norm, (part for part in packed.blocks if isinstance(part, Block))
        self.blocks = nn.ModuleList(map(FusedBlock, blocks))
        self.register_buffer("salts", salts)
        self.train(packed.training)

    def head_outputs(self, tokens: Tensor, layout: Layout, heads: Mapping[str, Any]) -> list[Any]:
        """As `Trunk.head_outputs`, of tokens already dropped: [M * B, K * len(layout), W]."""
        salts, x = self.get_buffer("salts"), tokens
        every, read = list(range(len(layout))), sorted(layout.kinds.index(kind) for kind in heads)
        for index, block in enumerate(self.blocks):
            own = salts[SITES_PER_BLOCK * index + 1 :][:SITES_PER_BLOCK]
            x = block(x, own, len(layout), read if index == len(self.blocks) - 1 else every)
        in_order = [heads[layout.kinds[position]] for position in read]
        maps: list[Any] = [h.linear if isinstance(h, GaussianHead) else h for h in in_order]
        sizes = [part.weight.shape[1] for part in maps]
        outputs = triton.next_power_of_2(max(FEWEST_OUTPUTS, *sizes))
        weights = [F.pad(part.weight, (0, 0, 0, outputs - part.weight.shape[1])) for part in maps]
        biases = [F.pad(part.bias, (0, outputs - part.bias.shape[1])) for part in maps]
        weight, bias = torch.stack(weights, 1), torch.stack(biases, 1)
        mapped = fused_heads(x, self.norm.weight, self.norm.bias, weight, bias, EPS)
        results = {}
        for index, (position, head, part) in enumerate(zip(read, in_order, maps, strict=True)):
            kind, own = layout.kinds[position], mapped[:, index :: len(read), : sizes[index]]
            own = part.filled(own)
            results[kind] = head.split(own) if isinstance(head, GaussianHead) else own
        return [results[kind] for kind in heads]


class FusedEmbedding(nn.Module):
    """A pack's `TokenEmbedding`, with the dropout that a plain `Trunk` begins with."""

    def __init__(self, packed: TokenEmbedding, trunk: Trunk, salts: Tensor) -> None:
        super().__init__()
        self.layout, self.horizon, self.rate = packed.layout, packed.horizon, trunk.drop.p
        self.of_kind, self.of_time, self.norm = packed.of_kind, packed.of_time, packed.norm
        self._maps: list[Any] = [self.of_kind[kind] for kind in self.layout.kinds]
        self.sizes = [part.weight.shape[-1] for part in self._maps]
        firsts = torch.tensor([0, *itertools.accumulate(self.sizes)], dtype=torch.int32)
        self.register_buffer("firsts", firsts.to(salts.device))
        self.register_buffer("salts", salts)
        self.train(trunk.training)

    def embed(self, values: Mapping[str, Tensor], timestep: Tensor) -> Tensor:
        """As `TokenEmbedding.embed`: {kind: [M * B, K, _]}, [M * B, K] -> [M * B, K * J, W]."""
        joined = torch.cat([values[kind] for kind in self.layout.kinds], -1)
        weight = torch.cat([part.weight for part in self._maps], -1)
        bias = torch.stack([part.bias for part in self._maps], 1)
        tokens: Tensor = fused_embedding(
            joined, timestep.clamp(max=self.horizon - 1), weight, bias, self.of_time.weight,
            self.norm.weight, self.norm.bias, self.get_buffer("firsts"), self.get_buffer("salts"),
            self.sizes, self.rate if self.training else 0.0, EPS)[0]  # fmt: skip
        return tokens


def fuse(model: nn.Module) -> dict[str, tuple[str, slice]]:
    """Put fused transformers into a pack's model, in place. Returns, for each parameter that moved,
    the tensor that holds it and its slice of a model's row."""
    moved: dict[str, tuple[str, slice]] = {}
    trunks = {name: part for name, part in model.named_modules() if isinstance(part, Trunk)}
    # the salts of all trunks are drawn at once, so they lie in one tensor
    sites = [1 + SITES_PER_BLOCK * len(trunk.blocks) for trunk in trunks.values()]
    like = next(iter(trunks.values())).norm.weight
    salts = torch.zeros(sum(sites), len(like), dtype=torch.int32, device=like.device)
    model.register_buffer("salts", salts)
    for (name, trunk), own in zip(trunks.items(), salts.split(sites), strict=True):
        owner, _, own_name = name.rpartition(".")
        network: Any = model.get_submodule(owner)
        network.add_module(own_name, FusedTrunk(trunk, own))
        network.add_module("embedding", FusedEmbedding(network.embedding, trunk, own[0]))
        for index, block in enumerate(trunk.blocks):
            sizes = {part: value[0].numel() for part, value in block.named_parameters()}
            for tensor, parts in PARAMETERS.items():
                begin, prefix = 0, f"{name}.blocks.{index}"
                for part in parts:
                    span = slice(begin, begin + sizes[part])
                    moved[f"{prefix}.{part}"], begin = (f"{prefix}.{tensor}", span), span.stop
    return moved


def _joined(parts: list[nn.Parameter]) -> nn.Parameter:
    return nn.Parameter(torch.cat([part.detach().flatten(1) for part in parts], 1))
