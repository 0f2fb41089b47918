"""From what to learn, how long and how fast."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class DataSettings:
    """What is learnt from."""

    criteria: Sequence[str] = ()
    """Criteria, one per constraint: torque, energy, a column's name, an expression such as
    "abs(action).sum()", module:function, ./file.py:function; by default those of the data."""
    environment: str | None = None
    """Simulator to roll out in, where the data names none, or code that you have to vouch for:
    a Gymnasium id, module:Name or ./file.py:Name (a class, a function, an id)."""
    held_out: float | None = None
    """Share of trajectories held out to judge offline; by default 0 with a simulator, else 0.1."""
    data_steps: int | None = None
    """Steps of data to make; by default 300,000 for replay tasks and 1,000,000 for the others."""
    data_seed: int = 0
    """Decides the data."""


@dataclass(frozen=True)
class FitConfig:
    """Optimisation as in the paper's Table 6; docs/deviations.md notes what it leaves open."""

    updates: int = 100_000
    """Gradient steps; the paper counts 5,000 to an epoch."""
    batch_size: int = 128
    """Windows per update."""
    learning_rate: float = 1e-3
    """Peak of the schedule: a linear warm-up, then half a cosine down to a tenth."""
    warmup_updates: int = 1000
    """Updates until the peak."""
    weight_decay: float = 1e-4
    """AdamW's decoupled weight decay."""
    gradient_clip: float = 0.25
    """Largest norm of a phase's gradient."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """What transformer blocks are computed in while training; auto: bfloat16 on a GPU, and on a CPU
    that multiplies it if the width is at least 128, else float32."""
    compile: Literal["auto", "record", "off"] = "auto"
    """auto: on a GPU, compile the losses and replay whole updates as a CUDA graph; on a CPU
    nothing: it is slower. record: only the graph, which begins at once (compiling takes a minute or
    so). off: neither."""
    report_every: int = 100
    """Updates between rows of metrics."""
    checkpoint_every: int = 1000
    """Updates between checkpoints."""
    evaluate_every: int = 0
    """Updates between evaluations while training; 0 for none."""

    def __post_init__(self) -> None:
        for name in ("updates", "batch_size", "report_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("warmup_updates", "weight_decay", "evaluate_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        for name in ("learning_rate", "gradient_clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")

    def learning_rate_at(self, update: int) -> float:
        """The schedule: a function of the update alone, so that it needs no state."""
        if update < self.warmup_updates:
            return self.learning_rate * (update + 1) / self.warmup_updates
        progress = (update - self.warmup_updates) / max(1, self.updates - self.warmup_updates)
        return self.learning_rate * (0.55 + 0.45 * math.cos(math.pi * min(1.0, progress)))
