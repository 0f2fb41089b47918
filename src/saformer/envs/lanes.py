"""Environments side by side: what they are given and what they give back lies in one block of
memory.

Stepped in this process, or by worker processes that see the same block (`saformer.envs.pool`).
Nothing here needs torch, so that workers start in a moment.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from saformer.criteria import CostCriterion, criterion
from saformer.data.store import EnvironmentSpec
from saformer.envs.costed import Costed, make


@dataclass(frozen=True)
class Shape:
    """How many lanes there are, and how wide their values."""

    lanes: int
    state: int
    action: int
    constraints: int

    @property
    def columns(self) -> dict[str, tuple[tuple[int, ...], type]]:
        """Shape and type of each column; the widest numbers first, so that every column is
        aligned."""
        return {
            "reward": ((self.lanes,), np.float64),
            "cost": ((self.lanes, self.constraints), np.float64),
            "state": ((self.lanes, self.state), np.float32),
            "action": ((self.lanes, self.action), np.float32),
            "active": ((self.lanes,), np.bool_),
            "terminated": ((self.lanes,), np.bool_),
            "truncated": ((self.lanes,), np.bool_),
        }

    @property
    def num_bytes(self) -> int:
        """Of the block that holds them all."""
        return sum(
            int(np.prod(shape)) * np.dtype(kind).itemsize for shape, kind in self.columns.values()
        )


@dataclass(frozen=True)
class Columns:
    """A row per lane, over a block of memory."""

    state: NDArray[np.float32]
    """[L, S] the present one"""
    action: NDArray[np.float32]
    """[L, A] to be executed"""
    reward: NDArray[np.float64]
    """[L] of the last step, as are the following"""
    cost: NDArray[np.float64]
    """[L, C]"""
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    active: NDArray[np.bool_]
    """[L] which lanes are to be stepped"""

    @classmethod
    def over(cls, block: Any, shape: Shape) -> Columns:
        """Read and write this block, in which the columns lie one behind the other."""
        found, offset = {}, 0
        for name, (size, kind) in shape.columns.items():
            found[name] = np.ndarray(size, kind, buffer=block, offset=offset)
            offset += found[name].nbytes
        return cls(**found)


@dataclass(frozen=True)
class Maker:
    """Makes environments, each the one that a store's data came from with its costs. It may travel
    as text."""

    environment: EnvironmentSpec
    criteria: tuple[CostCriterion, ...]

    def __call__(self) -> Costed:
        """A new environment."""
        return make(self.environment, self.criteria)

    def text(self) -> str:
        """All that another process needs to make the same; ValueError where that cannot be said in
        text."""
        spec = self.environment
        module, _, name = str(spec.identifier).rpartition(":")
        if module:  # which registers it
            importlib.import_module(module)
        registered = json.loads(gymnasium.spec(name).to_json())  # refuses functions
        if str(registered["entry_point"]).startswith("__main__"):
            raise ValueError(
                f"{spec.identifier} is defined in the script that is run, not in a module"
            )
        foreign = [c.name for c in self.criteria if not _is_known(c)]
        if foreign:
            raise ValueError(f"criterion {foreign[0]!r} is not one that its name describes")
        environment = {name: getattr(spec, name) for name in ("identifier", "horizon", "arguments")}
        plain = {
            "environment": environment,
            "registered": registered,
            "criteria": [c.name for c in self.criteria],
        }
        text = json.dumps({**plain, "bounds": [spec.action_low, spec.action_high]})
        if json.loads(text)["environment"] != environment:
            raise ValueError(f"arguments of {spec.identifier} change when they are written as JSON")
        return text

    @classmethod
    def read(cls, text: str) -> Maker:
        """What `text` said; the environment becomes known to Gymnasium as it was there."""
        plain = json.loads(text)
        registered = EnvSpec.from_json(json.dumps(plain["registered"]))
        importlib.import_module(
            str(registered.entry_point).partition(":")[0]
        )  # first, as it may register itself
        if (
            ":" not in plain["environment"]["identifier"]
        ):  # else Gymnasium imports the module that registers it
            gymnasium.registry[registered.id] = registered
        low, high = plain["bounds"]
        return cls(
            EnvironmentSpec(action_low=tuple(low), action_high=tuple(high), **plain["environment"]),
            tuple(criterion(name) for name in plain["criteria"]),
        )


def _is_known(given: CostCriterion) -> bool:
    """Whether its name alone gives it back, in another process too."""
    try:
        return criterion(given.name) == given and not given.name.startswith("__main__")
    except ValueError:
        return False


class Share:
    """Some of the lanes, each with an environment of its own, stepped one after the other."""

    def __init__(
        self, environments: Sequence[Costed], lanes: Sequence[int], seeds: Sequence[int]
    ) -> None:
        self._parts = list(zip(lanes, seeds, environments, strict=True))
        self._columns: Columns | None = None

    @property
    def widths(self) -> tuple[int, int, int]:
        """Of states, of actions and of costs."""
        first = self._parts[0][2]
        return first.observation_space.shape[0], first.action_space.shape[0], first.num_costs  # type: ignore[index]

    def begin(self, columns: Columns) -> None:
        """Reset every environment with its seed; the first states are written."""
        self._columns = columns
        for lane, seed, environment in self._parts:
            columns.state[lane] = environment.reset(seed=seed)[0]

    def step(self) -> None:
        """Execute the actions of active lanes, and write what came of them."""
        columns = self._columns
        assert columns is not None, "begin comes first"
        for lane, _, environment in self._parts:
            if columns.active[lane]:
                state, reward, terminated, truncated, info = environment.step(columns.action[lane])
                columns.state[lane], columns.reward[lane], columns.cost[lane] = (
                    state,
                    reward,
                    info["cost"],
                )
                columns.terminated[lane], columns.truncated[lane] = terminated, truncated

    def close(self) -> None:
        """Close every environment."""
        for _, _, environment in self._parts:
            environment.close()
