"""Sizes that are known to work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from saformer.agents.bc_safe import BCSafeConfig
from saformer.agents.bcq_lag import BCQLagConfig
from saformer.agents.cdt import CDTConfig
from saformer.agents.coptidice import COptiDICEConfig
from saformer.agents.cpq import CPQConfig
from saformer.agents.dt import DTConfig
from saformer.agents.registry import find_kind
from saformer.agents.saformer import SaFormerConfig
from saformer.core.transformer import TrunkConfig
from saformer.training.loop.config import FitConfig


@dataclass(frozen=True)
class Preset:
    """An agent and how to train it."""

    agent: Any = field(default_factory=SaFormerConfig)
    """its config"""
    fit: FitConfig = field(default_factory=FitConfig)


def paper(agent: str = "saformer") -> Preset:
    """The paper's sizes (Table 6), 100,000 updates. Wants a GPU."""
    return Preset(find_kind(agent).config())


def small(agent: str = "saformer") -> Preset:
    """A small model that trains in a few minutes on two CPU cores."""
    find_kind(agent)
    return Preset(
        SMALL[agent],
        FitConfig(
            updates=6000,
            batch_size=64,
            learning_rate=3e-3,
            warmup_updates=200,
            checkpoint_every=500,
            evaluate_every=2000,
        ),
    )


SMALL_TRUNK = TrunkConfig(layers=2, width=64, dropout=0.0)
SMALL = {
    "saformer": SaFormerConfig(
        window=5, candidates=32, temperature=0.5, past_return="highest", trunk=SMALL_TRUNK
    ),
    "dt": DTConfig(window=5, trunk=SMALL_TRUNK),
    "cdt": CDTConfig(window=5, trunk=SMALL_TRUNK),
    "bc_safe": BCSafeConfig(trunk=SMALL_TRUNK),
    "bcq_lag": BCQLagConfig(hidden=(128, 128), acting_candidates=3),
    "cpq": CPQConfig(hidden=(128, 128)),
    "coptidice": COptiDICEConfig(hidden=(128, 128), dropout=0.0),
}
"""What preset `small` makes of each agent."""

PRESETS: dict[str, Callable[..., Preset]] = {"paper": paper, "small": small}
