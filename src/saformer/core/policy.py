"""What acts: any method that drives episodes within limits keeps to this protocol."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from saformer.core.tensors import to_device

if TYPE_CHECKING:
    from saformer.core.budget import Budget
    from saformer.core.proposals import Candidates, Verification


@dataclass(frozen=True)
class Decision:
    """One action per lane, and how it came about. A policy that asks for no return, proposes no
    candidates or has no critic leaves those fields None."""

    action: Tensor
    """[L, A] what to execute"""
    return_to_go: Tensor | None = None
    """[L] the return that was asked for with it"""
    chosen: Tensor | None = None
    """[L] its index among the candidates"""
    num_safe: Tensor | None = None
    """[L] candidates of the last round that were forecast to stay within the budget"""
    num_rounds: Tensor | None = None
    """[L] rounds of proposals; more than 1 means that whole rounds were rejected"""
    fell_back: Tensor | None = None
    """[L] bool: the rule did not choose as usual; by the paper's, no round had a safe candidate"""
    candidates: Candidates | None = None
    """all that was proposed in the last round"""
    verification: Verification | None = None
    """what the critic made of it"""
    shielded: Tensor | None = None
    """[L] bool: a shield made the action cheaper than it was chosen; None without one"""


class Policy(Protocol):
    """Drives L episodes at once. `lanes` names the ones a call is about; all of them by default."""

    @property
    def budget(self) -> Budget:
        """The accounts of its episodes. Limits may be moved there mid-episode."""

    def reset(self, state: Tensor, limit: Tensor, lanes: Tensor | None = None) -> None:
        """Begin episodes: states [L, S], limits [L, C]."""

    def act(self, state: Tensor, lanes: Tensor | None = None) -> Decision:
        """Choose one action per lane for states [L, S]."""

    def observe(
        self,
        reward: Tensor,
        cost: Tensor,
        lanes: Tensor | None = None,
        *,
        action: Tensor | None = None,
    ) -> None:
        """Tell what the last action brought: rewards [L], costs [L, C]; `action` [L, A] if another
        was executed."""


def as_rows(
    value: object, width: int, device: torch.device, *, least: float = -torch.inf
) -> Tensor:
    """Numbers, lists, arrays or tensors as float [rows, width], checked where they are; one row may
    lack an axis."""
    tensor = torch.as_tensor(value, dtype=torch.float32)
    if tensor.ndim < 2:
        tensor = tensor.reshape(-1, width) if tensor.numel() % width == 0 else tensor.reshape(1, -1)
    if tensor.shape[1] != width:
        raise ValueError(
            f"expected {width} values per lane, got an array of shape {tuple(tensor.shape)}"
        )
    if tensor.numel():
        low, high = (edge.item() for edge in tensor.aminmax())  # NaN if anything is
        if not math.isfinite(high - low):
            raise ValueError(
                "got NaN or infinite values; a decision needs finite states, rewards, costs and "
                "limits"
            )
        if low < least:
            raise ValueError(f"costs and limits must be at least {least:g}, got {low:g}")
    return to_device(tensor, device)
