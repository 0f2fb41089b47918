"""The least that must still be spent, as each member of the rule `feasible` sees it."""

from typing import Any

import torch
from torch import Tensor

from saformer.rules.outlook import Outlook

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class Fan:
    """Quantiles over members that saw different trajectories: how sure the least cost is."""

    def __init__(self, outlook: Outlook, normalizer: Any, *, may_end: bool) -> None:
        self._outlook, self._normalizer, self._setting = outlook, normalizer, int(may_end)

    @torch.inference_mode()
    def __call__(self, states: Tensor, timestep: Tensor) -> list[list[list[float]]]:
        """[L, C, quantiles] for states [L, S] before these steps [L] of their episodes."""
        outlook, when = self._outlook, timestep.long()
        scale, left = outlook.get_buffer("cost_scale"), outlook.weight_left(when)[:, None]
        if self._setting == 0 and bool(outlook.get_buffer("can_idle")):
            least = (outlook.get_buffer("idle_cost") * left)[None]
        else:
            state = self._normalizer.normalize("state", states.to(scale.device))
            least = outlook.least(state, when)[..., self._setting, :] * scale * left
        levels = torch.tensor(QUANTILES, device=least.device)
        fan: list[list[list[float]]] = least.quantile(levels, dim=0).permute(1, 2, 0).tolist()
        return fan
