"""Trajectories in columns, in memory or memory-mapped, and views of them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.criteria.code import is_code
from saformer.data import folder
from saformer.data.remembered import recall, remember
from saformer.data.shown import counted
from saformer.data.trajectory import RESERVED, Trajectory
from saformer.files import validated

Array = NDArray[Any]

ACTION_NAMES = "action_names"
"""Where a store's provenance has what a log calls the entries of an action."""


@dataclass(frozen=True)
class EnvironmentSpec:
    """The machine that made the data. Where there is no simulator, the identifier is absent."""

    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    horizon: int  # longest possible episode in steps
    identifier: str | None = None  # Gymnasium id, as in "Hopper-v5"
    arguments: dict[str, Any] = field(default_factory=dict)
    """what `gymnasium.make` is given beside the id"""
    may_end: bool = False
    """whether ending an episode early is a legitimate way to keep a limit, not a failure"""
    action_levels: tuple[tuple[float, ...], ...] = ()
    """the values that each entry of the action can take, nothing where it may be any number; empty
    if all may"""

    def __post_init__(self) -> None:
        low, high = self.action_low, self.action_high
        if len(low) != len(high):
            raise ValueError(f"{len(low)} lower and {len(high)} upper action bounds")
        if len(self.action_levels) not in (0, len(low)):
            raise ValueError(f"levels of {len(self.action_levels)} actions, there are {len(low)}")
        if not np.isfinite([*low, *high, *itertools.chain(*self.action_levels)]).all():
            raise ValueError(f"action bounds must be finite, got {low} to {high}")
        if any(least >= greatest for least, greatest in zip(low, high, strict=True)):
            raise ValueError(f"action bounds are empty: {low} to {high}")
        if self.horizon < 1:
            raise ValueError(f"the horizon must be at least 1 step, got {self.horizon}")


@dataclass(frozen=True, repr=False)
class TrajectoryStore:
    """N trajectories. Views of a store share its step columns; a store only ever grows."""

    steps: Mapping[str, Array]
    """[steps, ...] of all trajectories, in this view or not: state, action, reward, and whatever
    else was recorded, by name"""
    episodes: Mapping[str, Array]
    """[N, ...] in this view: start, length, final_state, terminated, truncated, digest"""
    environment: EnvironmentSpec
    criteria: tuple[str, ...] = ("torque",)  # that this data is judged by, unless others are named
    provenance: Mapping[str, Any] = field(default_factory=dict)  # source, seeds, versions
    path: Path | None = None  # the folder that the columns lie in, if they are on disk

    @classmethod
    def of(
        cls,
        trajectories: Iterable[Trajectory],
        environment: EnvironmentSpec,
        provenance: Mapping[str, Any] | None = None,
        *,
        criteria: Iterable[str] = ("torque",),
    ) -> TrajectoryStore:
        """Gather trajectories in memory."""
        parts = list(trajectories)
        if not parts:
            raise ValueError("the dataset is empty: at least one trajectory is needed")
        layout = folder.StoreLayout.of(parts[0])
        for index, part in enumerate(parts):
            layout.check(index, part)
        layout.check_bounds(environment)
        rows = [part.step_columns() for part in parts]
        ends = [part.episode_columns() for part in parts]
        steps = {name: np.concatenate([each[name] for each in rows]) for name in layout.steps}
        episodes = {name: np.stack([each[name] for each in ends]) for name in layout.episodes}
        about = (environment, tuple(criteria), dict(provenance or {}))
        return cls(steps, _with_start(episodes), *about)

    @classmethod
    def open(cls, path: str | Path) -> TrajectoryStore:
        """Open a saved store without reading its columns."""
        path = Path(path)
        manifest = folder.read_manifest(path)
        steps, episodes = folder.open_columns(path, manifest)
        about = (path / folder.MANIFEST, folder.REMEDY)
        environment: EnvironmentSpec = validated(EnvironmentSpec, manifest.environment, *about)
        criteria, provenance = manifest.criteria, manifest.provenance
        finished = episodes["terminated"] | episodes["truncated"]
        longest = episodes["length"][finished].max(initial=0)  # others may have passed the horizon
        try:
            manifest.columns.check_bounds(environment)
            folder.check_horizon(longest, environment.horizon)
        except ValueError as error:
            raise ValueError(f"{about[0]} is damaged ({error}); {folder.REMEDY}") from None
        own = (environment, criteria, provenance, path.resolve())
        store = cls(steps, _with_start(episodes), *own)
        if any(map(is_code, store.names)):
            recall(path, lambda fingerprint: store.as_of(fingerprint) is not None)
        return store

    def save(self, path: str | Path) -> TrajectoryStore:
        """Write this view to a new folder, all of it or nothing, and open it from there."""
        with folder.StoreWriter(path) as writer:
            for trajectory in self:
                writer.add(trajectory)
            writer.finish(self.environment, criteria=self.criteria, provenance=self.provenance)
        store = TrajectoryStore.open(path)
        remember(store.path or Path(path), store.fingerprint, store.names)
        return store

    def filter(self, keep: NDArray[np.bool_] | NDArray[np.integer]) -> TrajectoryStore:
        """A view, not a copy, of the trajectories where `keep` [N] is True, or at these indices."""
        episodes = {name: np.asarray(values)[keep] for name, values in self.episodes.items()}
        if not len(episodes["length"]):
            raise ValueError(f"no trajectory is left of {len(self)}: at least one must be kept")
        return replace(self, episodes=episodes)

    def split(self, share: float, *, seed: int = 0) -> tuple[TrajectoryStore, TrajectoryStore]:
        """Two views: most trajectories, and a random `share` of the finished ones, held out."""
        finished = np.flatnonzero(self.finished)
        num_held_out = max(1, round(share * len(finished))) if 0 < share < 1 else 0
        if not 0 < num_held_out < len(finished):
            raise ValueError(
                f"cannot hold out a share of {share:g} of {len(finished)} finished trajectories "
                "and keep some; 0 holds none out"
            )
        held_out = np.zeros(len(self), dtype=bool)
        held_out[np.random.default_rng(seed).permutation(finished)[:num_held_out]] = True
        return self.filter(~held_out), self.filter(held_out)

    def extend(self, trajectories: Iterable[Trajectory]) -> TrajectoryStore:
        """This view and new trajectories after it, on disk if the store is; earlier views stay."""
        parts = list(trajectories)
        if not parts:
            return self
        if self.path is None:
            added = TrajectoryStore.of(parts, self.environment)
            folder.StoreLayout.of(self[0]).check(len(self), parts[0])
            old, shift = self.steps, len(self.steps["reward"])
            steps = {name: np.concatenate([old[name], added.steps[name]]) for name in old}
        else:
            num_before = folder.append(self.path, parts)
            whole = TrajectoryStore.open(self.path)
            added, shift = whole.filter(num_before + np.arange(len(parts))), 0
            steps = dict(whole.steps)
        new = {**added.episodes, "start": added.episodes["start"] + shift}
        episodes = {name: np.concatenate([old, new[name]]) for name, old in self.episodes.items()}
        return replace(self, steps=steps, episodes=episodes)

    def with_environment(self, **changes: Any) -> TrajectoryStore:
        """A view from another machine: its episodes may end early, it has another simulator."""
        return replace(self, environment=replace(self.environment, **changes))

    @property
    def names(self) -> list[str]:
        """All that may be names of code: criteria and environment."""
        return [*self.criteria, self.environment.identifier or ""]

    def __len__(self) -> int:
        return len(self.episodes["length"])

    def __repr__(self) -> str:
        where = self.path or "in memory"
        return f"TrajectoryStore({where}: {self.size}; {', '.join(self.criteria)})"

    @property
    def size(self) -> str:
        """For people: "1 trajectory, 96 steps"."""
        counts = counted(len(self), "trajectory", "trajectories"), counted(self.num_steps, "step")
        return ", ".join(counts)

    def __getitem__(self, index: int) -> Trajectory:
        start = int(self.episodes["start"][index])
        stop = start + int(self.lengths[index])
        rows = {name: np.asarray(values[start:stop]) for name, values in self.steps.items()}
        parts: dict[str, Any] = {name: rows.pop(name) for name in ("state", "action", "reward")}
        parts |= {name: bool(self.episodes[name][index]) for name in ("terminated", "truncated")}
        final_state = np.asarray(self.episodes["final_state"][index])
        return Trajectory(**parts, final_state=final_state, columns=rows)

    def __iter__(self) -> Iterator[Trajectory]:
        return (self[index] for index in range(len(self)))

    @property
    def lengths(self) -> NDArray[np.int64]:  # [N]
        return self.episodes["length"]

    @property
    def starts(self) -> NDArray[np.int64]:
        """[N] where each trajectory begins when they are laid end to end."""
        return offsets_of(self.lengths)

    @property
    def num_steps(self) -> int:
        return int(self.lengths.sum())

    @property
    def column_names(self) -> tuple[str, ...]:
        """What was recorded at each step beside state, action and reward."""
        return tuple(name for name in self.steps if name not in RESERVED)

    @property
    def finished(self) -> NDArray[np.bool_]:
        """[N] whether the episode was recorded to its end."""
        finished: NDArray[np.bool_] = self.episodes["terminated"] | self.episodes["truncated"]
        return finished

    @property
    def ended_early(self) -> NDArray[np.bool_]:
        """[N] whether the episode terminated before the horizon."""
        early: NDArray[np.bool_] = self.lengths < self.environment.horizon
        return self.episodes["terminated"] & early

    @property
    def fingerprint(self) -> str:
        """A digest of every value: equal for stores with the same data in the same order."""
        digests = np.ascontiguousarray(self.episodes["digest"])
        return hashlib.blake2b(digests.data, digest_size=8).hexdigest()

    def as_of(self, fingerprint: str) -> TrajectoryStore | None:
        """A view of the store when it had this fingerprint, if it has only grown since."""
        digest = hashlib.blake2b(digest_size=8)
        for count, row in enumerate(np.ascontiguousarray(self.episodes["digest"]), start=1):
            digest.update(row.data)
            if digest.hexdigest() == fingerprint:
                return self.filter(np.arange(count))
        return None

    def gather(self, name: str, first: int = 0, stop: int | None = None) -> Array:
        """A step column of trajectories `first` to `stop`, laid end to end; a slice if they are."""
        starts, values = self.episodes["start"][first:stop], self.steps[name]
        stops = starts + self.lengths[first:stop]
        if (starts[1:] == stops[:-1]).all():
            return values[starts[0] : stops[-1]]
        return np.concatenate([values[start:end] for start, end in zip(starts, stops, strict=True)])

    def blocks(self, max_steps: int = 200_000) -> Iterator[tuple[int, int]]:
        """Ranges (first, stop) of trajectories, of at most `max_steps` steps or one trajectory."""
        first, ends = 0, np.cumsum(self.lengths)
        while first < len(self):
            begin = ends[first] - self.lengths[first]
            stop = max(first + 1, int(np.searchsorted(ends, begin + max_steps, side="right")))
            yield first, stop
            first = stop

    def check(self) -> str:
        """Refuse a store whose trajectories are not what was stored; else its size, for people."""
        damaged = self.damaged()
        if damaged:
            first = ", ".join(map(str, damaged[:10])) + (", ..." if len(damaged) > 10 else "")
            counts = f"{len(damaged)} of {len(self)} trajectories are not what was stored: {first}"
            raise ValueError(f"{self.path} is damaged: {counts}; {folder.REMEDY}")
        return self.size

    def damaged(self) -> list[int]:
        """Indices of the trajectories whose content is not what was stored. Reads everything."""
        pairs = zip(self, self.episodes["digest"], strict=True)
        intact = [np.array_equal(part.digest(), digest) for part, digest in pairs]
        return [index for index, is_intact in enumerate(intact) if not is_intact]


def offsets_of(lengths: Array) -> NDArray[np.int64]:
    """[N] where each of these lengths [N] begins when they are laid end to end."""
    offsets: NDArray[np.int64] = np.cumsum(lengths) - lengths
    return offsets


def _with_start(episodes: dict[str, Array]) -> dict[str, Array]:
    return {**episodes, "start": offsets_of(episodes["length"])}
