"""Decision Transformer: acts as those trajectories did that earned what it is asked to earn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from saformer.agents.agent import ActsOneWay, MovingAverage, Phase
from saformer.agents.sequence import (
    Drawing,
    Noise,
    SequenceModel,
    SequencePolicy,
    check_config,
    seeded,
)
from saformer.core.batch import Dimensions, WindowBatch
from saformer.core.gaussian import GaussianHead
from saformer.core.objectives import PerSample, action_error, over_valid_steps
from saformer.core.tokens import Layout
from saformer.core.transformer import TrunkConfig
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import WindowSampler
from saformer.data.totals import Totals

LAYOUT = Layout(("return_to_go", "state", "action"))
PAPER_TARGETS = {"Hopper": 3600.0, "Walker2d": 5000.0, "HalfCheetah": 6000.0}
"""What the paper asks of DT, by robot."""


@dataclass(frozen=True)
class DTConfig:
    """What is learnt. The defaults are the paper's Table 6."""

    window: int = 20
    """K: steps that the network looks back over, the present one included."""
    action: Literal["point", "gaussian"] = "point"
    """point: one action, by squared error (Eq. 2). gaussian: by likelihood, for data that acts in
    several ways."""
    cost_discount: float = 1.0
    """gamma_c: how costs are counted when the policy is judged; it does not learn from them."""
    trunk: TrunkConfig = field(default_factory=TrunkConfig)
    """Size of the transformer."""

    def __post_init__(self) -> None:
        check_config(self)


@dataclass(frozen=True)
class DTOptions:
    """How a trained DT acts."""

    target_return: float | None = None
    """The return to ask for; by default the paper's 3600, 5000, 6000 (Hopper, Walker2d,
    HalfCheetah), else the highest in the data."""
    noise: Noise = "none"
    """Of a run trained with action gaussian. none: its mean; normal: a sample; two_point: one
    deviation above or below."""
    temperature: float = 1.0
    """Spread of the noise, in deviations."""
    seed: int = 0
    """Seed of the noise."""


class DTAgent(ActsOneWay):
    """Decision Transformer (Chen et al., 2021), the paper's unconstrained baseline: it pays no heed
    to limits."""

    name = "dt"
    means = (("noise", "none"),)
    num_models = 1
    averages: tuple[MovingAverage, ...] = ()

    def __init__(self, dimensions: Dimensions, config: DTConfig) -> None:
        self.dimensions = dimensions
        self.config = config
        head = nn.Linear if config.action == "point" else GaussianHead
        self.model = SequenceModel(LAYOUT, dimensions, config.trunk, head)
        self.model.register_buffer("target_return", torch.zeros(()))

    @classmethod
    def create(cls, data: RelabelledStore, config: DTConfig, *, seed: int) -> DTAgent:
        """A fresh agent for this data: initialised by the seed, its units fixed by the data's
        statistics."""
        agent = seeded(cls, data, config, seed=seed)
        agent.model.fix_units(data)
        agent.model.get_buffer("target_return").fill_(usual_target(data))
        return agent

    def sampler(self, data: RelabelledStore, device: torch.device | str = "cpu") -> WindowSampler:
        """Windows of K steps."""
        return WindowSampler(data, window=self.config.window, device=device)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One network, one loss."""
        return (Phase("actor", tuple(self.model.parameters()), self.actor_terms),)

    def actor_terms(self, batch: WindowBatch) -> dict[str, PerSample]:
        """Eq. 2, in model units; the likelihood where a Gaussian is learnt."""
        batch = self.model.normalizer.window(batch)
        predicted = self.model(batch)
        if isinstance(predicted, Tensor):
            return {"action": action_error(predicted, batch.action, batch.valid)}
        return {"action": over_valid_steps(-predicted.log_prob(batch.action), batch.valid)}

    @property
    def default_options(self) -> DTOptions:
        """How to act unless told otherwise."""
        return DTOptions()

    def policy(self, options: DTOptions | None = None) -> SequencePolicy:
        """Acts towards a target return."""
        options = options or self.default_options
        if self.config.action == "point" and options.noise != "none":
            raise ValueError(
                f"noise {options.noise!r} needs a Gaussian: train with --action gaussian"
            )
        asked = options.target_return
        target = self.model.get_buffer("target_return") if asked is None else torch.tensor(asked)
        return SequencePolicy(
            self.model,
            window=self.config.window,
            cost_discount=self.config.cost_discount,
            target=lambda limit: target.to(limit).repeat(len(limit)),
            drawing=Drawing(options.noise, options.temperature, options.seed),
        )


def usual_target(data: Totals) -> float:
    """The paper's constant for its three robots; elsewhere the highest return in the data."""
    robot = (data.environment.identifier or "").partition("-")[0]
    return PAPER_TARGETS.get(robot, float(data.episode_return.max()))
