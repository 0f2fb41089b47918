"""A Gymnasium environment that says what each step cost."""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from saformer.criteria import CostCriterion, Step, code
from saformer.data.store import EnvironmentSpec
from saformer.envs import allowance, plants  # noqa: F401 (registers them for all who open stores)
from saformer.envs.dsrl import registry  # noqa: F401

COMPOUND = (gymnasium.spaces.Dict, gymnasium.spaces.Tuple)


class Costed(gymnasium.Wrapper):
    """Adds `info["cost"]`, an array [C] of a cost per criterion, and brings actions within bounds.

    Criteria see a step as a trajectory stores it (float32), and the numbers in the environment's
    info as columns: also its own "cost", which ours replaces in info.
    """

    def __init__(self, environment: gymnasium.Env, criteria: Sequence[CostCriterion]) -> None:
        self.notes = tuple(flattening(environment.observation_space))
        environment = flat(environment)
        super().__init__(environment)
        spec = environment.spec
        self._name = spec.id if spec else type(environment.unwrapped).__name__
        check_vectors(environment, self._name)
        self.criteria = tuple(criteria)
        self._state: NDArray[Any] | None = None

    def reset(self, **keywords: Any) -> tuple[Any, dict[str, Any]]:
        state, info = self.env.reset(**keywords)
        self._state = self._vector(state)
        return self._state, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        action = np.clip(action, self.action_space.low, self.action_space.high)  # type: ignore[attr-defined]
        next_state, reward, terminated, truncated, info = self.env.step(action)
        self._vector(next_state)
        step = Step(
            action=np.asarray(action, dtype=np.float32),
            state=np.asarray(self._state, dtype=np.float32),
            next_state=np.asarray(next_state, dtype=np.float32),
            reward=np.asarray(reward, dtype=np.float32),
            columns=numbers_of(info),
            origin=f"environment {self._name!r}, by its info,",
        )
        cost = np.array([criterion(step) for criterion in self.criteria], dtype=np.float64)
        self._state = next_state
        return next_state, float(reward), terminated, truncated, {**info, "cost": cost}

    def _vector(self, state: Any) -> Any:
        """The observation, unless it would have to be stretched over the state."""
        if np.shape(state) != self.observation_space.shape:
            shapes = f"of shape {np.shape(state)}, its space says {self.observation_space.shape}"
            raise ValueError(f"environment {self._name!r} gave an observation {shapes}: mend it")
        return state


def make(spec: EnvironmentSpec, criteria: Sequence[CostCriterion]) -> Costed:
    """The environment that a store's data came from, with its costs."""
    if spec.identifier is None:
        raise ValueError("this data has no environment: it can be learnt from, but not rolled out")
    with warnings.catch_warnings():  # the version is the one that was recorded
        warnings.filterwarnings("ignore", ".*is out of date", DeprecationWarning)
        return Costed(make_by_id(spec.identifier, **spec.arguments), criteria)


def make_by_id(identifier: str, **arguments: Any) -> gymnasium.Env:
    """The environment of a Gymnasium id that is registered, or what a name of code stands for: a
    class, a function that makes one, or an id that its module registers."""
    known, factory = identifier.rpartition(":")[2], None
    try:
        if known not in gymnasium.registry and code.is_code(identifier):
            factory = code.load(identifier, "environment")
        if factory is None:
            return gymnasium.make(known, disable_env_checker=True, **arguments)
        environment = factory(**arguments)
        if isinstance(environment, gymnasium.vector.VectorEnv):
            environment = _first_lane(environment)
    except gymnasium.error.DependencyNotInstalled as error:
        remedy = "robots need pip install 'saformer[mujoco]'"  # with the versions that we tried
        raise ValueError(
            f"environment {identifier!r} cannot be made: {remedy} ({error})"
        ) from error
    except (gymnasium.error.Error, ModuleNotFoundError, ValueError) as error:
        is_unknown = isinstance(error, gymnasium.error.UnregisteredEnv) and known == identifier
        hint = f" If a file of yours registers it: ./file.py:{identifier}" if is_unknown else ""
        raise ValueError(f"environment {identifier!r} cannot be made: {error}{hint}") from error
    if not isinstance(environment, gymnasium.Env):
        expected = "a gymnasium.Env is expected, from a class or from a function without arguments"
        raise ValueError(f"environment {identifier!r} is {type(environment).__name__}: {expected}")
    return environment


def maker_of(environment: Any) -> Any:
    """What makes an environment for every episode: names, classes and functions do; one that was
    passed is made again by its id or copied; a vectorised one has a function for each lane."""
    if isinstance(environment, gymnasium.vector.VectorEnv):
        return partial(_first_lane, environment)
    if not isinstance(environment, gymnasium.Env):
        return environment
    spec = environment.spec
    if spec and spec.id in gymnasium.registry and not (spec.kwargs or spec.additional_wrappers):
        return spec.id
    return partial(_copy, environment)


def _first_lane(environment: gymnasium.vector.VectorEnv) -> gymnasium.Env:
    makers = getattr(environment, "env_fns", ())
    if isinstance(environment, gymnasium.vector.VectorWrapper) or not makers:
        kind = f"{type(environment).__name__} is not made of single environments that are whole"
        raise ValueError(f"{kind}: pass a function that makes one, with its wrappers")
    made: gymnasium.Env = makers[0]()
    return made


def _copy(environment: gymnasium.Env) -> gymnasium.Env:
    try:
        return copy.deepcopy(environment)
    except Exception as error:  # another's class, which may hold anything
        reason = f"{type(environment).__name__} cannot be copied for every episode ({error})"
        raise ValueError(f"{reason}: pass a class, or a function that makes one") from error


def attached(
    data: Any, environment: Any, num_states: int, say: Callable[[str], None] = lambda text: None
) -> Any:
    """A store or totals with this environment, by a name that was typed, or as whatever was passed
    (see `maker_of`); None: as it is. It is made once, to see whether it fits."""
    if environment is None:
        return data
    spec, name = data.environment, code.typed(maker_of(environment))
    arguments = spec.arguments if name == spec.identifier else {}
    changes: dict[str, Any] = {"identifier": name, "arguments": arguments}
    with make(replace(spec, **changes), ()) as made:
        for note in made.notes:
            say(f"note: {note}")
        theirs = [*made.observation_space.shape, *made.action_space.shape]  # type: ignore[misc]
    if theirs != (ours := [num_states, len(spec.action_low)]):
        sizes = "has {} states and {} actions".format(*theirs)
        raise ValueError(f"environment {name!r} {sizes}, the data {ours[0]} and {ours[1]}")
    return data.with_environment(**changes)


def try_out(spec: EnvironmentSpec, criteria: Sequence[CostCriterion]) -> None:
    """Make the environment and take a step, to fail before a policy is rolled out."""
    environment = make(spec, criteria)
    environment.reset(seed=0)
    environment.step((np.array(spec.action_low) + np.array(spec.action_high)) / 2)
    environment.close()


def flat(environment: gymnasium.Env) -> gymnasium.Env:
    """The environment with observations in one vector, where they are a Dict or a Tuple."""
    if isinstance(environment.observation_space, COMPOUND):
        return gymnasium.wrappers.FlattenObservation(environment)
    return environment


def flattening(space: gymnasium.Space) -> Iterator[str]:
    """What a user should know of observations that are flattened; nothing where they are not."""
    if isinstance(space, COMPOUND):
        parts = space.spaces.items() if hasattr(space.spaces, "items") else enumerate(space.spaces)
        order = ", ".join(f"{name} [{gymnasium.spaces.flatdim(part)}]" for name, part in parts)
        yield f"observations are flattened to one vector, in this order: {order}"


def check_vectors(environment: gymnasium.Env, name: str) -> None:
    """Refuse observations or actions that are no vectors of numbers."""
    flatten = "gymnasium.wrappers.FlattenObservation makes one"
    choose = "choose an environment with continuous actions"
    spaces = {"observations": environment.observation_space, "actions": environment.action_space}
    for (what, space), remedy in zip(spaces.items(), (flatten, choose), strict=True):
        if not (isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1):
            need = "a flat Box (a vector) is needed"
            raise ValueError(f"{what} of {name!r} are {space}, but {need}; {remedy}")


def numbers_of(info: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """What criteria can read of info: numbers and arrays of them."""
    numeric = bool | int | float | np.generic | np.ndarray
    arrays = {name: np.asarray(v) for name, v in info.items() if isinstance(v, numeric)}
    return {name: array for name, array in arrays.items() if array.dtype.kind in "biuf"}
