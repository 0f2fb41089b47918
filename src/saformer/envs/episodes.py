"""Episodes in lanes: one policy drives many machines at once, each under its own limit.

Nothing here needs Gymnasium: what is stepped may be environments, or a world learnt from logs.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from saformer.core.policy import Decision, Policy
from saformer.data.trajectory import Trajectory
from saformer.envs.block import LaneRows


class Stepper(Protocol):
    """Steps the active lanes: `lanes` holds their actions and the results."""

    lanes: LaneRows

    def start_step(self) -> None:
        """Begin to execute the actions; it may return before they are executed."""

    def finish_step(self) -> None:
        """The results are there."""


@dataclass(frozen=True)
class Episode:
    """The episode of one lane."""

    limit: NDArray[np.float64]  # [C]
    seed: int
    trajectory: Trajectory
    cost: NDArray[np.float64]  # [T, C] of each step, undiscounted
    num_rounds: NDArray[np.int64]  # [T] rounds of proposals of each decision; 1 without rounds
    fell_back: NDArray[np.bool_]  # [T] whether the fallback decided
    shielded: NDArray[np.bool_]  # [T] whether a shield changed the action

    def discounted_cost(self, discount: float) -> NDArray[np.float64]:
        """[T, C] of each step, as it counts at the first."""
        return discount ** np.arange(len(self.cost))[:, None] * self.cost


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


def drive(
    policy: Policy,
    stepper: Stepper,
    limits: Sequence[NDArray[np.float64]],
    seeds: Sequence[int],
    *,
    horizon: int,
    hooks: Hooks | None = None,
) -> list[Episode]:
    """Run one episode per (limit, seed), all at once, from the states that the lanes are in;
    finished lanes are dropped from the batch. `horizon` ends episodes that nothing else ends."""
    hooks, lanes, alive = hooks or Hooks(), stepper.lanes, np.arange(len(seeds))
    log = _Log(limits, seeds, lanes)
    _check_finite(lanes, alive, seeds)
    policy.reset(torch.from_numpy(lanes["state"].copy()), _rows(limits))
    while len(alive):
        index, state = torch.from_numpy(alive), lanes["state"][alive]
        decision = policy.act(torch.from_numpy(state), index)
        lanes["action"][alive] = decision.action.cpu().numpy()
        lanes["active"] = False
        lanes["active"][alive] = True
        stepper.start_step()
        if hooks.watch:
            hooks.watch(index, decision)
        log.add_decision(alive, state, decision)
        stepper.finish_step()
        _check_finite(lanes, alive, seeds)
        reward, cost = lanes["reward"][alive], lanes["cost"][alive]
        log.steps[-1].update(reward=reward, cost=cost)
        policy.observe(_rows(reward[:, None]), _rows(cost), index)
        lanes["truncated"][alive] |= ~lanes["terminated"][alive] & (len(log.steps) >= horizon)
        over = (lanes["terminated"] | lanes["truncated"])[alive]
        if hooks.stop:
            over |= hooks.stop(alive, cost)
        if hooks.ended and over.any():
            for lane, episode in zip(alive[over], log.episodes(alive[over]), strict=True):
                hooks.ended(int(lane), episode)
        alive = alive[~over]
        if hooks.progress and over.any():
            hooks.progress(len(seeds) - len(alive), len(seeds))
    return list(log.episodes(range(len(seeds))))


class _Log:
    """The steps so far, each of the lanes that were alive."""

    def __init__(
        self, limits: Sequence[NDArray[np.float64]], seeds: Sequence[int], lanes: LaneRows
    ) -> None:
        self._limits, self._seeds, self._lanes = limits, seeds, lanes
        self.steps: list[dict[str, NDArray[Any]]] = []

    def add_decision(
        self, alive: NDArray[np.int64], state: NDArray[np.float32], decision: Decision
    ) -> None:
        step: dict[str, NDArray[Any]] = {"lane": alive, "state": state}
        step["action"] = self._lanes["action"][alive]
        for name, default in (("num_rounds", 1), ("fell_back", False), ("shielded", False)):
            values: torch.Tensor | None = getattr(decision, name)
            unknown = np.full(len(alive), default)
            step[name] = unknown if values is None else values.cpu().numpy()
        self.steps.append(step)

    def episodes(self, lanes: Iterable[int]) -> Iterator[Episode]:
        """Those of these lanes so far."""
        names = list(self.steps[0])
        rows = {name: np.concatenate([step[name] for step in self.steps]) for name in names}
        for lane in lanes:
            is_own = rows["lane"] == lane
            own = {name: values[is_own] for name, values in rows.items() if name != "lane"}
            state, action, reward = (own.pop(name) for name in ("state", "action", "reward"))
            last = self._lanes[lane]
            ends: dict[str, Any] = {n: bool(last[n]) for n in ("terminated", "truncated")}
            trajectory = Trajectory.of(state, action, reward, last["state"].copy(), **ends)
            yield Episode(self._limits[lane], self._seeds[lane], trajectory, **own)


def _check_finite(lanes: LaneRows, alive: NDArray[np.int64], seeds: Sequence[int]) -> None:
    """Name environments that blow up, rather than what would become of their numbers."""
    for name in ("state", "reward"):
        is_finite = np.isfinite(lanes[name][alive]).reshape(len(alive), -1).all(1)
        if not is_finite.all():
            lane = alive[~is_finite][0]
            gave = f"lane {lane} (seed {seeds[lane]}) gave a {name} that is NaN or infinite"
            reason = "it has become unstable, or is not meant for such actions"
            raise ValueError(f"the environment of {gave}: {reason}")


def _rows(values: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float64))
