"""The parts of a model that decide, computed by kernels. They hold the plain parts' own weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor, nn

from saformer.core.gaussian import LOG_DEVIATION_RANGE, Gaussian, GaussianHead
from saformer.core.normalizer import Normalizer
from saformer.core.tokens import TokenEmbedding
from saformer.core.transformer import Block, Trunk
from saformer.kernels import decision_kernels

PRECISION = "tf32x3"
"""Three passes of tensor cores, which is float32 to about 1e-6."""
QKV = {"R": 64, "C": 64, "K": 32, "num_warps": 4, "num_stages": 1}
ATTENTION = {"R": 32, "C": 64, "num_warps": 4, "num_stages": 2}
MLP = {"R": 64, "C": 64, "num_warps": 4, "num_stages": 2}
FEW_ROWS = 4096
QKV_FEW = {"R": 16, "C": 128, "K": 32, "num_warps": 4, "num_stages": 1}
ATTENTION_FEW = {"R": 16, "C": 64, "num_warps": 4, "num_stages": 2}
MLP_FEW = {"R": 16, "C": 64, "num_warps": 4, "num_stages": 2}
"""R rows, and C columns or positions, stay on the chip at a time; tiles are smaller for up to
FEW_ROWS rows, lest most of a GPU have nothing to do."""
EMBED = {"R": 16, "num_warps": 4}
DRAW_ACTIONS = {"R": 32, "num_warps": 4}
DRAW_RETURNS = {"R": 128, "num_warps": 4}


@dataclass(frozen=True)
class QKVCache:
    """As `core.transformer.KVCache`, with queries, keys and values of a layer in one tensor."""

    qkv: tuple[Tensor, ...]
    """per layer [L, P, 3 * E]"""
    mask: Tensor
    """[L, P] added to every score: 0 where there was a token, -inf where there was none"""
    lanes: Tensor
    """[l] whose past each lane of branches sees"""

    def of_lanes(self, lanes: Tensor) -> QKVCache:
        """Copies nothing: branches look up their lane."""
        return replace(self, lanes=self.lanes[lanes])


@dataclass(frozen=True)
class _Queries:
    """Tokens of each lane that are queries: `count` of `tokens`, each `every`th from `first` on."""

    lanes: int
    tokens: int
    count: int
    first: int = 0
    every: int = 1
    own: int = 0
    """tokens of a branch; 0 where the queries are the past itself"""

    @property
    def rows(self) -> int:
        return self.lanes * self.count


class DecisionEmbedding(nn.Module):
    """A `TokenEmbedding` as a kernel for each kind."""

    def __init__(self, plain: TokenEmbedding) -> None:
        super().__init__()
        self.layout, self.horizon = plain.layout, plain.horizon
        self.of_kind, self.of_time, self.norm = plain.of_kind, plain.of_time, plain.norm

    def embed(self, values: Mapping[str, Tensor], timestep: Tensor) -> Tensor:
        """As `TokenEmbedding.embed`: {kind: [B, K, _]}, [B, K] -> [B, K * len(values), E]."""
        lanes, steps = timestep.shape
        every, width, rows = len(values), self.norm.weight.numel(), timestep.numel()
        out = self.norm.weight.new_empty(lanes, steps * every, width)
        if not rows:
            return out
        time, time_stride, time_share = _rows_of(timestep[..., None])
        for first, (kind, of_kind) in enumerate(values.items()):
            linear, (value, stride, share) = self.of_kind[kind], _rows_of(of_kind)
            decision_kernels.embed_kind_kernel[(triton.cdiv(rows, EMBED["R"]),)](
                value, stride, share, linear.weight, linear.bias, self.of_time.weight, time,
                time_stride, time_share, self.norm.weight, self.norm.bias, out, rows,
                value.shape[-1], steps, steps * every, first, every, self.horizon, self.norm.eps,
                W=width, **EMBED,
            )  # fmt: skip
        return out


class DecisionTrunk(nn.Module):
    """A `Trunk` as three kernels a block; the last norm is part of the last one."""

    def __init__(self, plain: Trunk) -> None:
        super().__init__()
        self.norm, self.heads = plain.norm, plain.config.heads
        self.blocks = plain.blocks

    def prefill(self, tokens: Tensor, valid: Tensor) -> tuple[Tensor, QKVCache]:
        """As `Trunk.prefill`: [L, P, E], [L, P] -> the last output [L, E] and the cache."""
        lanes, length, _ = tokens.shape
        mask = torch.zeros(valid.shape, device=valid.device).masked_fill_(~valid, -torch.inf)
        own_lanes = torch.arange(lanes, device=valid.device)
        every, last = _Queries(lanes, length, length), _Queries(lanes, length, 1, first=length - 1)
        x, cache = tokens.contiguous(), QKVCache((), mask, own_lanes)
        for index in range(len(self.blocks)):
            qkv = _qkv(self._block(index), x)
            cache = replace(cache, qkv=(*cache.qkv, qkv))
            x = self._attention_and_mlp(
                index, x, qkv, last if self._is_last(index) else every, cache
            )
        return x[:, 0], cache

    def branch(self, tokens: Tensor, cache: QKVCache) -> Tensor:
        """As `Trunk.branch`: [L, N, m, E] -> the last outputs [L, N, E]."""
        lanes, branches, own, _ = tokens.shape
        num_tokens = branches * own
        every = _Queries(lanes, num_tokens, num_tokens, own=own)
        last = _Queries(lanes, num_tokens, branches, first=own - 1, every=own, own=own)
        x = tokens.contiguous()
        for index in range(len(self.blocks)):
            qkv = _qkv(self._block(index), x)
            x = self._attention_and_mlp(
                index, x, qkv, last if self._is_last(index) else every, cache
            )
        return x

    def _attention_and_mlp(
        self, index: int, x: Tensor, qkv: Tensor, queries: _Queries, cache: QKVCache
    ) -> Tensor:
        """The rest of a block after its projection: [L, ..., E] -> [L, queries.count, E]."""
        block, width, past = self._block(index), x.shape[-1], cache.qkv[index]
        output, norm, mlp = block.attention.output, block.perceptron_norm, block.perceptron
        mixed, out = (x.new_empty(queries.lanes, queries.count, width) for _ in range(2))
        launch = _launch(ATTENTION, ATTENTION_FEW, queries.rows, width)
        grid = triton.cdiv(queries.count, launch["R"]), queries.lanes * self.heads
        decision_kernels.past_attention_kernel[grid](
            qkv, past, cache.mask, cache.lanes, mixed, queries.count, queries.tokens,
            queries.first, queries.every, past.shape[1], (width // self.heads) ** -0.5,
            H=self.heads, M=queries.own, **launch,
        )  # fmt: skip
        launch = _launch(MLP, MLP_FEW, queries.rows, width)
        decision_kernels.output_mlp_kernel[(triton.cdiv(queries.rows, launch["R"]),)](
            x, mixed, output.weight, output.bias, norm.weight, norm.bias, mlp[0].weight,
            mlp[0].bias, mlp[2].weight, mlp[2].bias, self.norm.weight, self.norm.bias, out,
            queries.rows, queries.count, queries.tokens, queries.first, queries.every, norm.eps,
            LAST=self._is_last(index), **launch,
        )  # fmt: skip
        return out

    def _block(self, index: int) -> Block:
        block = self.blocks[index]
        assert isinstance(block, Block)
        return block

    def _is_last(self, index: int) -> bool:
        return index == len(self.blocks) - 1


def draw_returns(expected: Gaussian, noise: Tensor,
                 normalizer: Normalizer) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `SaFormer.sample_returns`, of a Gaussian over [L, 1]: [L, N, 1], log-density [L, N]."""
    noise = noise.contiguous()
    drawn, density = torch.empty_like(noise), torch.empty_like(noise)
    decision_kernels.draw_returns_kernel[(triton.cdiv(noise.numel(), DRAW_RETURNS["R"]),)](
        expected.mean.contiguous(), expected.log_deviation.contiguous(), noise,
        normalizer.centre("return_to_go"), normalizer.scale("return_to_go"), drawn, density,
        noise.numel(), noise.shape[1], **DRAW_RETURNS,
    )  # fmt: skip
    return drawn[..., None], density


def draw_actions(outputs: Tensor, head: GaussianHead, noise: Tensor, normalizer: Normalizer,
                 bounds: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `SaFormer.sample_actions`, of outputs [L, N, E]: [L, N, A], log-density [L, N]."""
    noise = noise.contiguous()
    action, density = torch.empty_like(noise), noise.new_empty(noise.shape[:-1])
    decision_kernels.draw_actions_kernel[(triton.cdiv(density.numel(), DRAW_ACTIONS["R"]),)](
        outputs, head.linear.weight, head.linear.bias, noise, normalizer.centre("action"),
        normalizer.scale("action"), *bounds, action, density, density.numel(), noise.shape[-1],
        *LOG_DEVIATION_RANGE, W=outputs.shape[-1], **DRAW_ACTIONS,
    )  # fmt: skip
    return action, density


def _qkv(block: Block, x: Tensor) -> Tensor:
    """Queries, keys and values of all tokens: [L, ..., E] -> [L, tokens, 3 * E]."""
    linear, norm = block.attention.query_key_value, block.attention_norm
    width = norm.weight.numel()
    out, rows = x.new_empty(len(x), x[0].numel() // width, 3 * width), x.numel() // width
    launch = _launch(QKV, QKV_FEW, rows, width)
    decision_kernels.qkv_kernel[(triton.cdiv(rows, launch["R"]),)](
        x, linear.weight, linear.bias, norm.weight, norm.bias, out, rows, norm.eps, **launch
    )
    return out


def _launch(
    many: Mapping[str, int], few: Mapping[str, int], rows: int, width: int
) -> dict[str, int | str]:
    """Tiles of a kernel; narrow models have fewer columns than a tile."""
    tiles = few if rows <= FEW_ROWS else many
    columns = {name: min(tiles[name], width) for name in ("C", "K") if name in tiles}
    return {**tiles, **columns, "W": width, "P": PRECISION}


def _rows_of(values: Tensor) -> tuple[Tensor, int, int]:
    """[B, K, size], the distance of rows, and how many in a row are one: K if it was repeated."""
    first, second, last = values.stride()
    if second == 0 and last == 1:
        return values, first, values.shape[1]
    values = values.contiguous()
    return values, values.shape[-1], 1
