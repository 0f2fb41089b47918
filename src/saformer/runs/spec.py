"""What a run is: enough to rebuild its agent and to know whether two runs are the same."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from saformer.core.batch import Dimensions


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
    held_out: float = 0.0
    """share of the trajectories that training never saw"""

    @property
    def digest(self) -> str:
        """Equal for equal runs."""
        return hashlib.sha256(json.dumps(self.plain(), sort_keys=True).encode()).hexdigest()[:8]

    @property
    def task_name(self) -> str:
        """What people call the task: a store goes by the name of its folder."""
        return Path(self.task).name if Path(self.task).is_absolute() else self.task

    @property
    def name(self) -> str:
        """The directory that a run of this kind is kept in, unless told otherwise."""
        task = self.task_name.replace("/", "-").replace(":", "-")
        return f"{task}-{self.agent}-seed{self.seed}-{self.digest}"

    def plain(self) -> dict[str, Any]:
        """As JSON keeps it."""
        return {**asdict(self), "criteria": list(self.criteria)}

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> RunSpec:
        """The spec that `plain` described."""
        dimensions = Dimensions(**values["dimensions"])
        return cls(**{**values, "dimensions": dimensions, "criteria": tuple(values["criteria"])})

    def differences(self, other: RunSpec) -> list[str]:
        """What the other does differently, for a person to read."""
        mine, theirs = self.plain(), other.plain()
        return [f"{key}: {mine[key]} here, {theirs[key]} there" for key in mine if mine[key] != theirs[key]]
