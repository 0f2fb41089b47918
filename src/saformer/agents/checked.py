"""What a person may get wrong with a policy, answered in words before anything happens."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from saformer.core.batch import Dimensions
from saformer.core.budget import Budget
from saformer.core.policy import Decision, Policy

LimitOf = Callable[[str], Sequence[float]]
WHOLE = {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}
NUMBERS_PER_CANDIDATE = 24
"""Of each unit of width, while a round is decided: two tokens, with what attention and MLP hold."""


class CheckedPolicy:
    """A policy for people: rollouts, which are right by construction, drive the one within.

    It refuses what has another shape than [lanes, width], lanes that are not there, actions before
    `reset` or before `observe`, and observations of lanes that have not acted.
    """

    def __init__(
        self, policy: Policy, dimensions: Dimensions, limit_of: LimitOf | None = None
    ) -> None:
        self._policy, self._dimensions, self._limit_of = policy, dimensions, limit_of
        self._has_acted: list[bool] = []  # each lane: and is to be observed

    @property
    def budget(self) -> Budget:
        return self._policy.budget

    @property
    def rule(self) -> Any:
        """By which it acts, where it has one."""
        return getattr(self._policy, "rule", None)

    def reset(self, state: Any, limit: Any, lanes: Any = None) -> None:
        """Begin episodes on all lanes, or on the named ones: states [L, S], limits [L, C]. A limit
        may be a name ("p50", a percentile of the data's episode costs), or one for each lane."""
        index = None if lanes is None else self._lanes(lanes)
        count = None if index is None else len(index)
        states = _rows("state", state, self._dimensions.state, count)
        costs, width = self._in_costs(limit), self._dimensions.constraints
        limits = _rows("limit", costs, width, len(states), one_for_all=True)
        self._policy.reset(states, limits, _named(index))
        if index is None:
            self._has_acted = [False] * len(states)
        else:
            self._set(index, False)

    def _in_costs(self, limit: Any) -> Any:
        """Names in costs; numbers as they are."""
        names = [limit] if isinstance(limit, str) else limit
        if self._limit_of is None or not isinstance(names, list | tuple):
            return limit
        has_names = any(isinstance(name, str) for name in names)
        return [self._limit_of(str(name)) for name in names] if has_names else limit

    def act(self, state: Any, lanes: Any = None) -> Decision:
        """Choose one action per lane for states [L, S]."""
        index = self._lanes(lanes)
        states = _rows("state", state, self._dimensions.state, len(index))
        self._require(index, False, "has acted, but nobody said what that cost: call observe first")
        decision = self._policy.act(states, _named(index))
        self._set(index, True)
        return decision

    def observe(self, reward: Any, cost: Any, lanes: Any = None, *, action: Any = None) -> None:
        """Book rewards [L], costs [L, C] of the last step; `action` [L, A] if executed instead."""
        sizes, index = self._dimensions, self._lanes(lanes)
        count = len(index)
        rewards = _rows("reward", reward, 1, count)
        costs = _rows("cost", cost, sizes.constraints, count)
        executed = None if action is None else _rows("action", action, sizes.action, count)
        self._require(index, True, "has not acted since it was last observed: call act first")
        self._policy.observe(rewards, costs, _named(index), action=executed)
        self._set(index, False)

    def _require(self, lanes: Sequence[int], has_acted: bool, problem: str) -> None:
        for lane in lanes:
            if self._has_acted[lane] != has_acted:
                raise ValueError(f"lane {lane} {problem}")

    def _set(self, lanes: Sequence[int], has_acted: bool) -> None:
        for lane in lanes:
            self._has_acted[lane] = has_acted

    def _lanes(self, lanes: Any) -> Sequence[int]:
        """The named ones; a range: all."""
        count = len(self._has_acted)
        if count == 0:
            raise ValueError("no episode has begun: call reset(state, limit) first, for all lanes")
        if lanes is None:
            return range(count)
        given = _tensor(lanes)
        is_row = given is not None and given.ndim == 1 and given.dtype in WHOLE
        index: list[int] = given.tolist() if given is not None and is_row else []
        if not 0 < len(index) == len(set(range(count)) & {*index}):
            expected = (
                f"lanes are different whole numbers from 0 to {count - 1}, in a list or tensor"
            )
            raise ValueError(f"{expected}; got {_shown(lanes)}")
        return index


def _named(lanes: Sequence[int] | None) -> Tensor | None:
    """As a policy hears of lanes: None means all."""
    return None if lanes is None or isinstance(lanes, range) else torch.tensor(lanes)


def check_memory(candidates: int, model: nn.Module, width: int) -> None:
    """Refuse more candidates than this machine has memory for, before it is taken."""
    gigabytes = candidates * NUMBERS_PER_CANDIDATE * width * 4 / 1e9
    if gigabytes < 1:
        return
    device = next(model.parameters()).device
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory / 1e9
    else:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    if gigabytes > memory:
        needed = f"{candidates:,} candidates would take about {gigabytes:,.0f} GB for each lane"
        raise ValueError(f"{needed}, and there are {memory:,.0f} GB: take fewer (--candidates)")


def _rows(
    what: str, value: Any, width: int, count: int | None, *, one_for_all: bool = False
) -> Tensor:
    """Numbers [rows, width], as many rows as lanes; a single row may lack its axis."""
    tensor, got = _tensor(value), ""
    if tensor is None:
        got = _shown(value)
    elif tensor.is_complex() or tensor.dtype == torch.bool:
        got = f"{_shown(value)} of {tensor.dtype}"
    else:
        given = tensor
        if tensor.ndim < 2 and (width == 1 or tensor.shape == (width,)):
            tensor = tensor.reshape(-1, width)
        rows = len(tensor) if tensor.ndim == 2 and tensor.shape[1] == width else 0
        if rows and (count in {None, rows} or (one_for_all and rows == 1)):
            return tensor.detach() if tensor.requires_grad else tensor
        got = f"shape {tuple(given.shape)}"
    lanes = "lanes" if count is None else str(count)
    raise ValueError(f"{what} must be numbers of shape ({lanes}, {width}), got {got}")


def _tensor(value: Any) -> Tensor | None:
    """None: of what none can be made."""
    try:
        if {*map(type, value if isinstance(value, list) else [value])} == {float}:
            return torch.tensor(value, dtype=torch.float64)
        tensor = torch.as_tensor(value)
        is_rounded = tensor.dtype == torch.float32 and not hasattr(value, "dtype")
        return torch.as_tensor(value, dtype=torch.float64) if is_rounded else tensor
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def _shown(value: Any) -> str:
    text = repr(value).replace("\n", " ")
    return f"{type(value).__name__} {text if len(text) < 60 else text[:57] + '...'}"
