"""Sizes that are known to work."""

from __future__ import annotations

from dataclasses import dataclass, field

from saformer.agents.saformer import SaFormerConfig
from saformer.core.transformer import TrunkConfig
from saformer.training.config import FitConfig


@dataclass(frozen=True)
class Preset:
    """A model and how to train it."""

    agent: SaFormerConfig = field(default_factory=SaFormerConfig)
    fit: FitConfig = field(default_factory=FitConfig)


def paper() -> Preset:
    """The paper's sizes: 1.46 M parameters, 100,000 updates. Wants a GPU."""
    return Preset()


def small() -> Preset:
    """A small model that trains in a few minutes on two CPU cores."""
    return Preset(
        SaFormerConfig(
            window=5,
            candidates=32,
            temperature=0.5,
            past_return="highest",
            trunk=TrunkConfig(layers=2, width=64, dropout=0.0),
        ),
        FitConfig(
            updates=6000,
            batch_size=64,
            learning_rate=3e-3,
            warmup_updates=200,
            checkpoint_every=500,
            evaluate_every=2000,
        ),
    )


PRESETS = {"paper": paper, "small": small}
