"""Agents by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_type_hints

from torch import Tensor

from saformer.agents.agent import Agent
from saformer.agents.saformer import SaFormerAgent, SaFormerConfig
from saformer.core.batch import Dimensions
from saformer.data.relabel import RelabelledStore


@dataclass(frozen=True)
class Kind:
    """An agent class and its config."""

    agent: type[SaFormerAgent]
    config: type[SaFormerConfig]


KINDS = {"saformer": Kind(SaFormerAgent, SaFormerConfig)}


def find_kind(name: str) -> Kind:
    """The agent of this name."""
    if name not in KINDS:
        raise ValueError(f"unknown agent {name!r}; known are {', '.join(KINDS)}")
    return KINDS[name]


def create_agent(data: RelabelledStore, config: Any, *, seed: int) -> Agent:
    """A fresh agent of the kind that this config belongs to."""
    kind = next(kind for kind in KINDS.values() if isinstance(config, kind.config))
    return kind.agent.create(data, config, seed=seed)


def restore_agent(name: str, dimensions: Dimensions, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Agent:
    """An agent as it was saved."""
    kind = find_kind(name)
    return kind.agent.restore(dimensions, from_plain(kind.config, config), weights)


def from_plain(cls: type, values: Mapping[str, Any]) -> Any:
    """A (nested) dataclass from the dictionaries that JSON keeps of it."""
    hints, known = get_type_hints(cls), {field.name for field in fields(cls)}
    unknown = set(values) - known
    if unknown:
        raise ValueError(f"{cls.__name__} has no {', '.join(sorted(unknown))}: was it saved by another version?")
    return cls(**{k: from_plain(hints[k], v) if is_dataclass(hints[k]) else v for k, v in values.items()})
