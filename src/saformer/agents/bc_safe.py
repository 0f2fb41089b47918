"""Behaviour cloning of the trajectories that stayed within the limit."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from saformer.agents.networks import fix_action_units
from saformer.agents.sequence import (
    ImitatingAgent,
    SequenceConfig,
    SequenceModel,
    SequenceOptions,
    SequencePolicy,
)
from saformer.core.batch import Dimensions
from saformer.core.gaussian import GaussianHead
from saformer.core.tokens import Layout
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import WindowSampler


@dataclass(frozen=True)
class BCSafeConfig(SequenceConfig):
    """What is learnt, and from which trajectories. Sizes are the paper's Table 6 (DT's column)."""

    limit: tuple[float, ...] = ()
    """What a trajectory may have cost to be learnt from, for each constraint."""
    best: float = 1.0
    """Share of these trajectories to learn from, those of the highest return; the original: 1."""
    window: int = 1
    """K: steps that the network looks back over; 1 for the present state alone, as in the original:
    the transformer is a residual perceptron then."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.best <= 1:
            raise ValueError(f"best must lie in (0, 1], got {self.best}")


class BCSafeAgent(ImitatingAgent):
    """Imitates the trajectories within one limit, for which it is trained."""

    name = "bc_safe"
    description = "behaviour cloning of the trajectories within one limit"
    config_type, rules = BCSafeConfig, {"bc_safe": SequenceOptions}
    has_one_limit = True
    config: BCSafeConfig

    def __init__(self, dimensions: Dimensions, config: BCSafeConfig) -> None:
        super().__init__(dimensions, config)
        if len(config.limit) != dimensions.constraints:
            needed = f"bc_safe needs one limit for each of {dimensions.constraints} constraints"
            raise ValueError(f"{needed}, got {list(config.limit)}: give it a limit (--limit p20)")
        layout = Layout(("state",) if config.window == 1 else ("state", "action"))
        self.model = SequenceModel(layout, dimensions, config.trunk, GaussianHead)

    def fix_units(self, data: RelabelledStore) -> None:
        fix_action_units(self.model, data)
        learnt_from(data, self.config)  # refused now, not when training begins

    def sampler(self, data: RelabelledStore, device: torch.device | str = "cpu") -> WindowSampler:
        return super().sampler(learnt_from(data, self.config), device)

    def policy(self, options: SequenceOptions | None = None) -> SequencePolicy:
        """Acts as the trajectories within its limit did, whatever limit it is then given."""

        def no_target(limit: Tensor) -> Tensor:
            return limit.new_zeros(len(limit))

        return SequencePolicy(self.model, self.config, no_target, options or self.options())


def learnt_from(data: RelabelledStore, config: BCSafeConfig) -> RelabelledStore:
    """The trajectories within the limit, or the best of them."""
    within = np.flatnonzero((data.episode_cost <= np.array(config.limit)).all(-1))
    if len(within) == 0:
        least = ", ".join(f"{cost:.4g}" for cost in data.episode_cost.min(0))
        raise ValueError(
            f"no trajectory stays within the limit {list(config.limit)}, so bc_safe has nothing to "
            f"learn from: the cheapest costs {least}"
        )
    order = np.argsort(-data.episode_return[within], kind="stable")
    return data.filter(np.sort(within[order[: max(1, round(config.best * len(within)))]]))
