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
from gymnasium.envs.registration import EnvSpec

from saformer.criteria import CostCriterion, code, criterion
from saformer.data.store import EnvironmentSpec
from saformer.envs.block import LaneRows
from saformer.envs.costed import Costed, make


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
        identifier, registered = _known_elsewhere(str(spec.identifier))
        environment = {"identifier": identifier, "horizon": spec.horizon}
        environment["arguments"] = spec.arguments
        plain: dict[str, Any] = {"environment": environment, "registered": registered}
        plain["criteria"] = [_name_elsewhere(cost) for cost in self.criteria]
        text = json.dumps({**plain, "bounds": [spec.action_low, spec.action_high]})
        if json.loads(text)["environment"] != environment:
            raise ValueError(f"arguments of {spec.identifier} change when they are written as JSON")
        return text

    @classmethod
    def read(cls, text: str) -> Self:
        """The maker of this text; the environment becomes known to Gymnasium as it was there."""
        plain = json.loads(text)
        if plain["registered"]:
            registered = EnvSpec.from_json(json.dumps(plain["registered"]))
            # the module first, as it may register itself
            importlib.import_module(str(registered.entry_point).partition(":")[0])
            gymnasium.registry[registered.id] = registered
        code.typed(plain["environment"]["identifier"])  # there, or known there already
        low, high = map(tuple, plain["bounds"])
        criteria = tuple(criterion(name) for name in plain["criteria"])
        return cls(EnvironmentSpec(low, high, **plain["environment"]), criteria)


def _known_elsewhere(identifier: str) -> tuple[str, dict[str, Any] | None]:
    """The name by which another process makes the environment, and what to register there."""
    known = identifier.rpartition(":")[2]
    if code.is_here(identifier):
        return code.importable(identifier) or identifier, None
    if known not in gymnasium.registry and code.is_code(identifier):
        raise ValueError(f"{identifier} is not to be found in a module by its name")
    registered: dict[str, Any] = json.loads(gymnasium.spec(known).to_json())  # refuses functions
    if str(registered["entry_point"]).startswith("__main__"):
        where = "in the script that is run, not in a module"
        raise ValueError(f"{identifier} is defined {where}")
    return known, registered


def _name_elsewhere(cost: CostCriterion) -> str:
    """The name that gives the criterion back in another process."""
    name = code.importable(cost.name) if code.is_code(cost.name) else cost.name
    try:
        if name and criterion(cost.name, trusted=False) == cost:
            return name
    except ValueError:
        pass
    raise ValueError(f"criterion {cost.name!r} is not one that its name describes")


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
