"""Episodes in lanes: one policy drives many environments at once, each under its own limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from saformer.core.policy import Decision, Policy
from saformer.data.trajectory import Trajectory
from saformer.envs.costed import Costed
from saformer.envs.lanes import LaneColumns
from saformer.envs.stepping import Workers, environments, pick_workers


@dataclass(frozen=True)
class Episode:
    """What happened on one lane."""

    limit: NDArray[np.float64]  # [C]
    seed: int
    trajectory: Trajectory
    cost: NDArray[np.float64]  # [T, C] of each step, undiscounted
    num_rounds: NDArray[np.int64]
    """[T] rounds of proposals of each decision; 1 for a policy that does not propose in rounds"""
    fell_back: NDArray[np.bool_]  # [T] whether the fallback decided
    shielded: NDArray[np.bool_]  # [T] whether a shield changed the action


@dataclass(frozen=True)
class Hooks:
    """Functions of the caller's that a rollout calls."""

    watch: Callable[[torch.Tensor, Decision], None] | None = None
    """after each decision, with the lanes it is for, while these are stepped"""
    progress: Callable[[int, int], None] | None = None
    """after each end, with how many of how many episodes are over"""
    stop: Callable[[NDArray[np.int64], NDArray[np.float64]], NDArray[np.bool_]] | None = None
    """after each step, with the lanes that were stepped [l] and what that cost them [l, C]; returns
    which of them to end now [l], whose episodes are then unfinished"""
    ended: Callable[[int, Episode], None] | None = None
    """with each lane and its episode, as soon as it is over"""


def rollout(
    policy: Policy,
    make_environment: Callable[[], Costed],
    limits: Sequence[NDArray[np.float64]],
    seeds: Sequence[int],
    *,
    horizon: int,
    hooks: Hooks | None = None,
    workers: Workers = "auto",
) -> list[Episode]:
    """Run one episode per (limit, seed), all at once; finished lanes are dropped from the batch.

    `horizon` ends episodes that the environment would not. `workers` processes step the
    environments, about one per core where that pays, 0 for this process; the episodes are the same.
    Only a `Maker` can travel to another process: other environments are stepped in this one.
    """
    if not seeds or len(limits) != len(seeds):
        raise ValueError(
            f"a limit for each seed is needed, at least one: got {len(limits)} for {len(seeds)} "
            "seeds"
        )
    hooks = hooks or Hooks()
    num_workers = pick_workers(workers, num_lanes=len(seeds), num_steps=len(seeds) * horizon)
    with environments(make_environment, seeds, num_workers) as stepper:
        columns, alive = stepper.columns, np.arange(len(seeds))
        log = _Log(limits, seeds, columns)
        _check_finite(columns, alive, seeds)
        policy.reset(torch.from_numpy(columns.state.copy()), _rows(limits))
        while len(alive):
            index, state = torch.from_numpy(alive), columns.state[alive]
            decision = policy.act(torch.from_numpy(state), index)
            columns.action[alive] = decision.action.cpu().numpy()
            columns.active[:] = False
            columns.active[alive] = True
            stepper.start_step()
            if hooks.watch:
                hooks.watch(index, decision)
            log.add_decision(alive, state, decision)
            stepper.finish_step()
            _check_finite(columns, alive, seeds)
            log.add_result(columns.reward[alive], columns.cost[alive])
            policy.observe(_rows(columns.reward[alive, None]), _rows(columns.cost[alive]), index)
            columns.truncated[alive] |= ~columns.terminated[alive] & (len(log.steps) >= horizon)
            over = (columns.terminated | columns.truncated)[alive]
            if hooks.stop:
                over |= hooks.stop(alive, columns.cost[alive])
            if hooks.ended and over.any():
                for lane, episode in zip(alive[over], log.episodes(alive[over]), strict=True):
                    hooks.ended(int(lane), episode)
            alive = alive[~over]
            if hooks.progress and over.any():
                hooks.progress(len(seeds) - len(alive), len(seeds))
        return list(log.episodes(range(len(seeds))))


class _Log:
    """What happened at each step, on the lanes that were alive."""

    def __init__(
        self, limits: Sequence[NDArray[np.float64]], seeds: Sequence[int], columns: LaneColumns
    ) -> None:
        self._limits, self._seeds, self._columns = limits, seeds, columns
        self.steps: list[dict[str, NDArray[Any]]] = []

    def add_decision(
        self, lanes: NDArray[np.int64], state: NDArray[np.float32], decision: Decision
    ) -> None:
        def values(of_lanes: torch.Tensor | None, default: NDArray[Any]) -> NDArray[Any]:
            return default if of_lanes is None else of_lanes.cpu().numpy()

        self.steps.append(
            {
                "lane": lanes,
                "state": state,
                "action": self._columns.action[lanes],
                "num_rounds": values(decision.num_rounds, np.ones(len(lanes), np.int64)),
                "fell_back": values(decision.fell_back, np.zeros(len(lanes), np.bool_)),
                "shielded": values(decision.shielded, np.zeros(len(lanes), np.bool_)),
            }
        )

    def add_result(self, reward: NDArray[np.float64], cost: NDArray[np.float64]) -> None:
        self.steps[-1].update(reward=reward, cost=cost)

    def episodes(self, lanes: Iterable[int]) -> Iterator[Episode]:
        """What happened on these lanes so far."""
        names = list(self.steps[0])
        rows = {name: np.concatenate([step[name] for step in self.steps]) for name in names}
        for lane in lanes:
            is_own = rows["lane"] == lane
            own = {name: values[is_own] for name, values in rows.items()}
            trajectory = Trajectory.of(
                own["state"],
                own["action"],
                own["reward"],
                self._columns.state[lane].copy(),
                terminated=bool(self._columns.terminated[lane]),
                truncated=bool(self._columns.truncated[lane]),
            )
            rest = {name: own[name] for name in ("cost", "num_rounds", "fell_back", "shielded")}
            yield Episode(self._limits[lane], self._seeds[lane], trajectory, **rest)


def _check_finite(columns: LaneColumns, lanes: NDArray[np.int64], seeds: Sequence[int]) -> None:
    """Environments that blow up are named, rather than what would become of their numbers."""
    for name in ("state", "reward"):
        values = getattr(columns, name)[lanes]
        if not np.isfinite(values).all():
            lane = lanes[~np.isfinite(values.reshape(len(lanes), -1)).all(1)][0]
            raise ValueError(
                f"the environment of lane {lane} (seed {seeds[lane]}) gave a {name} that is NaN "
                "or infinite: it has become unstable, or is not meant for such actions"
            )


def _rows(values: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float32))
