"""What a run is: enough to rebuild its agent and to know whether two runs are the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from saformer.core.batch import Dimensions

RARE = ("limit", "finetuning")


@dataclass(frozen=True)
class RunSpec:
    """Everything that decides a run's outcome."""

    task: str
    agent: str
    agent_config: dict[str, Any]
    fit_config: dict[str, Any]
    seed: int
    criteria: tuple[str, ...]
    data_steps: int | None
    data_seed: int
    data_fingerprint: str
    dimensions: Dimensions
    held_out: float = 0.0  # share of the trajectories that training never saw
    limit: str | None = None
    """the one limit that it is trained for, as the user named it, where the agent has one"""
    finetuning: dict[str, Any] | None = None
    """of a run that was fine-tuned: the run and checkpoint it came from, the limits, and how"""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out must be a share below 1, got {self.held_out}")
        if len(self.criteria) != self.dimensions.constraints:
            counts = f"{len(self.criteria)} criteria, {self.dimensions.constraints} constraints"
            raise ValueError(f"one criterion is needed for each constraint, got {counts}")

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.plain(), sort_keys=True).encode()).hexdigest()[:8]

    @property
    def task_name(self) -> str:
        """For people: a store goes by the name of its folder."""
        return _name_of(self.task)

    @property
    def name(self) -> str:
        """The default name of the run's directory."""
        return stem_of(self.task, self.agent, self.seed, self.limit) + self.digest

    def plain(self) -> dict[str, Any]:
        """As JSON; rare fields only where there is a value, so that older runs stay the same."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return {name: v for name, v in plain.items() if name not in RARE or v is not None}

    def differences(self, other: RunSpec) -> list[str]:
        """Where the other differs, for a person to read."""
        return list(_differences(self.plain(), other.plain()))


def stem_of(task: str, agent: str, seed: int, limit: str | None) -> str:
    """How the name of a run's directory begins; its digest follows."""
    name = _name_of(task).replace("/", "-").replace(":", "-")
    return f"{name}-{agent}{'' if limit is None else '-' + limit.replace('/', '-')}-seed{seed}-"


def _name_of(task: str) -> str:
    return Path(task).name if Path(task).is_absolute() else task


def _differences(mine: dict[str, Any], theirs: dict[str, Any], within: str = "") -> Iterator[str]:
    for key in dict.fromkeys([*mine, *theirs]):
        here, there = mine.get(key), theirs.get(key)
        if isinstance(here, dict) and isinstance(there, dict):
            yield from _differences(here, there, f"{within}{key}.")
        elif here != there:
            yield f"{within}{key}: {here} here, {there} there"
