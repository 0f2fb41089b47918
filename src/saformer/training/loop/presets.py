"""Sizes that are known to work, and the paper's own method."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_type_hints

from saformer.agents.registry import find_kind, name_of
from saformer.agents.saformer import SaFormerConfig
from saformer.core.transformer import TrunkConfig
from saformer.training.loop.config import FitConfig

SEQUENCE = {"window": 5, "trunk": TrunkConfig(layers=2, width=64, dropout=0.0)}
SMALL: dict[str, dict[str, Any]] = {
    "saformer": {"candidates": 32, **SEQUENCE},
    "dt": SEQUENCE,
    "cdt": SEQUENCE,
    "bc_safe": {"trunk": SEQUENCE["trunk"]},
    "bcq_lag": {"hidden": (128, 128), "acting_candidates": 3},
    "cpq": {"hidden": (128, 128)},
    "coptidice": {"hidden": (128, 128), "dropout": 0.0},
    "caps": {"hidden": (128, 128), "dropout": 0.0},
    "bcrl": {"hidden": (128, 128), "dropout": 0.0},
}
"""What preset `small` changes of our agents' configs; others have one size."""
PUBLISHED: dict[str, dict[str, Any]] = {"saformer": {"rule": "paper", "to_go_weight": 1.0}}
"""What makes the method the paper's own: of ours, what is changed back."""


@dataclass(frozen=True)
class Preset:
    """An agent's config and how to train it."""

    agent: Any = field(default_factory=SaFormerConfig)
    fit: FitConfig = field(default_factory=FitConfig)


def full(agent: str = "saformer") -> Preset:
    """Our method at the paper's sizes (Table 6), 100,000 updates. Wants a GPU."""
    return Preset(find_kind(agent).config_type())


def as_published(preset: Preset) -> Preset:
    """The preset with the paper's method: Eq. 5 to 7 and Algorithm 1 as they are written."""
    own = PUBLISHED.get(name_of(preset.agent), {})
    return replace(preset, agent=replace(preset.agent, **own))


def paper(agent: str = "saformer") -> Preset:
    """SaFormer exactly as published: the paper's sizes and method. Wants a GPU."""
    return as_published(full(agent))


def small(agent: str = "saformer") -> Preset:
    """A small model that trains in a few minutes on two CPU cores."""
    config = find_kind(agent).config_type()
    fit = FitConfig(updates=6000, batch_size=64, learning_rate=3e-3, warmup_updates=200)
    fit = replace(fit, checkpoint_every=500, evaluate_every=2000)
    return Preset(replace(config, **SMALL.get(agent, {})), fit)


PRESETS: dict[str, Callable[..., Preset]] = {"small": small, "full": full, "paper": paper}


def changed_preset(preset: Preset, changes: Mapping[str, Any]) -> Preset:
    """The preset with other settings: `updates` and others of `FitConfig`, those of the agent's
    config, and of its transformer."""
    parts: dict[str, Any] = {"fit": preset.fit, "agent": preset.agent}
    if hasattr(preset.agent, "trunk"):
        parts["trunk"] = preset.agent.trunk
    owners = {each.name: part for part, own in parts.items() for each in fields(own)}
    owners.pop("trunk", None)  # its own are named
    for name, value in changes.items():
        if name not in owners:
            nearest = difflib.get_close_matches(name, owners, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(owners)}"
            raise ValueError(f"{name_of(preset.agent)} has no setting {name!r} to train by; {hint}")
        parts[owners[name]] = replace(parts[owners[name]], **{name: value})
    if "trunk" in parts:
        parts["agent"] = replace(parts["agent"], trunk=parts.pop("trunk"))
    return Preset(**parts)


def settings_of(config: Any) -> dict[str, Any]:
    """The types of what `changed_preset` can change of an agent's config, by name."""
    own = get_type_hints(type(config))
    return own | get_type_hints(own.pop("trunk", object))


def find_preset(preset: str | Preset, agent: str | None) -> Preset:
    """The preset, of this agent where it is named."""
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise ValueError(f"unknown preset {preset!r}; known are {', '.join(PRESETS)}")
        return PRESETS[preset](agent or "saformer")
    own = name_of(preset.agent)
    if agent is not None and find_kind(agent) is not find_kind(own):
        raise ValueError(f"the preset is for {own}, not for {agent}: leave one of them out")
    return preset
