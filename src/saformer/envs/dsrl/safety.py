"""DSRL's 21 tasks of Safety-Gymnasium 1.0.0, under Gymnasium 1.x, MuJoCo 3.x and Python 3.11 on.

Loading the package works around four things that have changed since it was written:

- its `__init__` imports wrappers that Gymnasium 1.0 dropped, and pygame: it is never run, so that
  `import safety_gymnasium` afterwards gives a module without it;
- NumPy arrays as defaults of dataclass fields, which Python 3.11 refuses, become factories;
- `MjModel.jnt` also takes an array of one index, as older versions did;
- every reset decoded six pictures of a sky, for 1.5 s: they are left out of the model, which
  changes no reward and no observation.
"""

import copy
import dataclasses
import importlib
import importlib.util
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np

from saformer.envs.dsrl.registry import require

PACKAGE = "safety_gymnasium"
SKY = re.compile(r'<texture type="skybox"[^>]*?(?:/>|></texture>)')
FILES = {"HalfCheetah": "half_cheetah"}
"""Of robots whose file is not called like them."""


class CostInInfo(gymnasium.Wrapper):
    """Makes five values of the package's six: the cost goes to `info["cost"]`."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        values: Any = self.env.step(action)
        state, reward, cost, terminated, truncated, info = values
        return state, float(reward), terminated, truncated, {**info, "cost": float(cost)}


def navigation(name: str, render_mode: str | None = None) -> gymnasium.Env:
    """A point or a car among hazards: PointGoal1."""
    robot = "Point" if name.startswith("Point") else "Car"
    builder = _load("builder").Builder
    with warnings.catch_warnings():  # bounds of infinity, in two precisions
        warnings.filterwarnings("ignore", "overflow", RuntimeWarning)
        return CostInInfo(builder(f"Safety{name}-v0", {"agent_name": robot}, render_mode))


def velocity(name: str, **options: Any) -> gymnasium.Env:
    """A MuJoCo robot that costs 1 in every step above a speed: HopperVelocity."""
    robot = name.removesuffix("Velocity")
    file = FILES.get(robot, robot.lower())
    module = _load(f"tasks.safe_velocity.safety_{file}_velocity_v1")
    return CostInInfo(getattr(module, f"Safety{name}Env")(**options))


def _load(module: str) -> Any:
    _prepare()
    with _arrays_as_defaults():
        return importlib.import_module(f"{PACKAGE}.{module}")


@cache
def _prepare() -> None:
    """Make the package importable, once."""
    require("mujoco", "xmltodict", "yaml", PACKAGE)
    import mujoco

    if PACKAGE not in sys.modules:
        spec = importlib.util.find_spec(PACKAGE)
        assert spec is not None, "it was required"
        sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    mujoco.MjModel.jnt = _of_one_index(mujoco.MjModel.jnt)
    with _arrays_as_defaults():
        world = importlib.import_module(f"{PACKAGE}.world")
    model = SimpleNamespace(from_xml_string=_without_sky(mujoco.MjModel.from_xml_string))
    setattr(world, "mujoco", SimpleNamespace(**{**vars(mujoco), "MjModel": model}))  # noqa: B010


def _of_one_index(joint: Callable[..., Any]) -> Callable[..., Any]:
    def of_one_index(model: Any, key: Any = "") -> Any:
        return joint(model, int(key[0]) if isinstance(key, np.ndarray) else key)

    return of_one_index


def _without_sky(read: Callable[..., Any]) -> Callable[..., Any]:
    return lambda text, *rest: read(SKY.sub("", text), *rest)


@contextmanager
def _arrays_as_defaults() -> Iterator[None]:
    """Meanwhile a dataclass may have defaults that cannot be hashed; each instance has a copy."""
    original = dataclasses.dataclass

    def dataclass(cls: Any = None, **options: Any) -> Any:
        def wrap(own: Any) -> Any:
            for name in inspect.get_annotations(own):
                value = own.__dict__.get(name, dataclasses.MISSING)
                if value is not dataclasses.MISSING and type(value).__hash__ is None:
                    factory = partial(copy.copy, value)
                    setattr(own, name, dataclasses.field(default_factory=factory))
            return original(own, **options)

        return wrap if cls is None else wrap(cls)

    setattr(dataclasses, "dataclass", dataclass)  # noqa: B010 (mypy)
    try:
        yield
    finally:
        setattr(dataclasses, "dataclass", original)  # noqa: B010
