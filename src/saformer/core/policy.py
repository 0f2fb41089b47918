"""What acts: any method that drives episodes within limits keeps to this protocol."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from saformer.core.budget import LARGEST, Budget, require_numbers


@dataclass(frozen=True)
class Candidates:
    """N proposals per lane, in raw units. Number 0 is the mean of both heads."""

    return_to_go: Tensor  # [L, N]
    action: Tensor  # [L, N, A] within bounds
    log_density: Tensor  # [L, N] how probable the actor finds them


@dataclass(frozen=True)
class Verification:
    """What the critic says of the candidates, in raw units."""

    cost: Tensor  # [L, N, C] the forecast, read at the rule's risk
    remaining: Tensor  # [L, C] what it is held against
    overrun: Tensor  # [L, N] the worst constraint's, beyond its budget, in that cost's scale

    @cached_property
    def safe(self) -> Tensor:
        """[L, N] bool: every constraint is forecast to hold."""
        return (self.cost <= self.remaining[:, None]).all(-1)


@dataclass(frozen=True)
class Decision:
    """One action per lane, and how it came about; None for what a policy knows nothing of."""

    action: Tensor  # [L, A] what to execute
    return_to_go: Tensor | None = None  # [L] the return that was asked for with it
    chosen: Tensor | None = None  # [L] its index among the candidates
    num_safe: Tensor | None = None  # [L] candidates of its round forecast to keep the budget
    num_rounds: Tensor | None = None  # [L] more than 1 if whole rounds of proposals were rejected
    fell_back: Tensor | None = None  # [L] bool: no usual choice; in the paper, no safe candidate
    candidates: Candidates | None = None  # of the round that decided
    verification: Verification | None = None  # what the critic made of them
    score: Tensor | None = None  # [L] of a fallback: the round of the lowest decides
    shielded: Tensor | None = None  # [L] bool: a shield made the action cheaper

    def on_host(self, lanes: Tensor) -> Self:
        """Its action where it is executed, if it is numbers: callers wait for nothing else."""
        action = require_numbers(self.action.cpu(), "action from these weights and limit", lanes)
        return self if action is self.action else replace(self, action=action)


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
        self, reward: Tensor, cost: Tensor, lanes: Tensor | None = None, *, action: Any = None
    ) -> None:
        """Tell what the last action, or the `action` [L, A] in its place, brought: [L], [L, C]."""


def as_rows(value: object, width: int, what: str, device: Any = None, lanes: Any = None) -> Tensor:
    """Numbers, lists or arrays as checked [rows, width]; one row may lack an axis. float32 on the
    device; without one, costs or limits: float64 on the host, at least 0."""
    tensor = torch.as_tensor(value, dtype=torch.float32 if device else torch.float64)
    if tensor.ndim < 2:
        tensor = tensor.reshape(-1, width) if tensor.numel() % width == 0 else tensor.reshape(1, -1)
    if tensor.shape[1] != width:
        raise ValueError(f"expected {width} values per lane, got shape {tuple(tensor.shape)}")
    require_numbers(tensor, what, lanes, least=-LARGEST if device else 0.0)
    return to_device(tensor, device) if device else tensor.cpu()


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor there. Nobody waits for a GPU: the caller may overwrite what a pinned copy has."""
    is_sent = device.type == "cuda" and not (tensor.is_cuda or tensor.is_pinned())
    return tensor.pin_memory().to(device, non_blocking=True) if is_sent else tensor.to(device)


def over_tensors(function: Callable[..., Tensor], *trees: Any) -> Any:
    """Apply a function to the tensors of equally built dataclasses and tuples; None stays None."""
    first = trees[0]
    if first is None or isinstance(first, Tensor):
        return None if first is None else function(*trees)
    if isinstance(first, tuple):
        return tuple(over_tensors(function, *parts) for parts in zip(*trees, strict=True))
    columns = [[getattr(tree, field.name) for tree in trees] for field in fields(first)]
    return type(first)(*(over_tensors(function, *column) for column in columns))
