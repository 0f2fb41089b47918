"""Behaviour cloning of what stayed within the limit."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

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
from saformer.core.objectives import PerSample, over_valid_steps
from saformer.core.tokens import Layout
from saformer.core.transformer import TrunkConfig
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import WindowSampler


@dataclass(frozen=True)
class BCSafeConfig:
    """What is learnt, and from which trajectories. Sizes are the paper's Table 6 (DT's column)."""

    limit: tuple[float, ...] = ()
    """What a trajectory may have cost to be learnt from, for each constraint."""
    best: float = 1.0
    """Share of these trajectories to learn from, those of the highest return; 1 for all, as in the
    original."""
    window: int = 1
    """K: steps that the network looks back over; 1 for the present state alone, as in the
    original."""
    cost_discount: float = 1.0
    """gamma_c: how much less a cost counts with every step of the episode; 1 counts all alike."""
    trunk: TrunkConfig = field(default_factory=TrunkConfig)
    """Size of the transformer; over one step it is a residual perceptron."""

    def __post_init__(self) -> None:
        check_config(self)
        if not 0 < self.best <= 1:
            raise ValueError(f"best must lie in (0, 1], got {self.best}")


@dataclass(frozen=True)
class BCSafeOptions:
    """How a trained BC-Safe acts."""

    noise: Noise = "none"
    """none: act by the mean; normal: a sample; two_point: one deviation above or below, for data of
    either sign."""
    temperature: float = 1.0
    """Spread of the noise, in deviations."""
    seed: int = 0
    """Seed of the noise."""


class BCSafeAgent(ActsOneWay):
    """Imitates the trajectories within one limit, for which it is trained."""

    name = "bc_safe"
    means = (("noise", "none"),)
    num_models = 1
    averages: tuple[MovingAverage, ...] = ()

    def __init__(self, dimensions: Dimensions, config: BCSafeConfig) -> None:
        if len(config.limit) != dimensions.constraints:
            raise ValueError(
                f"bc_safe needs one limit for each of {dimensions.constraints} constraints, got "
                f"{list(config.limit)}: "
                "give it with limit (--limit p20)"
            )
        self.dimensions = dimensions
        self.config = config
        layout = Layout(("state",) if config.window == 1 else ("state", "action"))
        self.model = SequenceModel(layout, dimensions, config.trunk, GaussianHead)

    @classmethod
    def create(cls, data: RelabelledStore, config: BCSafeConfig, *, seed: int) -> BCSafeAgent:
        """A fresh agent for this data: initialised by the seed, its units fixed by the data's
        statistics."""
        agent = seeded(cls, data, config, seed=seed)
        agent.model.fix_units(data)
        learnt_from(data, config)  # refused now, not when training begins
        return agent

    def sampler(self, data: RelabelledStore, device: torch.device | str = "cpu") -> WindowSampler:
        """Windows of K steps of the trajectories within the limit."""
        return WindowSampler(
            learnt_from(data, self.config), window=self.config.window, device=device
        )

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One network, one loss."""
        return (Phase("actor", tuple(self.model.parameters()), self.actor_terms),)

    def actor_terms(self, batch: WindowBatch) -> dict[str, PerSample]:
        """Negative log-likelihood of the action, in model units."""
        batch = self.model.normalizer.window(batch)
        return {"action": over_valid_steps(-self.model(batch).log_prob(batch.action), batch.valid)}

    @property
    def default_options(self) -> BCSafeOptions:
        """How to act unless told otherwise."""
        return BCSafeOptions()

    def policy(self, options: BCSafeOptions | None = None) -> SequencePolicy:
        """Acts as the trajectories within the limit did, whatever limit it is then given."""
        options = options or self.default_options
        return SequencePolicy(
            self.model,
            window=self.config.window,
            cost_discount=self.config.cost_discount,
            target=lambda limit: limit.new_zeros(len(limit)),  # it asks for no return
            drawing=Drawing(options.noise, options.temperature, options.seed),
        )


def learnt_from(data: RelabelledStore, config: BCSafeConfig) -> RelabelledStore:
    """The trajectories within the limit, or the best of them."""
    within = np.flatnonzero((data.episode_cost <= np.array(config.limit)).all(-1))
    if len(within) == 0:
        least = ", ".join(f"{cost:.4g}" for cost in data.episode_cost.min(0))
        raise ValueError(
            f"no trajectory stays within the limit {list(config.limit)}, so bc_safe has nothing "
            "to learn from: "
            f"the cheapest costs {least}"
        )
    order = np.argsort(-data.episode_return[within], kind="stable")
    return data.filter(np.sort(within[order[: max(1, round(config.best * len(within)))]]))
