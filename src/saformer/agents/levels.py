"""Models that propose what a machine can take, where that is certain values alone."""

from typing import Any

import torch
from torch import Tensor, nn

from saformer.data.levels import LEVELS, on_levels
from saformer.data.store import EnvironmentSpec


def fix_levels(module: nn.Module, environment: EnvironmentSpec) -> None:
    """Keep the values that actions can take, if any are known, with the module's weights."""
    levels = environment.action_levels
    if levels:
        size = max(map(len, levels))
        rows = [[*values, *[torch.nan] * (size - len(values))] for values in levels]
        module.register_buffer(LEVELS, torch.tensor(rows))


def make_room_for_levels(
    module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any
) -> None:
    """Before weights are loaded that hold them."""
    if f"{prefix}{LEVELS}" in state_dict:
        module.register_buffer(LEVELS, torch.empty_like(state_dict[f"{prefix}{LEVELS}"]))


class OnLevels:
    """A model that proposes what the machine can take, so that nothing else is verified."""

    def __init__(self, model: Any, levels: Tensor) -> None:
        self._model, self._levels = model.eval(), levels

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def eval(self) -> "OnLevels":
        return self

    def sample_actions(self, *proposal: Any) -> tuple[Tensor, Tensor]:
        action, log_density = self._model.sample_actions(*proposal)
        return on_levels(action, self._levels), log_density
