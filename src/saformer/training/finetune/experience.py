"""Explored episodes: on disk before anything else happens to them, and ready to be learnt from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from saformer.core.rules import Fallback
from saformer.data.growing import GrowingSampler
from saformer.data.limits import Limit
from saformer.data.relabel import RelabelledStore, relabel
from saformer.data.store import TrajectoryStore
from saformer.data.trajectory import Trajectory
from saformer.envs.episodes import Episode
from saformer.files import append_line, write_atomically
from saformer.runs.run import Run

EPISODES = "episodes.jsonl"
End = Literal["terminated", "truncated", "ceiling", "overlong"]
Rows = Sequence["ExploredEpisode"]


def joined(values: Sequence[float]) -> str:
    """A cost or a limit, with commas between constraints."""
    return ",".join(f"{value:.5g}" for value in values)


@dataclass(frozen=True)
class ExploredEpisode:
    """One row of `episodes.jsonl`."""

    number: int  # counted from 0
    update: int  # updates of fine-tuning before it
    limit_name: str
    limit: tuple[float, ...]  # the target
    prompt: tuple[float, ...]  # the limit that the policy reads: the target, attenuated
    seed: int
    cost: tuple[float, ...]  # the real one, by which it is relabelled
    episode_return: float
    num_steps: int
    end: End
    broke_ceiling: bool
    resampled: float  # share of steps that took more than one round of proposals
    fell_back: float  # share of steps that the fallback decided
    fallback: Fallback

    @property
    def within(self) -> bool:
        return all(cost <= bound for cost, bound in zip(self.cost, self.limit, strict=True))

    def line(self, allowance: int) -> str:
        """For a person who watches."""
        within = "within" if self.within else "above"
        broke = ", ended at the ceiling" if self.broke_ceiling else ""
        return (
            f"episode {self.number + 1} of {allowance}: limit {joined(self.limit)}, asked for "
            f"{joined(self.prompt)}, cost {joined(self.cost)} ({within}), return "
            f"{self.episode_return:.5g}, {self.num_steps} steps{broke}"
        )


@dataclass(frozen=True)
class Target:
    """What to explore: a limit, and the factor that attenuates it."""

    limit: Limit
    factor: float

    @property
    def prompt(self) -> tuple[float, ...]:
        return tuple(self.factor * value for value in self.limit.values)


def targets_for(
    limits: Sequence[Limit], rows: Rows, factors: Sequence[float], *, count: int
) -> list[Target]:
    """What to explore next: limits in turn, each attenuated by the factor after its last one."""
    visits = {limit.name: sum(row.limit_name == limit.name for row in rows) for limit in limits}
    targets = []
    for index in range(len(rows), len(rows) + count):
        limit = limits[index % len(limits)]
        targets.append(Target(limit, factors[visits[limit.name] % len(factors)]))
        visits[limit.name] += 1
    return targets


@dataclass(frozen=True)
class Reference:
    """Cost and return of the cheapest tenth of the old data, to hold explored episodes against."""

    cost: tuple[float, ...]
    earned: float
    scale: float  # unit of returns: theirs, or their deviation in all the data where that is more

    @classmethod
    def of(cls, data: RelabelledStore) -> Reference:
        """Medians; of several costs, the dearest in units of its median counts."""
        costs, returns = data.episode_cost, data.episode_return
        dearest = (costs / np.maximum(np.median(costs, axis=0), 1e-9)).max(1)
        cheapest = dearest <= np.percentile(dearest, 10)
        earned = float(np.median(returns[cheapest]))
        scale = max(abs(earned), float(returns.std()), 1e-9)
        return cls(tuple(np.median(costs[cheapest], axis=0).tolist()), earned, scale)

    def fault(self, row: ExploredEpisode) -> float:
        """By which share an episode overran its target, and how much less it earned than the data
        would for so low a cost: to stand still costs little and teaches nothing else."""
        overrun = max(0.0, float(np.max(np.divide(row.cost, row.limit))) - 1)
        afforded = min(1.0, float(np.min(np.divide(row.limit, np.maximum(self.cost, 1e-9)))))
        expected = afforded * self.earned if self.earned > 0 else self.earned
        return overrun + max(0.0, expected - row.episode_return) / self.scale


def next_fallback(
    rows: Rows, kinds: Sequence[Fallback], reference: Reference, *, lanes: int
) -> Fallback:
    """How to explore the next round: each kind once, then as in the better of their latest rounds;
    every fourth round tries another again."""
    before = rows[: len(rows) // lanes * lanes]  # a round that was interrupted goes on as it began
    faults: dict[Fallback, float] = {}
    for kind in kinds:
        latest = [row for row in before if row.fallback == kind][-lanes:]
        if not latest:
            return kind
        faults[kind] = float(np.mean([reference.fault(row) for row in latest]))
    ranked = sorted(faults, key=faults.__getitem__)
    return ranked[-1] if len(before) // lanes % 4 == 3 else ranked[0]


def promising(rows: Rows) -> list[int]:
    """Indices of a quarter of these episodes: of the half whose cost lies nearest to the lowest
    target, those that earned most."""
    lowest = np.min([row.limit for row in rows], axis=0)
    away = [float(np.abs(np.array(row.cost) / np.maximum(lowest, 1e-9) - 1).max()) for row in rows]
    near = sorted(range(len(rows)), key=away.__getitem__)[: -(-len(rows) // 2)]
    return sorted(near, key=lambda index: -rows[index].episode_return)[: -(-len(near) // 2)]


def unspent(row: ExploredEpisode, before: Rows) -> NDArray[np.float64]:
    """[C] how much less an episode cost than the tightest limit explored so far that it kept; 0 if
    it kept none. Shown under a limit equal to its cost, it would teach to spend a limit to the
    last, which is too much every second time."""
    left = [np.subtract(other.limit, row.cost) for other in (*before, row)]
    within = [values for values in left if (values >= 0).all()]
    return min(within, key=lambda values: float(values.max()), default=np.zeros(len(row.cost)))


class Experience:
    """The episodes of a run, in its store and in the sampler that its updates draw from.

    A row is written before its trajectory: a row without one is forgotten when the run goes on, so
    both always agree.
    """

    def __init__(
        self, run: Run, data: RelabelledStore, store: TrajectoryStore, sampler: GrowingSampler
    ) -> None:
        self.run, self.data, self.sampler, self._store = run, data, sampler, store
        self._rows_path = run.path / EPISODES
        self.reference = Reference.of(data)
        before = store.as_of(run.spec.data_fingerprint)
        if before is None:
            raise ValueError(f"{store.path} does not begin with the data of {run.path}")
        rows = list(run.read_rows(EPISODES, ExploredEpisode))
        added = len(store) - len(before)
        if len(rows) < added:
            counts = f"{added} new trajectories, {self._rows_path} names {len(rows)}"
            raise ValueError(f"{store.path} has {counts}: somebody else appended to it")
        self.rows = rows[:added]
        lines = [f"{json.dumps(asdict(row))}\n" for row in self.rows]
        write_atomically(self._rows_path, "".join(lines))
        for row in self.rows:
            self._learn_from(row, store[len(before) + row.number])

    def __len__(self) -> int:
        return len(self.rows)

    def add(
        self, episode: Episode, target: Target, *, update: int, fallback: Fallback, broke: bool
    ) -> ExploredEpisode:
        """Store an episode. Unfinished ones are not learnt from: their whole cost is unknown."""
        cost = episode.discounted_cost(self.data.cost_discount).sum(0)
        trajectory = self._storable(episode)
        end: End = "ceiling" if broke else "overlong"
        if trajectory.finished:
            end = "terminated" if trajectory.terminated else "truncated"
        how: Any = {"update": update, "fallback": fallback, "end": end, "broke_ceiling": broke}
        row = ExploredEpisode(
            number=len(self.rows),
            limit_name=target.limit.name,
            limit=target.limit.values,
            prompt=target.prompt,
            seed=episode.seed,
            cost=tuple(cost.tolist()),
            episode_return=float(trajectory.reward.sum(dtype=np.float64)),
            num_steps=len(trajectory),
            resampled=float((episode.num_rounds > 1).mean()),
            fell_back=float(episode.fell_back.mean()),
            **how,
        )
        append_line(self._rows_path, json.dumps(asdict(row)))
        self._store = self._store.extend([trajectory])
        self.rows.append(row)
        self._learn_from(row, trajectory)
        return row

    def _learn_from(self, row: ExploredEpisode, trajectory: Trajectory) -> None:
        """It and those before it: the most promising are drawn most."""
        if trajectory.finished:
            alone = TrajectoryStore.of([trajectory], self._store.environment)
            real = relabel(alone, self.data.criteria, cost_discount=self.data.cost_discount)
            self.sampler.append(real, unspent=unspent(row, self.rows[: row.number]))
            whole = [row for row in self.rows if row.end in ("terminated", "truncated")]
            self.sampler.favour(promising(whole[: self.sampler.num_trajectories]))

    def _storable(self, episode: Episode) -> Trajectory:
        """With the store's columns: those that are criteria as they were costed, others unknown."""
        trajectory = episode.trajectory
        if len(trajectory) > self._store.environment.horizon:
            # the environment did not end it, so nobody knows its end
            trajectory = replace(trajectory, terminated=False, truncated=False)
        names = [criterion.name for criterion in self.data.criteria]
        columns = {}
        for name in self._store.column_names:
            stored = self._store.steps[name]
            shape = (len(trajectory), *stored.shape[1:])
            columns[name] = np.full(shape, np.nan, dtype=stored.dtype)
            if name in names:
                cost = episode.cost[:, names.index(name)]
                columns[name][:] = cost.reshape(-1, *(1,) * (stored.ndim - 1))
        return replace(trajectory, columns=columns)


def check_explorable(data: RelabelledStore, store: TrajectoryStore) -> None:
    """Refuse a criterion of columns that new trajectories lack: they have those that are costs."""
    for criterion in data.criteria:
        columns = sorted(set(criterion.reads) & set(store.column_names))
        if columns and criterion.name not in store.column_names:
            raise ValueError(
                f"criterion {criterion.name!r} reads {', '.join(columns)}, which new episodes do "
                "not record: use a criterion of states and actions, or one that is a column itself"
            )
