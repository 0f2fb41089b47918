"""One causal transformer, read in two ways: whole windows, or a shared past once and many short
branches after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saformer.core.recording import over_tensors
from saformer.core.tokens import Layout


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
            raise ValueError(
                f"width {self.width} is not divisible by heads {self.heads}; choose heads that "
                "divide it"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}")


@dataclass(frozen=True)
class Memory:
    """What a trunk keeps of a prefix it has read: keys and values of each layer, and where there
    was a token."""

    keys: tuple[Tensor, ...]
    """per layer [L, H, P, d]"""
    values: tuple[Tensor, ...]
    """per layer [L, H, P, d]"""
    hidden: Tensor
    """[L, 1, P] added to every score: 0 where there was a token, -inf where there was none"""

    def of_lanes(self, lanes: Tensor) -> Memory:
        """The memory of some of them."""
        kept: Memory = over_tensors(lambda part: part[lanes], self)
        return kept


class Attention(nn.Module):
    """Multi-head attention whose keys and values may be kept for later."""

    def __init__(self, config: TrunkConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.attend: Callable[..., Tensor] = F.scaled_dot_product_attention
        self.query_key_value = nn.Linear(config.width, 3 * config.width)
        self.output = nn.Linear(config.width, config.width)

    def forward(
        self, x: Tensor, added: Tensor | None, *, first: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, E] -> output [B, T - first, E], keys and values [B, H, T, d]; causal if nothing is
        `added` to scores.

        Positions before `first` (0, or -1 for the last alone) are seen, but ask for nothing
        themselves.
        """
        query, key, value = self._project(x)
        mask, dropout = (
            None if added is None else added[..., first:, :],
            self.dropout * self.training,
        )
        mixed = self.attend(
            query[:, :, first:],
            key,
            value,
            attn_mask=mask,
            is_causal=added is None,
            dropout_p=dropout,
        )
        return self.output(mixed.transpose(1, 2).flatten(2)), key, value

    def branch(
        self, x: Tensor, keys: Tensor, values: Tensor, hidden: Tensor, *, first: int = 0
    ) -> Tensor:
        """N branches of m tokens see the lane's past and themselves, never each other: [L, N, m, E]
        -> [L, N, q, E].

        `keys` and `values` are [L, H, P, d], `hidden` is [L, 1, P]; of m tokens the q from `first`
        on ask.
        """
        num_lanes, num_branches, length, width = x.shape
        apart = (num_lanes * self.heads, num_branches, length, width // self.heads)
        query, key, value = (
            part.reshape(apart) for part in self._project(x.flatten(1, 2))
        )  # [L * H, N, m, d]
        query = query[:, :, first:]
        keys, values = keys.flatten(0, 1), values.flatten(0, 1)
        hidden = hidden.expand(-1, self.heads, -1).reshape(len(keys), 1, -1)

        scale = (width // self.heads) ** -0.5
        to_past = torch.baddbmm(
            hidden, query.flatten(1, 2), keys.mT, alpha=scale
        )  # [L * H, N * q, P]
        to_own = scale * (query[:, :, :, None] * key[:, :, None]).sum(-1)  # [L * H, N, q, m]
        if query.shape[2] > 1:
            to_own = to_own + _hidden_future(length, x.device)
        weights = torch.cat([to_past, to_own.flatten(1, 2)], dim=-1).softmax(-1)
        on_past, on_own = weights[..., :-length], weights[..., -length:].reshape(to_own.shape)
        from_own = (on_own[..., None] * value[:, :, None]).sum(-2)  # [L * H, N, q, d]
        mixed = torch.baddbmm(from_own.flatten(1, 2), on_past, values)  # [L * H, N * q, d]
        mixed = mixed.reshape(num_lanes, self.heads, num_branches, -1, mixed.shape[-1])
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
            nn.Linear(config.width, 4 * config.width),
            nn.ReLU(inplace=True),
            nn.Linear(4 * config.width, config.width),
        )
        self.drop = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, added: Tensor | None, *, first: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, E] -> outputs from position `first` on, with the layer's keys and values of
        all."""
        attended, key, value = self.attention(self.attention_norm(x), added, first=first)
        return self._finish(x[:, first:], attended), key, value

    def branch(
        self, x: Tensor, keys: Tensor, values: Tensor, hidden: Tensor, *, first: int = 0
    ) -> Tensor:
        """[L, N, m, E] -> outputs from each branch's token `first` on."""
        attended = self.attention.branch(self.attention_norm(x), keys, values, hidden, first=first)
        return self._finish(x[:, :, first:], attended)

    def _finish(self, x: Tensor, attended: Tensor) -> Tensor:
        # Sums are float32: converting first is the same to the bit, and to a CPU much less work
        # than adding two types.
        x = x + self.drop(attended).to(x.dtype)
        added: Tensor = x + self.drop(self.perceptron(self.perceptron_norm(x))).to(x.dtype)
        return added


class Trunk(nn.Module):
    """A causal transformer over embedded tokens.

    `training_dtype` is what blocks are computed in when whole windows are read
    (`training.precision`); tokens come and outputs leave in float32, so that budgets and
    likelihoods are never rounded.
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
        with torch.autocast(
            tokens.device.type, self.training_dtype, enabled=self.training_dtype != torch.float32
        ):
            x = self.drop(tokens)
            for block in self.blocks:
                x, _, _ = block(x, None)
        normed: Tensor = self.norm(x)
        return normed

    def answers(self, tokens: Tensor, layout: Layout, heads: Mapping[str, nn.Module]) -> list[Any]:
        """What heads read off whole windows [B, K * len(layout), E], each at the tokens of one
        kind: over [B, K]."""
        outputs = self(tokens)
        return [head(layout.at(kind, outputs)) for kind, head in heads.items()]

    def read(self, tokens: Tensor, valid: Tensor) -> tuple[Tensor, Memory]:
        """A prefix that branches will follow: [L, P, E], [L, P] -> the last output [L, E] and the
        memory of it."""
        hidden = torch.zeros(valid.shape, device=valid.device).masked_fill(~valid, -torch.inf)[
            :, None
        ]  # [L, 1, P]
        added = hidden + _hidden_future(valid.shape[1], valid.device)  # [L, P, P]
        # A padded position may see itself, so that no row of the softmax is empty; nobody else sees
        # it.
        added.diagonal(dim1=1, dim2=2).zero_()
        x, keys, values = self.drop(tokens), [], []
        for block, first in self._blocks_until_the_last():
            x, key, value = block(x, added[:, None], first=first)
            keys.append(key)
            values.append(value)
        return self.norm(x[:, -1]), Memory(tuple(keys), tuple(values), hidden)

    def branch(self, tokens: Tensor, memory: Memory) -> Tensor:
        """N continuations of each lane's prefix, read side by side: [L, N, m, E] -> their last
        outputs [L, N, E]."""
        x = tokens
        for (block, first), keys, values in zip(
            self._blocks_until_the_last(), memory.keys, memory.values, strict=True
        ):
            x = block.branch(x, keys, values, memory.hidden, first=first)
        normed: Tensor = self.norm(x[:, :, -1])
        return normed

    def _blocks_until_the_last(self) -> Iterator[tuple[Block, int]]:
        """Each block and the first position it must answer at: of the last one only the last answer
        is read."""
        for number, block in enumerate(self.blocks, 1):
            assert isinstance(block, Block)
            yield block, -1 if number == len(self.blocks) else 0


def _hidden_future(length: int, device: torch.device) -> Tensor:
    """What is added to scores so that no position sees a later one: [T, T]."""
    return torch.full((length, length), -torch.inf, device=device).triu(1)
