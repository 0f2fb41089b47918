"""A step as criteria see it, and what a cost criterion promises."""

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Doubles = NDArray[np.float64]
PARTS = ("action", "state", "next_state", "reward")
"""What every step may have; any other name is a column's."""


@dataclass(frozen=True)
class Step:
    """One step, or any number of them along leading axes, with at least what a criterion reads."""

    action: Array  # [..., A] as executed: within the action bounds
    state: Array | None = None  # [..., S]
    next_state: Array | None = None  # [..., S]
    reward: Array | None = None  # [...]
    columns: Mapping[str, Array] = field(default_factory=dict)
    """whatever else was recorded, by name: [...] or [..., k]"""
    origin: str = "the data"  # where the step comes from, for messages

    @property
    def names(self) -> set[str]:
        """Parts and columns that are there."""
        return {name for name in PARTS if getattr(self, name) is not None} | set(self.columns)


@dataclass(frozen=True)
class CostCriterion:
    """A named cost of a step, at least 0, and what it needs to know of it."""

    name: str
    """`criterion(name)` gives this criterion back, where this package made it: runs store names"""
    function: Callable[[Step], Array]  # Step -> cost [...]
    reads: frozenset[str] = frozenset({"action"})
    """parts of a step ("state", "action", "next_state", "reward"), or names of columns"""

    @property
    def reads_action_alone(self) -> bool:
        """Whether the cost is known before the action is executed."""
        return self.reads <= {"action"}

    def missing(self, available_columns: Collection[str]) -> set[str]:
        """The columns it reads that are not among these."""
        return set(self.reads) - set(PARTS) - set(available_columns)

    def __call__(self, step: Step) -> Doubles:
        """The cost, checked to be one number per step, finite and not negative."""
        self._require(step)
        try:
            cost = np.asarray(self.function(step), dtype=np.float64)
        except ValueError as error:
            raise ValueError(f"criterion {self.name!r}: {error}") from error
        expected, problem = step.action.shape[:-1], None
        if cost.shape != expected:
            problem = f"shape {cost.shape}, expected {expected}: one cost per step"
        elif not np.isfinite(cost).all():
            problem = "NaN or infinite costs; mend the criterion or the data"
        elif (cost < 0).any():
            problem = f"a cost of {cost.min():g}; costs must be at least 0"
        if problem:
            raise ValueError(f"criterion {self.name!r} gave {problem}")
        return cost

    def _require(self, step: Step) -> None:
        absent = sorted(self.reads - step.names)
        if not absent:
            return
        nearest = difflib.get_close_matches(absent[0], sorted(step.names), n=1)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        quoted = sorted(name for name in step.columns if not name.isidentifier())
        spelling = f" (in an expression: `{quoted[0]}`)" if quoted else ""
        raise ValueError(
            f"criterion {self.name!r} reads {', '.join(map(repr, absent))}, which {step.origin} "
            f"does not offer; {hint}On offer: {', '.join(sorted(step.names))}{spelling}"
        )
