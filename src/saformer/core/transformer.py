"""One causal transformer, read in two ways: whole windows, or a shared past once and many short branches after it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class TrunkConfig:
    """Size of one transformer. The defaults are the paper's Table 6."""

    layers: int = 3
    """Attention blocks."""
    width: int = 128
    """Embedding dimension."""
    heads: int = 1
    """Attention heads; must divide the width."""
    dropout: float = 0.1
    """Share of activations dropped while training."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}; choose heads that divide it")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}")


@dataclass(frozen=True)
class Memory:
    """What a trunk keeps of a prefix it has read: keys and values of each layer, and where there was a token."""

    keys: tuple[Tensor, ...]
    """per layer [L, H, P, d]"""
    values: tuple[Tensor, ...]
    """per layer [L, H, P, d]"""
    valid: Tensor
    """[L, P] bool"""

    def select(self, lanes: Tensor) -> Memory:
        """The memory of these lanes."""
        keys, values = (tuple(layer[lanes] for layer in side) for side in (self.keys, self.values))
        return Memory(keys, values, self.valid[lanes])


class Attention(nn.Module):
    """Multi-head attention whose keys and values may be kept for later."""

    def __init__(self, config: TrunkConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.query_key_value = nn.Linear(config.width, 3 * config.width)
        self.output = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, E] -> output [B, T, E], keys and values [B, H, T, d]; causal if `allowed` is None."""
        query, key, value = self._project(x)
        mixed = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=allowed,
            is_causal=allowed is None,
            dropout_p=self.dropout * self.training,
        )
        return self.output(mixed.transpose(1, 2).flatten(2)), key, value

    def branch(self, x: Tensor, keys: Tensor, values: Tensor, valid: Tensor) -> Tensor:
        """N branches of m tokens see the lane's past and themselves, never each other: [L, N, m, E] -> [L, N, m, E].

        `keys` and `values` are [L, H, P, d], `valid` is [L, P].
        """
        num_lanes, num_branches, length, width = x.shape
        query, key, value = self._project(x.reshape(num_lanes, num_branches * length, width))
        apart = (num_lanes, self.heads, num_branches, length, width // self.heads)
        own_query, own_key, own_value = (part.reshape(apart) for part in (query, key, value))

        scale = (width // self.heads) ** -0.5
        to_past = (query @ keys.transpose(-1, -2)) * scale  # [L, H, N * m, P]
        to_past = to_past.masked_fill(~valid[:, None, None], -torch.inf).unflatten(2, (num_branches, length))
        to_own = (own_query @ own_key.transpose(-1, -2)) * scale  # [L, H, N, m, m]
        to_own = to_own.masked_fill(~_causal(length, x.device), -torch.inf)

        weights = torch.cat([to_past, to_own], dim=-1).softmax(-1)
        on_past, on_own = weights[..., :-length], weights[..., -length:]
        mixed = (on_past.flatten(2, 3) @ values).reshape(apart) + on_own @ own_value  # [L, H, N, m, d]
        output: Tensor = self.output(mixed.permute(0, 2, 3, 1, 4).flatten(3))
        return output

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        split = self.query_key_value(x).unflatten(-1, (3, self.heads, -1))  # [B, T, 3, H, d]
        query, key, value = split.permute(2, 0, 3, 1, 4)
        return query, key, value


class Block(nn.Module):
    """Attention, then a perceptron of four times the width, each added to what came in."""

    def __init__(self, config: TrunkConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.perceptron_norm = nn.LayerNorm(config.width)
        self.perceptron = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.ReLU(), nn.Linear(4 * config.width, config.width)
        )
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, E] -> the same, with the layer's keys and values."""
        attended, key, value = self.attention(self.attention_norm(x), allowed)
        return self._finish(x, attended), key, value

    def branch(self, x: Tensor, keys: Tensor, values: Tensor, valid: Tensor) -> Tensor:
        """[L, N, m, E] -> the same."""
        return self._finish(x, self.attention.branch(self.attention_norm(x), keys, values, valid))

    def _finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.drop(attended)
        added: Tensor = x + self.drop(self.perceptron(self.perceptron_norm(x)))
        return added


class Trunk(nn.Module):
    """A causal transformer over embedded tokens.

    `training_dtype` is what blocks are computed in when whole windows are read (bfloat16 on a GPU); tokens come and
    outputs leave in float32, so that budgets and likelihoods are never rounded.
    """

    def __init__(self, config: TrunkConfig) -> None:
        super().__init__()
        self.config = config
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
        reduced = self.training_dtype != torch.float32
        with torch.autocast(tokens.device.type, self.training_dtype, enabled=reduced):
            x = self.drop(tokens)
            for block in self.blocks:
                x, _, _ = block(x, None)
        normed: Tensor = self.norm(x)
        return normed

    def read(self, tokens: Tensor, valid: Tensor) -> tuple[Tensor, Memory]:
        """A prefix that branches will follow: [L, P, E], [L, P] -> outputs [L, P, E] and the memory of it."""
        # A padded position may see itself, so that no row of the softmax is empty; nobody else sees it.
        itself = torch.eye(valid.shape[1], dtype=torch.bool, device=valid.device)
        allowed = (_causal(valid.shape[1], valid.device) & valid[:, None, :]) | itself
        x, keys, values = self.drop(tokens), [], []
        for block in self.blocks:
            x, key, value = block(x, allowed[:, None])
            keys.append(key)
            values.append(value)
        return self.norm(x), Memory(tuple(keys), tuple(values), valid)

    def branch(self, tokens: Tensor, memory: Memory) -> Tensor:
        """N continuations of each lane's prefix, read side by side: [L, N, m, E] -> [L, N, m, E]."""
        x = tokens
        for block, keys, values in zip(self.blocks, memory.keys, memory.values, strict=True):
            assert isinstance(block, Block)
            x = block.branch(x, keys, values, memory.valid)
        normed: Tensor = self.norm(x)
        return normed


def _causal(length: int, device: torch.device) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()
