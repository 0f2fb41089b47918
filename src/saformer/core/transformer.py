"""One causal transformer: for whole windows, or for a prefix once and many branches after it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saformer.core.tokens import Layout


@dataclass(frozen=True)
class TrunkConfig:
    """Size of one transformer. The defaults are the paper's Table 6."""

    layers: int = 3  # Attention blocks.
    width: int = 128  # Embedding dimension.
    heads: int = 1  # Attention heads; must divide the width.
    dropout: float = 0.1  # Share of activations dropped while training.

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}")


@dataclass(frozen=True)
class KVCache:
    """Keys and values of a prefix, and its mask."""

    keys: tuple[Tensor, ...]  # per layer [L, H, P, d]
    values: tuple[Tensor, ...]  # per layer [L, H, P, d]
    mask: Tensor  # [L, 1, P] added to every score: 0 at tokens, -inf at padding

    def of_lanes(self, lanes: Tensor) -> Self:
        keys, values = (tuple(part[lanes] for part in each) for each in (self.keys, self.values))
        return type(self)(keys, values, self.mask[lanes])


class Attention(nn.Module):
    """Multi-head attention whose keys and values may be cached."""

    def __init__(self, config: TrunkConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        # An attribute, so that a CPU can train with a faster one in bfloat16.
        self.attend: Callable[..., Tensor] = F.scaled_dot_product_attention
        self.query_key_value = nn.Linear(config.width, 3 * config.width)
        self.output = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, mask: Tensor | None, first: int = 0) -> tuple[Tensor, ...]:
        """[B, T, E] -> output [B, T - first, E], keys and values [B, H, T, d]. Causal without a
        mask, which is added to scores. Queries begin at position `first`; -1: the last alone."""
        query, key, value = self._project(x)
        how = {"is_causal": mask is None, "dropout_p": self.dropout * self.training}
        mask = None if mask is None else mask[..., first:, :]
        mixed = self.attend(query[:, :, first:], key, value, attn_mask=mask, **how)
        return self.output(mixed.transpose(1, 2).flatten(2)), key, value

    def branch(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor, first: int) -> Tensor:
        """N branches of m tokens see the lane's prefix and themselves, never each other: [L, N, m,
        E] -> [L, N, q, E], q queries from token `first` on. The prefix has `keys` and `values`
        [L, H, P, d] and a `mask` [L, 1, P]."""
        num_lanes, num_branches, length, width = x.shape
        shape = (num_lanes * self.heads, num_branches, length, width // self.heads)
        projected = self._project(x.flatten(1, 2))
        query, key, value = (part.reshape(shape) for part in projected)  # [LH, N, m, d]
        query = query[:, :, first:]
        keys, values = keys.flatten(0, 1), values.flatten(0, 1)
        mask = mask.expand(-1, self.heads, -1).reshape(len(keys), 1, -1)
        scale = (width // self.heads) ** -0.5
        to_prefix = torch.baddbmm(mask, query.flatten(1, 2), keys.mT, alpha=scale)  # [LH, Nq, P]
        to_own = scale * (query[:, :, :, None] * key[:, :, None]).sum(-1)  # [LH, N, q, m]
        if query.shape[2] > 1:
            to_own = to_own + _causal_mask(length, x.device)
        weights = torch.cat([to_prefix, to_own.flatten(1, 2)], dim=-1).softmax(-1)
        on_prefix, on_own = weights[..., :-length], weights[..., -length:].reshape(to_own.shape)
        from_own = (on_own[..., None] * value[:, :, None]).sum(-2)  # [LH, N, q, d]
        mixed = torch.baddbmm(from_own.flatten(1, 2), on_prefix, values)  # [LH, Nq, d]
        mixed = mixed.reshape(num_lanes, self.heads, num_branches, -1, mixed.shape[-1])
        return self.output(mixed.permute(0, 2, 3, 1, 4).flatten(3))  # type: ignore[no-any-return]

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        split = self.query_key_value(x).unflatten(-1, (3, self.heads, -1))  # [B, T, 3, H, d]
        return tuple(split.permute(2, 0, 3, 1, 4))


class Block(nn.Module):
    """Attention, then a perceptron of four times the width, each added to its input."""

    def __init__(self, config: TrunkConfig) -> None:
        super().__init__()
        width = config.width
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(config)
        self.perceptron_norm = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(inplace=True), nn.Linear(4 * width, width)
        )
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor | None, first: int = 0) -> tuple[Tensor, ...]:
        """[B, T, E] -> outputs from position `first` on, and keys and values of all positions."""
        attended, key, value = self.attention(self.attention_norm(x), mask, first)
        return self._residual(x[:, first:], attended), key, value

    def branch(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor, first: int) -> Tensor:
        """[L, N, m, E] -> outputs from each branch's token `first` on."""
        attended = self.attention.branch(self.attention_norm(x), keys, values, mask, first)
        return self._residual(x[:, :, first:], attended)

    def _residual(self, x: Tensor, attended: Tensor) -> Tensor:
        # Sums are float32; converting first gives the same bits, and a CPU adds one type faster.
        x = x + self.drop(attended).to(x.dtype)
        output: Tensor = x + self.drop(self.perceptron(self.perceptron_norm(x))).to(x.dtype)
        return output


class Trunk(nn.Module):
    """A causal transformer over embedded tokens."""

    def __init__(self, config: TrunkConfig) -> None:
        super().__init__()
        self.config = config
        # Of blocks in whole windows: training may lower it. Tokens and outputs stay float32, so
        # that budgets and likelihoods are never rounded.
        self.training_dtype: torch.dtype = torch.float32
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Whole windows whose padding, if any, lies at their end: [B, T, E] -> [B, T, E]."""
        is_lowered = self.training_dtype != torch.float32
        with torch.autocast(tokens.device.type, self.training_dtype, enabled=is_lowered):
            x = self.drop(tokens)
            for block in self.blocks:
                x, _, _ = block(x, None)
        return self.norm(x)  # type: ignore[no-any-return]

    def head_outputs(self, tokens: Tensor, layout: Layout, heads: Mapping[str, Any]) -> list[Any]:
        """Whole windows [B, K * len(layout), E], read by each head at the tokens of one kind: over
        [B, K]. One method, because training kernels compute trunk and heads together."""
        outputs = self(tokens)
        return [head(layout.at(kind, outputs)) for kind, head in heads.items()]

    def prefill(self, tokens: Tensor, valid: Tensor) -> tuple[Tensor, KVCache]:
        """A prefix that branches follow: [L, P, E], [L, P] -> its last output [L, E], cache."""
        zeros = torch.zeros(valid.shape, device=valid.device)
        padding = zeros.masked_fill(~valid, -torch.inf)[:, None]  # [L, 1, P]
        mask = padding + _causal_mask(valid.shape[1], valid.device)  # [L, P, P]
        # Padding sees itself, so that no row of the softmax is empty; nothing else sees it.
        mask = mask.masked_fill(torch.eye(valid.shape[1], device=valid.device).bool(), 0.0)
        x, layers = self.drop(tokens), []
        for block, first in self._blocks_with_first_query():
            x, *keys_and_values = block(x, mask[:, None], first)
            layers.append(keys_and_values)
        keys, values = zip(*layers, strict=True)
        return self.norm(x[:, -1]), KVCache(keys, values, padding)

    def branch(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """N continuations of each lane's prefix: [L, N, m, E] -> their last outputs [L, N, E]."""
        x = tokens
        layers = zip(self._blocks_with_first_query(), cache.keys, cache.values, strict=True)
        for (block, first), keys, values in layers:
            x = block.branch(x, keys, values, cache.mask, first)
        return self.norm(x[:, :, -1])  # type: ignore[no-any-return]

    def _blocks_with_first_query(self) -> Iterator[tuple[Any, int]]:
        """Of the last block only the last output is used, so it has one query."""
        last = len(self.blocks) - 1
        return ((block, -1 if index == last else 0) for index, block in enumerate(self.blocks))


def _causal_mask(length: int, device: torch.device) -> Tensor:
    """[T, T], added to scores so that no position sees a later one."""
    return torch.full((length, length), -torch.inf, device=device).triu(1)
