"""The precision of transformer blocks while training, and quick parts for bfloat16 on a CPU."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saformer.core.transformer import Attention, Trunk

SMALLEST_WIDTH = 128  # narrower trunks are quick enough on a CPU in float32, the same to the bit


def training_dtype(model: nn.Module, precision: str, device: torch.device) -> torch.dtype:
    """The type that blocks are computed in while training; auto: the fastest on this device."""
    if precision != "auto":
        dtype: torch.dtype = getattr(torch, precision)
        return dtype
    if device.type == "cuda":
        return torch.bfloat16
    wide = any(trunk.config.width >= SMALLEST_WIDTH for trunk in _trunks(model))
    return torch.bfloat16 if wide and _cpu_multiplies_bfloat16() else torch.float32


def set_training_dtype(model: nn.Module, dtype: torch.dtype) -> None:
    """Compute every transformer's blocks in this type, on a CPU with parts that are quick there."""
    for trunk in _trunks(model):
        trunk.training_dtype = dtype
        quick = dtype == torch.bfloat16 and trunk.norm.weight.device.type == "cpu"
        for module in list(trunk.modules()):
            if isinstance(module, Attention):
                module.attend = attend_quickly if quick else F.scaled_dot_product_attention
            for name, child in module.named_children():
                if isinstance(child, nn.Dropout):
                    kind = QuickDropout if quick else nn.Dropout
                    setattr(module, name, kind(child.p).train(child.training))


def _cpu_multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for it; others would only imitate it."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def _trunks(model: nn.Module) -> Iterator[Trunk]:
    return (module for module in model.modules() if isinstance(module, Trunk))


class QuickDropout(nn.Dropout):
    """Dropout that draws four decisions from one random integer; torch's draws one for each."""

    def forward(self, x: Tensor) -> Tensor:
        return x * dropout_mask(x.shape, self.p).to(x.dtype) if self.training and self.p else x


def dropout_mask(shape: torch.Size, share: float) -> Tensor:
    """0 for a share of the elements, 1 / (1 - share) for the rest, bfloat16, of torch's own stream.
    bfloat16 rounds that factor. So that dropping changes no mean, its inverse is the share that
    stays: for 0.1 it is 0.9014, the factor 1.1094."""
    factor = torch.tensor(1 / (1 - share), dtype=torch.bfloat16)
    threshold = round(2**16 * (1 - 1 / factor.item())) - 2**15
    size = shape.numel()
    drawn = torch.empty(-(-size // 4), dtype=torch.int64).random_(-(2**63), None)
    quarters = drawn.view(torch.int16)[:size]  # each one of 2**16 values, equally likely
    # In whole numbers and in place: comparisons and conversions from bool take ten times as long.
    stays = quarters.clamp_(threshold - 1, threshold).sub_(threshold - 1)
    return stays.mul_(factor.view(torch.int16).item()).view(torch.bfloat16).view(shape)


def attend_quickly(query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor | None,
                   is_causal: bool, dropout_p: float) -> Tensor:  # fmt: skip
    """`scaled_dot_product_attention` written out for windows in bfloat16: faster on a CPU."""
    if query.dtype != torch.bfloat16 or not is_causal:
        return F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal)
    # products of slices take half as long again
    query, key, value = (side.contiguous() for side in (query, key, value))
    length = query.shape[-2]
    later = torch.full((length, length), -torch.inf, dtype=query.dtype).triu(1)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2) + later  # [B, H, T, T]
    weights = scores.softmax(-1)
    if dropout_p:
        weights = weights * dropout_mask(weights.shape, dropout_p)
    return weights @ value
