"""What `evaluate`, `calibrate` and `sweep` are asked: under which limits, how often, and how."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from saformer.evaluation.calibration import MARGINS, check_terms


@dataclass(frozen=True)
class JudgeSettings:
    """Under which limits a policy is rolled out, and how it acts."""

    limits: Sequence[str] = ()
    """Percentiles of the data's episode costs (p10) or costs (4300); commas separate constraints
    (p20,350); by default p10 p20 p30 p50, or the one limit that the run was trained for."""
    episodes: int = 20
    """Episodes under each limit."""
    rule: str | None = None
    """How SaFormer decides: feasible (its default), paper (Algorithm 1) or none (no critic)."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Changes of the agent's or the rule's options, by their names."""
    seed: int = 0
    """Decides initial states and proposals."""
    may_end: bool | None = None
    """Whether ending an episode early is a legitimate way to keep a limit (a machine that may be
    switched off), or a failure (a robot that falls); by default as the task or data says."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ValueError(f"at least one episode is needed, got {self.episodes}")


@dataclass(frozen=True)
class EvaluateSettings(JudgeSettings):
    """How `evaluate` judges."""

    rate: float | None = None
    """Withhold as much of each limit as `calibrate` showed this violation rate (0.05) to need."""
    shield: bool = False
    """Make actions cheaper where they would pass the limit: then no episode does, whatever was
    learnt. For costs of the action and the present state, such as torque, or price times power."""
    floor: tuple[float, ...] = ()
    """For the shield: what some action costs at most in every state, one number or one for each
    criterion; needed where a criterion reads the state and does not show it. 0: one is free."""
    both: bool = False
    """Judge the policy with and without the shield, side by side."""
    reference: bool = False
    """Also show the mean action, prompted with the data's largest cost, with the shield."""

    def __post_init__(self) -> None:
        super().__post_init__()
        has_shield = self.shield or self.both or self.reference
        if self.rate is not None and has_shield:
            raise ValueError("a shield keeps every limit, at any rate: leave rate or shield out")
        if self.floor and not has_shield:
            raise ValueError("floor is something that a shield needs: add shield, or leave it out")


@dataclass(frozen=True)
class SweepSettings(JudgeSettings):
    """Which option `sweep` tries, at which values."""

    values: Sequence[float] = ()
    """Values to try; for target_return by default five over the data and beyond, and its own."""
    option: str = "target_return"
    """An option of the run's agent that takes a number: target_return (dt, cdt), temperature."""


@dataclass(frozen=True)
class CalibrateSettings(JudgeSettings):
    """What `calibrate` shows, and how."""

    rate: float = 0.05
    """Share of episodes that may pass their limit."""
    episodes: int = 200
    """Fresh episodes for each margin and limit."""
    confidence: float = 0.95
    """That the rate is kept, for each limit by itself."""
    margins: Sequence[float] = MARGINS
    """Shares of the limit to withhold, tried from the smallest until one passes."""
    offline: bool = False
    """No simulator: roll out in a world learnt from the data. What is shown then holds in that
    world; on the machine only as far as estimates are supported (docs/offline.md)."""

    def __post_init__(self) -> None:
        check_terms(self.rate, self.confidence, self.episodes, self.margins)
