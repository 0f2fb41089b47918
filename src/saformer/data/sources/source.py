"""What every source offers, and how it becomes a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.criteria import CostCriterion, Step, criterion
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
    """Trajectories from elsewhere, read on demand."""

    trajectories: Callable[[], Iterable[Trajectory]]
    num_steps: int  # rows to be read, for a progress bar
    hints: EnvironmentHints
    provenance: Mapping[str, Any]
    criteria: tuple[str, ...] = ("torque",)
    notes: Callable[[], Sequence[str]] = tuple
    """what a user should know, after the trajectories were read"""


@dataclass(frozen=True)
class Imported:
    """A store made from a source, and what happened on the way."""

    store: TrajectoryStore
    num_unfinished: int
    """trajectories whose end was not recorded: stored, but left out when limits and to-go targets
    are computed"""
    notes: tuple[str, ...]

    def summary(self) -> str:
        size = f"{len(self.store)} trajectories, {self.store.num_steps} steps"
        return f"{size}, {self.num_unfinished} unfinished"


@dataclass
class _Observed:
    """What the trajectories themselves show of the machine."""

    low: NDArray[np.floating] | None = None
    high: NDArray[np.floating] | None = None
    longest: int = 0
    num_unfinished: int = 0
    steps_unfinished: int = 0

    def see(self, trajectory: Trajectory) -> None:
        low, high = trajectory.action.min(0), trajectory.action.max(0)
        self.low = low if self.low is None else np.minimum(self.low, low)
        self.high = high if self.high is None else np.maximum(self.high, high)
        self.longest = max(self.longest, len(trajectory))
        if not trajectory.finished:
            self.num_unfinished += 1
            self.steps_unfinished += len(trajectory)


def merged(sources: Sequence[Source]) -> Source:
    """Several sources as one, in their order, with the first one's knowledge of the machine."""
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
    """Write a source to a new store, one trajectory at a time, all of it or nothing; the first
    one must have all that the criteria read."""
    wanted = [criterion(name) for name in criteria or ()]
    observed, trajectories = _Observed(), iter(source.trajectories())
    with StoreWriter(path) as writer:
        while True:
            try:
                trajectory = next(trajectories, None)
                if trajectory is not None and writer.num_trajectories == 0:
                    _check_costs(trajectory, wanted)
            except ValueError as error:
                raise ValueError(f"trajectory {writer.num_trajectories}: {error}") from error
            if trajectory is None:
                break
            observed.see(trajectory)
            writer.add(trajectory)
            if progress:
                progress(min(writer.num_steps, source.num_steps), source.num_steps)
        environment = _environment(source.hints, observed)
        provenance = {**source.provenance, "imported_with": f"saformer {version('saformer')}"}
        writer.finish(environment, criteria=criteria or source.criteria, provenance=provenance)
    notes = (*source.notes(), *_notes(source.hints, observed, environment))
    return Imported(TrajectoryStore.open(path), observed.num_unfinished, notes)


def _check_costs(trajectory: Trajectory, criteria: Sequence[CostCriterion]) -> None:
    state, columns = trajectory.state, trajectory.columns
    next_state = np.concatenate([state[1:], trajectory.final_state[None]])
    step = Step(trajectory.action, state, next_state, trajectory.reward, columns)
    for each in criteria:
        if each.missing(columns):
            each(step)  # raises: it says what is missing and what is there


def _environment(known: EnvironmentHints, observed: _Observed) -> EnvironmentSpec:
    """The machine as it is known, or else as the data shows it."""
    if observed.low is None or observed.high is None:
        raise ValueError("the source is empty: it holds no trajectory")
    is_constant = observed.low == observed.high
    margin = np.where(is_constant, np.maximum(np.abs(observed.low), 1.0), 0.0)
    low = _per_action(known.action_low, observed.low - margin)
    high = _per_action(known.action_high, observed.high + margin)
    horizon = max(known.horizon or 0, observed.longest)
    return EnvironmentSpec(low, high, horizon, known.identifier, dict(known.arguments))


def _per_action(
    known: tuple[float, ...] | None, observed: NDArray[np.floating]
) -> tuple[float, ...]:
    if known is None:
        return tuple(observed.tolist())
    if len(known) not in (1, len(observed)):
        rule = f"{len(observed)} action columns; give one for each, or one for all"
        raise ValueError(f"{len(known)} action bounds for {rule}")
    return known if len(known) == len(observed) else known * len(observed)


def _notes(
    known: EnvironmentHints, observed: _Observed, environment: EnvironmentSpec
) -> Iterator[str]:
    assert observed.low is not None
    assert observed.high is not None
    low, high = np.array(environment.action_low), np.array(environment.action_high)
    bounds, reach = _range(low, high), _range(observed.low, observed.high)
    if known.action_low is None or known.action_high is None:
        yield (
            f"action bounds are those of the data, {bounds}: give --action-low and --action-high "
            "if the machine allows more"
        )
    elif ((observed.low < low - 1e-6) | (observed.high > high + 1e-6)).any():
        yield (
            f"recorded actions reach from {reach}, beyond the bounds {bounds}: they are brought "
            "within them before costs are counted"
        )
    if observed.num_unfinished:
        yield (
            f"{observed.num_unfinished} trajectories ({observed.steps_unfinished} steps) have no "
            "recorded end: they are kept in the store, but left out of limits, frontier and to-go "
            "targets, because what they would have cost is unknown"
        )


def _range(low: Iterable[float], high: Iterable[float]) -> str:
    """ "(-1, -1) to (1, 1)" """
    first, last = (", ".join(f"{value:.4g}" for value in bound) for bound in (low, high))
    return f"({first}) to ({last})"
