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
from saformer.criteria.code import from_anywhere
from saformer.data.folder import StoreWriter
from saformer.data.remembered import remember
from saformer.data.shown import counted
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory

Floats = NDArray[np.floating]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class EnvironmentHints:
    """What is known of the machine before its data is read; None where nothing is."""

    identifier: str | None = None
    horizon: int | None = None
    action_low: tuple[float, ...] | None = None
    action_high: tuple[float, ...] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    action_levels: tuple[tuple[float, ...], ...] = ()  # as `EnvironmentSpec` has them

    def or_else(self, other: EnvironmentHints) -> EnvironmentHints:
        """These hints, and the other's where these say nothing."""
        mine = {name: value for name, value in vars(self).items() if value not in (None, {}, ())}
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
    num_unfinished: int  # trajectories whose end was not recorded: stored, but not learnt from
    notes: tuple[str, ...]

    def summary(self) -> str:
        return f"{self.store.size}, {self.num_unfinished} unfinished"


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
    lows, highs, lengths, unfinished = [], [], [], []
    trajectories = iter(source.trajectories())
    with StoreWriter(path) as writer:
        while True:
            try:
                trajectory = next(trajectories, None)
                if trajectory is not None and writer.num_trajectories == 0:
                    _check_costs(trajectory, wanted)
            except ValueError as error:
                where = f"{source.provenance.get('source', path)}, trajectory"
                raise ValueError(f"{where} {writer.num_trajectories}: {error}") from error
            if trajectory is None:
                break
            writer.add(trajectory)
            lows.append(trajectory.action.min(0))
            highs.append(trajectory.action.max(0))
            lengths.append(len(trajectory))
            if not trajectory.finished:
                unfinished.append(len(trajectory))
            if progress:
                progress(min(writer.num_steps, source.num_steps), source.num_steps)
        if not lengths:
            raise ValueError("the source is empty: it holds no trajectory")
        reach = np.min(lows, axis=0), np.max(highs, axis=0)
        environment = _environment(source.hints, *reach, max(lengths))
        provenance = {**source.provenance, "imported_with": f"saformer {version('saformer')}"}
        names = [each.name for each in wanted] or source.criteria
        writer.finish(environment, criteria=names, provenance=provenance)
    store = TrajectoryStore.open(path)
    remember(Path(path), store.fingerprint, store.names)
    notes = [*source.notes(), *_notes_on_bounds(source.hints, environment, *reach)]
    if unfinished:
        notes.append(
            f"no end is recorded of {counted(len(unfinished), 'trajectory', 'trajectories')} "
            f"({counted(sum(unfinished), 'step')}): kept in the store, but left out of limits, "
            "frontier and to-go targets, because what they would have cost is unknown"
        )
    return Imported(store, len(unfinished), tuple(notes))


def _check_costs(trajectory: Trajectory, criteria: Sequence[CostCriterion]) -> None:
    state, columns = trajectory.state, trajectory.columns
    next_state = np.concatenate([state[1:], trajectory.final_state[None]])
    step = Step(trajectory.action, state, next_state, trajectory.reward, columns)
    for each in criteria:
        if each.missing(columns):
            each(step)  # raises: it says what is missing and what is there


def _environment(
    known: EnvironmentHints, low: Floats, high: Floats, longest: int
) -> EnvironmentSpec:
    """The machine as it is known, or else as the data shows it."""
    margin = np.where(low == high, np.maximum(np.abs(low), 1.0), 0.0)
    least = _per_action(known.action_low, low - margin)
    greatest = _per_action(known.action_high, high + margin)
    horizon = max(known.horizon or 0, longest)
    identifier = known.identifier and from_anywhere(known.identifier)
    about = (horizon, identifier, dict(known.arguments))
    triples = zip(known.action_levels, least, greatest, strict=False)
    levels = tuple(tuple(v for v in values if a <= v <= b) for values, a, b in triples)
    return EnvironmentSpec(least, greatest, *about, action_levels=levels)


def _per_action(known: tuple[float, ...] | None, observed: Floats) -> tuple[float, ...]:
    if known is None:
        return tuple(observed.tolist())
    if len(known) not in (1, len(observed)):
        columns = f"{len(observed)} action columns; give one for each, or one for all"
        raise ValueError(f"{len(known)} action bounds for {columns}")
    return known if len(known) == len(observed) else known * len(observed)


def _notes_on_bounds(
    known: EnvironmentHints, environment: EnvironmentSpec, low: Floats, high: Floats
) -> Iterator[str]:
    least, greatest = np.array(environment.action_low), np.array(environment.action_high)
    bounds = _range(least, greatest)
    if known.action_low is None or known.action_high is None:
        yield (
            f"action bounds are those of the data, {bounds}: give --action-low and --action-high "
            "if the machine allows more"
        )
    elif ((low < least - 1e-6) | (high > greatest + 1e-6)).any():
        yield (
            f"recorded actions reach from {_range(low, high)}, beyond the bounds {bounds}: they "
            "are brought within them before costs are counted"
        )


def _range(low: Iterable[float], high: Iterable[float]) -> str:
    """ "(-1, -1) to (1, 1)" """
    first, last = (", ".join(f"{value:.4g}" for value in bound) for bound in (low, high))
    return f"({first}) to ({last})"
