"""What every source offers, and how it becomes a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.data.folder import StoreWriter
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class EnvironmentHints:
    """What is known of the machine before its data is read; None where nothing is."""

    identifier: str | None = None
    horizon: int | None = None
    action_low: tuple[float, ...] | None = None
    action_high: tuple[float, ...] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def or_else(self, other: EnvironmentHints) -> EnvironmentHints:
        """These hints, and the other's where these say nothing."""
        mine = {name: value for name, value in vars(self).items() if value not in (None, {})}
        return replace(other, **mine)


@dataclass(frozen=True)
class Source:
    """Trajectories from elsewhere, read when they are asked for."""

    trajectories: Callable[[], Iterable[Trajectory]]
    num_steps: int
    """rows to be read, for a progress bar"""
    hints: EnvironmentHints
    provenance: Mapping[str, Any]
    criteria: tuple[str, ...] = ("torque",)
    notes: Callable[[], Sequence[str]] = tuple
    """what a user should know; asked for after the trajectories were read"""


@dataclass(frozen=True)
class Imported:
    """A store made from a source, and what happened on the way."""

    store: TrajectoryStore
    num_unfinished: int
    """trajectories whose end was not recorded: kept, but left out when limits and to-go targets are
    computed"""
    notes: tuple[str, ...]

    def summary(self) -> str:
        """One line."""
        return f"{len(self.store)} trajectories, {self.store.num_steps} steps, {self.num_unfinished} unfinished"


class _Observed:
    """What the trajectories themselves show of the machine."""

    def __init__(self) -> None:
        self.low: NDArray[np.floating] | None = None
        self.high: NDArray[np.floating] | None = None
        self.longest = 0
        self.num_unfinished = 0
        self.steps_unfinished = 0

    def see(self, trajectory: Trajectory) -> None:
        low, high = trajectory.action.min(0), trajectory.action.max(0)
        self.low = low if self.low is None else np.minimum(self.low, low)
        self.high = high if self.high is None else np.maximum(self.high, high)
        self.longest = max(self.longest, len(trajectory))
        if not trajectory.finished:
            self.num_unfinished += 1
            self.steps_unfinished += len(trajectory)


def merged(sources: Sequence[Source]) -> Source:
    """Several sources as one, in their order; what is known of the machine is what the first one
    knows."""
    if len(sources) == 1:
        return sources[0]
    return Source(
        lambda: (trajectory for source in sources for trajectory in source.trajectories()),
        sum(source.num_steps for source in sources),
        sources[0].hints,
        {"source": " and ".join(str(source.provenance.get("source")) for source in sources)},
        sources[0].criteria,
        lambda: list(dict.fromkeys(note for source in sources for note in source.notes())),
    )


def import_source(
    source: Source,
    path: str | Path,
    *,
    criteria: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Imported:
    """Write a source to a new store, one trajectory at a time, all of it or nothing."""
    observed = _Observed()
    with StoreWriter(path) as writer:
        for trajectory in _numbered(source.trajectories()):
            observed.see(trajectory)
            writer.add(trajectory)
            if progress:
                progress(min(writer.num_steps, source.num_steps), source.num_steps)
        environment, notes = _environment(source.hints, observed)
        provenance = {**source.provenance, "imported_with": f"saformer {version('saformer')}"}
        writer.finish(environment, criteria=criteria or source.criteria, provenance=provenance)
    return Imported(TrajectoryStore.open(path), observed.num_unfinished, (*source.notes(), *notes))


def _numbered(trajectories: Iterable[Trajectory]) -> Iterator[Trajectory]:
    """The same trajectories; an error says after how many of them it came."""
    number = 0
    iterator = iter(trajectories)
    while True:
        try:
            trajectory = next(iterator)
        except StopIteration:
            return
        except ValueError as error:
            raise ValueError(f"trajectory {number}: {error}") from error
        yield trajectory
        number += 1


def _environment(known: EnvironmentHints, observed: _Observed) -> tuple[EnvironmentSpec, list[str]]:
    """What was not known is taken from the data, and said."""
    if observed.low is None or observed.high is None:
        raise ValueError("the source is empty: it holds no trajectory")
    notes = []
    low, high = (
        _per_action(bound, len(observed.low)) for bound in (known.action_low, known.action_high)
    )
    if low is None or high is None:
        constant = observed.low == observed.high
        margin = np.where(constant, np.maximum(np.abs(observed.low), 1.0), 0.0)
        low = tuple((observed.low - margin).tolist()) if low is None else low
        high = tuple((observed.high + margin).tolist()) if high is None else high
        notes.append(
            f"action bounds are those of the data, {_numbers(low)} to {_numbers(high)}: give "
            "--action-low and "
            "--action-high if the machine allows more"
        )
    else:
        outside = (observed.low < np.array(low) - 1e-6) | (observed.high > np.array(high) + 1e-6)
        if outside.any():
            notes.append(
                f"recorded actions reach from {_numbers(observed.low)} to "
                f"{_numbers(observed.high)}, beyond the bounds "
                f"{_numbers(low)} to {_numbers(high)}: they are brought within them before costs "
                "are counted"
            )
    if observed.num_unfinished:
        notes.append(
            f"{observed.num_unfinished} trajectories ({observed.steps_unfinished} steps) have no "
            "recorded end: they "
            "are kept in the store, but left out of limits, frontier and to-go targets, because "
            "what they would have "
            "cost is unknown"
        )
    horizon = max(known.horizon or 0, observed.longest)
    return EnvironmentSpec(low, high, horizon, known.identifier, dict(known.arguments)), notes


def _per_action(bound: tuple[float, ...] | None, size: int) -> tuple[float, ...] | None:
    if bound is None or len(bound) == size:
        return bound
    if len(bound) == 1:
        return bound * size
    raise ValueError(
        f"{len(bound)} action bounds for {size} action columns; give one for each, or one for all"
    )


def _numbers(values: Iterable[float]) -> str:
    return "(" + ", ".join(f"{value:.4g}" for value in values) + ")"
