"""Episodes in lanes: one policy drives many environments at once, each under its own limit."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from saformer.core.policy import Decision, Policy
from saformer.data.trajectory import Trajectory
from saformer.envs.costed import Costed
from saformer.envs.lanes import Columns
from saformer.envs.stepping import Workers, environments, pick_workers

Played = TypeVar("Played")


@dataclass(frozen=True)
class Episode:
    """What happened on one lane."""

    limit: NDArray[np.float64]
    """[C]"""
    seed: int
    trajectory: Trajectory
    cost: NDArray[np.float64]
    """[T, C] of each step, undiscounted"""
    num_rounds: NDArray[np.int64]
    """[T] rounds of proposals that each decision took; 1 for a policy that does not propose in
    rounds"""
    fell_back: NDArray[np.bool_]
    """[T] whether the fallback decided"""
    shielded: NDArray[np.bool_]
    """[T] whether a shield changed the action"""


Watcher = Callable[[torch.Tensor, Decision], None]
"""Called after each decision with the lanes it is for, while these are stepped."""
Stopper = Callable[[NDArray[np.int64], NDArray[np.float64]], NDArray[np.bool_]]
"""Told the lanes that were stepped [l] and what that cost them [l, C]; answers which of them to end
now [l]."""
Playing = Generator[None, None, list[Episode]]
"""A rollout that pauses whenever its environments are at work; the episodes are what it returns."""


def rollout(
    policy: Policy,
    make_environment: Callable[[], Costed],
    limits: Sequence[NDArray[np.float64]],
    seeds: Sequence[int],
    *,
    horizon: int,
    watch: Watcher | None = None,
    progress: Callable[[int, int], None] | None = None,
    stop: Stopper | None = None,
    ended: Callable[[int, Episode], None] | None = None,
    workers: Workers = "auto",
) -> list[Episode]:
    """Run one episode per (limit, seed), all at once; finished lanes are dropped from the batch.

    `horizon` ends episodes that the environment would not; `progress` is told how many of how many
    are finished. `stop` may end episodes early, which are then unfinished; `ended` is given each
    lane and its episode as soon as it is over. `workers` processes step the environments, about one
    per core where that pays, 0 for this process; the episodes are the same. Only a `Maker` can be
    told to another process: other environments are stepped in this one.
    """
    return finish(
        play(
            policy,
            make_environment,
            limits,
            seeds,
            horizon=horizon,
            watch=watch,
            progress=progress,
            stop=stop,
            ended=ended,
            workers=workers,
        )
    )


def play(
    policy: Policy,
    make_environment: Callable[[], Costed],
    limits: Sequence[NDArray[np.float64]],
    seeds: Sequence[int],
    *,
    horizon: int,
    watch: Watcher | None = None,
    progress: Callable[[int, int], None] | None = None,
    stop: Stopper | None = None,
    ended: Callable[[int, Episode], None] | None = None,
    workers: Workers = "auto",
) -> Playing:
    """`rollout` by instalments, so that one policy can decide while the environments of another are
    stepped."""
    if not seeds or len(limits) != len(seeds):
        raise ValueError(
            f"a limit for each seed is needed, at least one: got {len(limits)} for {len(seeds)} "
            "seeds"
        )
    number = pick_workers(workers, num_lanes=len(seeds), num_steps=len(seeds) * horizon)
    with environments(make_environment, seeds, number) as stepper:
        columns = stepper.columns
        _check_finite(columns, np.arange(len(seeds)), seeds)
        policy.reset(torch.from_numpy(columns.state.copy()), _rows(limits))
        log = _Log()
        alive = np.arange(len(seeds))
        while len(alive):
            index, state = torch.from_numpy(alive), columns.state[alive]
            decision = policy.act(torch.from_numpy(state), index)
            columns.action[alive] = decision.action.cpu().numpy()
            columns.active[:] = False
            columns.active[alive] = True
            stepper.start_step()
            if watch:
                watch(index, decision)
            log.decided(alive, state, columns.action[alive], decision)
            yield
            stepper.finish_step()
            _check_finite(columns, alive, seeds)
            log.stepped(columns.reward[alive], columns.cost[alive])
            policy.observe(_rows(columns.reward[alive, None]), _rows(columns.cost[alive]), index)
            columns.truncated[alive] |= ~columns.terminated[alive] & (log.num_steps >= horizon)
            over = (columns.terminated | columns.truncated)[alive]
            if stop:
                over |= stop(alive, columns.cost[alive])
            running = alive[~over]
            if ended:
                for lane in alive[over].tolist():
                    ended(lane, log.episode(lane, limits[lane], seeds[lane], columns))
            if progress and len(running) < len(alive):
                progress(len(seeds) - len(running), len(seeds))
            alive = running
        return log.episodes(limits, seeds, columns)


def finish(playing: Generator[None, None, Played]) -> Played:
    """Let it go on until it returns."""
    return take_turns([playing], at_once=1)[0]


def take_turns(playing: Sequence[Generator[None, None, Played]], *, at_once: int) -> list[Played]:
    """Let `at_once` of them go on by turns; each is carried on while the environments of the others
    are stepped."""
    results: dict[int, Played] = {}
    waiting = list(enumerate(playing))
    turns = [waiting.pop(0) for _ in range(min(at_once, len(waiting)))]
    try:
        while turns:
            place, turn = turns.pop(0)
            try:
                next(turn)
                turns.append((place, turn))
            except StopIteration as end:
                results[place] = end.value
                turns += [waiting.pop(0)] if waiting else []
    finally:
        for _, turn in turns:
            turn.close()
    return [results[place] for place in range(len(playing))]


class _Log:
    """What happened at each step, on the lanes that were alive."""

    def __init__(self) -> None:
        self._steps: list[dict[str, NDArray[Any]]] = []

    @property
    def num_steps(self) -> int:
        return len(self._steps)

    def decided(
        self,
        lanes: NDArray[np.int64],
        state: NDArray[np.float32],
        action: NDArray[np.float32],
        decision: Decision,
    ) -> None:
        num_rounds = decision.num_rounds
        self._steps.append(
            {
                "lane": lanes,
                "state": state,
                "action": action,
                "num_rounds": np.ones(len(lanes), np.int64)
                if num_rounds is None
                else num_rounds.cpu().numpy(),
                "fell_back": _flags(decision.fell_back, len(lanes)),
                "shielded": _flags(decision.shielded, len(lanes)),
            }
        )

    def stepped(self, reward: NDArray[np.float64], cost: NDArray[np.float64]) -> None:
        self._steps[-1].update(reward=reward, cost=cost)

    def episodes(
        self, limits: Sequence[NDArray[np.float64]], seeds: Sequence[int], columns: Columns
    ) -> list[Episode]:
        """One per lane: the rows of all steps, sorted by lane."""
        rows = {
            name: np.concatenate([step[name] for step in self._steps]) for name in self._steps[0]
        }
        lane = rows.pop("lane")
        order, ends = np.argsort(lane, kind="stable"), np.cumsum(np.bincount(lane))[:-1]
        parts = {name: np.split(values[order], ends) for name, values in rows.items()}
        return [
            _episode({name: parts[name][i] for name in parts}, limit, seed, columns, i)
            for i, (limit, seed) in enumerate(zip(limits, seeds, strict=True))
        ]

    def episode(
        self, lane: int, limit: NDArray[np.float64], seed: int, columns: Columns
    ) -> Episode:
        """What happened on one lane so far."""
        steps = [step for step in self._steps if lane in step["lane"]]
        places = [int(np.searchsorted(step["lane"], lane)) for step in steps]
        names = [name for name in steps[0] if name != "lane"]
        rows = {
            n: np.stack([step[n][at] for step, at in zip(steps, places, strict=True)])
            for n in names
        }
        return _episode(rows, limit, seed, columns, lane)


def _episode(
    rows: dict[str, NDArray[Any]],
    limit: NDArray[np.float64],
    seed: int,
    columns: Columns,
    lane: int,
) -> Episode:
    return Episode(
        limit=limit,
        seed=seed,
        trajectory=Trajectory.of(
            rows["state"],
            rows["action"],
            rows["reward"],
            columns.state[lane].copy(),
            terminated=bool(columns.terminated[lane]),
            truncated=bool(columns.truncated[lane]),
        ),
        **{name: rows[name] for name in ("cost", "num_rounds", "fell_back", "shielded")},
    )


def _check_finite(columns: Columns, lanes: NDArray[np.int64], seeds: Sequence[int]) -> None:
    """Environments that blow up are named, rather than what would become of their numbers."""
    for name in ("state", "reward"):
        values = getattr(columns, name)[lanes]
        if not np.isfinite(values).all():
            lane = lanes[~np.isfinite(values.reshape(len(lanes), -1)).all(1)][0]
            raise ValueError(
                f"the environment of lane {lane} (seed {seeds[lane]}) gave a {name} that is NaN "
                "or infinite: "
                "it has become unstable, or is not meant for such actions"
            )


def _flags(flags: torch.Tensor | None, count: int) -> NDArray[np.bool_]:
    return np.zeros(count, np.bool_) if flags is None else flags.cpu().numpy()


def _rows(values: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float32))
