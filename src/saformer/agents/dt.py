"""Decision Transformer: acts as those trajectories did that earned the return it is asked for."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

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
from saformer.data.limits import Totals
from saformer.data.relabel import RelabelledStore

LAYOUT = Layout(("return_to_go", "state", "action"))
PAPER_TARGETS = {"Hopper": 3600.0, "Walker2d": 5000.0, "HalfCheetah": 6000.0}
"""What the paper asks of DT, by robot."""


@dataclass(frozen=True)
class DTConfig(SequenceConfig):
    """What is learnt. The defaults are the paper's Table 6. Costs only count when it is judged."""

    action: Literal["point", "gaussian"] = "point"
    """point: by squared error (Eq. 2). gaussian: by likelihood, for data of several behaviours."""


@dataclass(frozen=True)
class DTOptions(SequenceOptions):
    """How a trained DT acts; noise is for runs trained with action gaussian."""

    target_return: float | None = None
    """The return to ask for; by default the paper's 3600, 5000, 6000 (Hopper, Walker2d,
    HalfCheetah), else the highest in the data."""


class DTAgent(ImitatingAgent):
    """Decision Transformer (Chen et al., 2021), the unconstrained baseline: it heeds no limits."""

    name, ignores_costs = "dt", True
    description = "Decision Transformer: asked for a return, heeds no limit"
    config_type, rules = DTConfig, {"dt": DTOptions}
    config: DTConfig

    def __init__(self, dimensions: Dimensions, config: DTConfig) -> None:
        super().__init__(dimensions, config)
        head = nn.Linear if config.action == "point" else GaussianHead
        self.model = SequenceModel(LAYOUT, dimensions, config.trunk, head)
        self.model.register_buffer("target_return", torch.zeros(()))

    def fix_units(self, data: RelabelledStore) -> None:
        fix_action_units(self.model, data)
        self.model.get_buffer("target_return").fill_(usual_target(data))

    def policy(self, options: DTOptions | None = None) -> SequencePolicy:
        options = options or self.options()
        if self.config.action == "point" and options.noise != "none":
            noise = f"noise {options.noise!r}"
            raise ValueError(f"{noise} needs a Gaussian: train with --action gaussian")
        target = self.model.get_buffer("target_return")
        if options.target_return is not None:
            target = torch.tensor(options.target_return)

        def targets(limit: Tensor) -> Tensor:
            return target.to(limit).repeat(len(limit))

        return SequencePolicy(self.model, self.config, targets, options)


def usual_target(data: Totals) -> float:
    """The paper's constant for its three robots; elsewhere the highest return in the data."""
    robot = (data.environment.identifier or "").partition("-")[0]
    return PAPER_TARGETS.get(robot, float(data.episode_return.max()))


def targets_to_try(data: Totals) -> list[float]:
    """From within the stored returns to beyond them, and the usual target."""
    low, high = float(data.episode_return.min()), float(data.episode_return.max())
    spread = {low + share * (high - low) for share in (0.25, 0.5, 0.75, 1.0, 1.25)}
    return sorted(spread | {usual_target(data)})
