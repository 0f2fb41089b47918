"""The parts of a model that decide, computed by kernels. They hold the plain parts' own weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor, nn

from saformer.accelerated import kernels
from saformer.core.gaussian import LOG_DEVIATION_RANGE, Gaussian, GaussianHead
from saformer.core.normalizer import Normalizer
from saformer.core.tokens import TokenEmbedding
from saformer.core.transformer import Block, Trunk

PRECISION = "tf32x3"
"""Three passes of tensor cores, which is float32 to about 1e-6."""
ASK = {"R": 64, "C": 64, "K": 32, "num_warps": 4, "num_stages": 1}
LOOK_BACK = {"R": 32, "C": 64, "num_warps": 4, "num_stages": 2}
ANSWER = {"R": 64, "C": 64, "num_warps": 4, "num_stages": 2}
FEW_ROWS = 4096
ASK_FEW = {"R": 16, "C": 128, "K": 32, "num_warps": 4, "num_stages": 1}
LOOK_BACK_FEW = {"R": 16, "C": 64, "num_warps": 4, "num_stages": 2}
ANSWER_FEW = {"R": 16, "C": 64, "num_warps": 4, "num_stages": 2}
"""R rows, and C columns or positions, stay on the chip at a time; smaller tiles for up to FEW_ROWS rows, lest most of
a GPU have nothing to do."""
EMBED = {"R": 16, "num_warps": 4}
DRAW_ACTIONS = {"R": 32, "num_warps": 4}
DRAW_RETURNS = {"R": 128, "num_warps": 4}


@dataclass(frozen=True)
class FusedMemory:
    """What a fused trunk keeps of a prefix, as `core.transformer.KVCache` does."""

    projected: tuple[Tensor, ...]
    """per layer [L, P, 3 * E]: queries, keys and values"""
    hidden: Tensor
    """[L, P] added to every score: 0 where there was a token, -inf where there was none"""
    lanes: Tensor
    """[l] whose past each lane of branches sees"""

    def of_lanes(self, lanes: Tensor) -> FusedMemory:
        """The memory of some of them. Nothing is copied: branches are told where to look."""
        return replace(self, lanes=self.lanes[lanes])


@dataclass(frozen=True)
class Asking:
    """Which tokens of each lane ask and are answered: `count` of `tokens`, from `first` on, each `every`th."""

    lanes: int
    tokens: int
    count: int
    first: int = 0
    every: int = 1

    @property
    def rows(self) -> int:
        """Of all lanes."""
        return self.lanes * self.count


@dataclass(frozen=True)
class Seen:
    """What those who ask look back on; see `kernels.look_back`."""

    past: Tensor
    """[L, P, 3 * E]"""
    hidden: Tensor
    """[L, P]"""
    lanes: Tensor
    """[l]"""
    own: int = 0
    """Tokens of a branch; 0 where it is the past that asks."""


class FusedEmbedding(nn.Module):
    """What a `TokenEmbedding` becomes: a kernel for each kind."""

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
        for first, (kind, given) in enumerate(values.items()):
            linear, (value, stride, share) = self.of_kind[kind], _rows_of(given)
            kernels.embed[(triton.cdiv(rows, EMBED["R"]),)](
                value, stride, share, linear.weight, linear.bias, self.of_time.weight, time, time_stride, time_share,
                self.norm.weight, self.norm.bias, out, rows, value.shape[-1], steps, steps * every, first, every,
                self.horizon, self.norm.eps, W=width, **EMBED,
            )  # fmt: skip
        return out


class FusedTrunk(nn.Module):
    """What a `Trunk` becomes: three kernels a block; the last norm is part of the last one."""

    def __init__(self, plain: Trunk) -> None:
        super().__init__()
        self.norm, self.heads = plain.norm, plain.config.heads
        self.blocks = plain.blocks

    def prefill(self, tokens: Tensor, valid: Tensor) -> tuple[Tensor, FusedMemory]:
        """As `Trunk.prefill`: [L, P, E], [L, P] -> the last output [L, E] and the memory of all."""
        lanes, length, _ = tokens.shape
        hidden = torch.zeros(valid.shape, device=valid.device).masked_fill_(~valid, -torch.inf)
        everybody = torch.arange(lanes, device=valid.device)
        x, kept = tokens.contiguous(), []
        for number in range(len(self.blocks)):
            asking = Asking(lanes, length, length)
            if self._is_last(number):
                asking = Asking(lanes, length, 1, first=length - 1)
            kept.append(_ask(self._block(number), x))
            x = self._look_and_answer(
                number, x, kept[-1], asking, Seen(kept[-1], hidden, everybody)
            )
        return x[:, 0], FusedMemory(tuple(kept), hidden, everybody)

    def branch(self, tokens: Tensor, memory: FusedMemory) -> Tensor:
        """As `Trunk.branch`: [L, N, m, E] -> the last outputs [L, N, E]."""
        lanes, branches, own, _ = tokens.shape
        x = tokens.contiguous()
        for number, past in enumerate(memory.projected):
            asking = Asking(lanes, branches * own, branches * own)
            if self._is_last(number):
                asking = Asking(lanes, branches * own, branches, first=own - 1, every=own)
            projected = _ask(self._block(number), x)
            x = self._look_and_answer(
                number, x, projected, asking, Seen(past, memory.hidden, memory.lanes, own)
            )
        return x

    def _look_and_answer(
        self, number: int, x: Tensor, projected: Tensor, asking: Asking, seen: Seen
    ) -> Tensor:
        """The rest of a block after its projection: [L, ..., E] -> [L, asking.count, E]."""
        block, width = self._block(number), x.shape[-1]
        maps, perceptron = block.attention.output, block.perceptron
        mixed, out = (x.new_empty(asking.lanes, asking.count, width) for _ in range(2))
        how = _how(LOOK_BACK, LOOK_BACK_FEW, asking.rows, width)
        kernels.look_back[(triton.cdiv(asking.count, how["R"]), asking.lanes * self.heads)](
            projected, seen.past, seen.hidden, seen.lanes, mixed, asking.count, asking.tokens, asking.first,
            asking.every, seen.past.shape[1], (width // self.heads) ** -0.5, H=self.heads, M=seen.own, **how,
        )  # fmt: skip
        how = _how(ANSWER, ANSWER_FEW, asking.rows, width)
        kernels.answer[(triton.cdiv(asking.rows, how["R"]),)](
            x, mixed, maps.weight, maps.bias, block.perceptron_norm.weight, block.perceptron_norm.bias,
            perceptron[0].weight, perceptron[0].bias, perceptron[2].weight, perceptron[2].bias, self.norm.weight,
            self.norm.bias, out, asking.rows, asking.count, asking.tokens, asking.first, asking.every,
            block.perceptron_norm.eps, LAST=self._is_last(number), **how,
        )  # fmt: skip
        return out

    def _block(self, number: int) -> Block:
        block = self.blocks[number]
        assert isinstance(block, Block)
        return block

    def _is_last(self, number: int) -> bool:
        return number == len(self.blocks) - 1


def draw_returns(
    expected: Gaussian, noise: Tensor, normalizer: Normalizer
) -> tuple[Tensor, Tensor]:
    """As `SaFormer.sample_returns`, of a Gaussian over [L, 1]: [L, N, 1] and their log-density [L, N]."""
    noise = noise.contiguous()
    asked, density = torch.empty_like(noise), torch.empty_like(noise)
    kernels.draw_returns[(triton.cdiv(noise.numel(), DRAW_RETURNS["R"]),)](
        expected.mean.contiguous(), expected.log_deviation.contiguous(), noise, normalizer.centre("return_to_go"),
        normalizer.scale("return_to_go"), asked, density, noise.numel(), noise.shape[1], **DRAW_RETURNS,
    )  # fmt: skip
    return asked[..., None], density


def draw_actions(
    outputs: Tensor,
    head: GaussianHead,
    noise: Tensor,
    normalizer: Normalizer,
    bounds: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """As `SaFormer.sample_actions`, of the actor's outputs [L, N, E]: [L, N, A] and their log-density [L, N]."""
    noise = noise.contiguous()
    action, density = torch.empty_like(noise), noise.new_empty(noise.shape[:-1])
    kernels.draw_actions[(triton.cdiv(density.numel(), DRAW_ACTIONS["R"]),)](
        outputs, head.linear.weight, head.linear.bias, noise, normalizer.centre("action"), normalizer.scale("action"),
        *bounds, action, density, density.numel(), noise.shape[-1], *LOG_DEVIATION_RANGE, W=outputs.shape[-1],
        **DRAW_ACTIONS,
    )  # fmt: skip
    return action, density


def _ask(block: Block, x: Tensor) -> Tensor:
    """Queries, keys and values of all tokens: [L, ..., E] -> [L, tokens, 3 * E]."""
    linear, norm, width = (
        block.attention.query_key_value,
        block.attention_norm,
        block.attention_norm.weight.numel(),
    )
    out, rows = x.new_empty(len(x), x[0].numel() // width, 3 * width), x.numel() // width
    how = _how(ASK, ASK_FEW, rows, width)
    kernels.ask[(triton.cdiv(rows, how["R"]),)](
        x, linear.weight, linear.bias, norm.weight, norm.bias, out, rows, norm.eps, **how
    )
    return out


def _how(
    many: Mapping[str, int], few: Mapping[str, int], rows: int, width: int
) -> dict[str, int | str]:
    """How to launch a kernel; narrow models have fewer columns than a tile."""
    how = few if rows <= FEW_ROWS else many
    columns = {name: min(how[name], width) for name in ("C", "K") if name in how}
    return {**how, **columns, "W": width, "P": PRECISION}


def _rows_of(values: Tensor) -> tuple[Tensor, int, int]:
    """[B, K, size], how far apart rows lie, and how many behind each other are the same one: K if it was repeated."""
    first, second, last = values.stride()
    if second == 0 and last == 1:
        return values, first, values.shape[1]
    values = values.contiguous()
    return values, values.shape[-1], 1
