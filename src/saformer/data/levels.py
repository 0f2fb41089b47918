"""Actions that a machine takes at certain values alone: on and off, or the steps of a fan."""

import torch
from torch import Tensor

LEVELS = "action_levels"
"""The name under which a model keeps them, with its weights: [A, K], NaN beyond those of an entry,
and throughout where it may be any number."""


def on_levels(action: Tensor, levels: Tensor | None) -> Tensor:
    """Actions [..., A] with each entry at its nearest level [A, K]."""
    if levels is None:
        return action
    distance = (action[..., None] - levels).abs().nan_to_num(nan=torch.inf)
    index = distance.argmin(-1, keepdim=True)
    nearest = levels.expand(distance.shape).gather(-1, index)[..., 0]
    return torch.where(nearest.isnan(), action, nearest)
