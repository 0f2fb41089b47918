"""Environments side by side: their actions and results lie in one block of memory.

Stepped in this process, or by worker processes that see the same block (`saformer.envs.pool`).
Nothing here needs torch, so that workers start in a moment.
"""

import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from saformer.criteria import CostCriterion, criterion
from saformer.data.store import EnvironmentSpec
from saformer.envs.costed import Costed, make

LaneRows = NDArray[np.void]
"""[L] rows of `lane_dtype`, over a block of memory."""


def lane_dtype(state: int, action: int, constraints: int) -> np.dtype[Any]:
    """A lane's row in the block; the arguments are widths."""
    fields: dict[str, Any] = {
        "state": (np.float32, (state,)),  # the present one
        "action": (np.float32, (action,)),  # to be executed
        "reward": np.float64,  # of the last step, as are the following
        "cost": (np.float64, (constraints,)),
        "terminated": np.bool_,
        "truncated": np.bool_,
        "active": np.bool_,  # whether the lane is to be stepped
    }
    return np.dtype(list(fields.items()), align=True)


@dataclass(frozen=True)
class Maker:
    """Makes environments, as a store's data came from, with costs. It may travel as text."""

    environment: EnvironmentSpec
    criteria: tuple[CostCriterion, ...]

    def __call__(self) -> Costed:
        return make(self.environment, self.criteria)

    def text(self) -> str:
        """All that another process needs to make the same; ValueError where text cannot say it."""
        spec = self.environment
        module, _, name = str(spec.identifier).rpartition(":")
        if module:  # which registers it
            importlib.import_module(module)
        registered = json.loads(gymnasium.spec(name).to_json())  # refuses functions
        if str(registered["entry_point"]).startswith("__main__"):
            where = "in the script that is run, not in a module"
            raise ValueError(f"{spec.identifier} is defined {where}")
        for cost in self.criteria:
            if not _is_described_by_name(cost):
                raise ValueError(f"criterion {cost.name!r} is not one that its name describes")
        environment = {name: getattr(spec, name) for name in ("identifier", "horizon", "arguments")}
        plain = {"environment": environment, "registered": registered}
        plain["criteria"] = [cost.name for cost in self.criteria]
        text = json.dumps({**plain, "bounds": [spec.action_low, spec.action_high]})
        if json.loads(text)["environment"] != environment:
            raise ValueError(f"arguments of {spec.identifier} change when they are written as JSON")
        return text

    @classmethod
    def read(cls, text: str) -> Self:
        """The maker of this text; the environment becomes known to Gymnasium as it was there."""
        plain = json.loads(text)
        registered = EnvSpec.from_json(json.dumps(plain["registered"]))
        # the module first, as it may register itself
        importlib.import_module(str(registered.entry_point).partition(":")[0])
        # with a colon, Gymnasium imports the module that registers it
        if ":" not in plain["environment"]["identifier"]:
            gymnasium.registry[registered.id] = registered
        low, high = map(tuple, plain["bounds"])
        criteria = tuple(criterion(name) for name in plain["criteria"])
        return cls(EnvironmentSpec(low, high, **plain["environment"]), criteria)


def _is_described_by_name(cost: CostCriterion) -> bool:
    """Whether its name alone gives it back, in another process too."""
    try:
        return criterion(cost.name) == cost and not cost.name.startswith("__main__")
    except ValueError:
        return False


class Share:
    """Some of the lanes, each with an environment of its own, stepped one after the other."""

    lanes: LaneRows

    def __init__(
        self, environments: Sequence[Costed], lanes: Sequence[int], seeds: Sequence[int]
    ) -> None:
        self._parts = list(zip(lanes, seeds, environments, strict=True))

    @property
    def widths(self) -> tuple[int, int, int]:
        """Of states, of actions and of costs."""
        first = self._parts[0][2]
        (state,), (action,) = first.observation_space.shape, first.action_space.shape  # type: ignore[misc]
        return state, action, len(first.criteria)

    def begin(self, lanes: LaneRows) -> None:
        """Reset every environment with its seed, and write the first states."""
        self.lanes = lanes
        for lane, seed, environment in self._parts:
            lanes["state"][lane] = environment.reset(seed=seed)[0]

    def start_step(self) -> None:
        """Execute the actions of active lanes, and write the results."""
        for lane, _, environment in self._parts:
            row = self.lanes[lane]
            if row["active"]:
                state, reward, terminated, truncated, info = environment.step(row["action"])
                row["state"], row["reward"], row["cost"] = state, reward, info["cost"]
                row["terminated"], row["truncated"] = terminated, truncated

    def finish_step(self) -> None:
        """They are stepped already."""

    def close(self) -> None:
        for _, _, environment in self._parts:
            environment.close()
