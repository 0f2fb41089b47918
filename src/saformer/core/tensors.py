"""Two helpers for tensors wherever they lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on this device. The host does not wait for a GPU: a pinned copy is on its way,
    which the caller's next state cannot overwrite."""
    is_sent = device.type == "cuda" and not (tensor.is_cuda or tensor.is_pinned())
    return tensor.pin_memory().to(device, non_blocking=True) if is_sent else tensor.to(device)


def over_tensors(function: Callable[..., Tensor], *parts: Any) -> Any:
    """Apply a function to the tensors of equally built dataclasses and tuples, one of each; None
    stays None."""
    first = parts[0]
    if first is None or isinstance(first, Tensor):
        return None if first is None else function(*parts)
    if isinstance(first, tuple):
        return tuple(over_tensors(function, *members) for members in zip(*parts, strict=True))
    columns = [[getattr(part, field.name) for part in parts] for field in fields(first)]
    return type(first)(*(over_tensors(function, *column) for column in columns))
