"""What a step costs, decided in hindsight: functions of the data, never of the method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


@dataclass(frozen=True)
class Step:
    """One step, or any number of them along leading axes. Only what the criterion reads needs to be there."""

    action: Array
    """[..., A] as executed: within the action bounds"""
    state: Array | None = None
    """[..., S]"""
    next_state: Array | None = None
    """[..., S]"""
    reward: Array | None = None
    """[...]"""
    columns: Mapping[str, Array] = field(default_factory=dict)
    """whatever else was recorded, by name"""


@dataclass(frozen=True)
class CostCriterion:
    """A named cost of a step, at least 0, and what it needs to know of it."""

    name: str
    function: Callable[[Step], Array]
    """Step -> cost [...]"""
    reads: frozenset[str] = frozenset({"action"})
    """Which parts of a step it reads: "state", "action", "next_state", "reward", or names of columns."""

    def __call__(self, step: Step) -> Array:
        """The cost, checked to be finite and not negative."""
        cost = np.asarray(self.function(step))
        if not np.isfinite(cost).all():
            raise ValueError(f"criterion {self.name!r} gave NaN or infinite costs; mend the criterion or the data")
        if (cost < 0).any():
            raise ValueError(f"criterion {self.name!r} gave a cost of {cost.min():g}; costs must be at least 0")
        return cost


def _sum_of_magnitudes(step: Step) -> Array:
    magnitude: Array = np.abs(step.action).sum(-1)
    return magnitude


torque = CostCriterion("torque", _sum_of_magnitudes)
"""The paper's cost, sum_i |a_i|: what the motors wear."""


def joint_torque(joint: int) -> CostCriterion:
    """The torque of one joint alone, |a_i|: one constraint per joint."""

    def magnitude(step: Step) -> Array:
        of_joint: Array = np.abs(step.action[..., joint])
        return of_joint

    return CostCriterion(f"torque[{joint}]", magnitude)


def criterion(name: str) -> CostCriterion:
    """The criterion of this name: "torque" or "torque[2]"."""
    if name == "torque":
        return torque
    if name.startswith("torque[") and name.endswith("]") and name[7:-1].isdigit():
        return joint_torque(int(name[7:-1]))
    raise ValueError(f'unknown cost criterion {name!r}; known are "torque" and "torque[JOINT]", as in "torque[0]"')
