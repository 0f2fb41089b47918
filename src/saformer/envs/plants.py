"""Three plants that need no simulator but numpy: a heated room, a battery, a tank.

Each has one level (temperature, charge, water), inputs that nobody controls and that every episode
draws anew (weather, prices, load, inflow), and one action in [0, 1]. Reward and cost pull apart:
comfort costs money, a supplied house costs CO2, a steady level costs power. Doing nothing costs
nothing, and only the clock ends an episode. Logs come from simple controllers with random settings.
With a day's inputs known in advance, a dynamic program has the best course within any limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory

Array = NDArray[Any]
Day = tuple[Array, float]
"""Inputs [T + 1, E] of an episode, and its first level."""
Law = Callable[[Array, Array, Array], Array]
"""(level, inputs [E, ...], action) -> a number for each."""
GRID = (51, 101, 11)
"""Levels, budgets and actions of the dynamic program."""


@dataclass(frozen=True)
class Plant:
    """How a level moves, what a step earns and costs, and who has run it so far."""

    name: str  # of the task
    identifier: str  # Gymnasium's
    horizon: int
    levels: tuple[float, float]  # range of the level
    draw_day: Callable[[np.random.Generator], Day]
    advance: Law
    reward: Law
    cost: Law
    criterion: str  # the cost as an expression: state is level, inputs, clocks
    settings: dict[str, tuple[float, float]]  # of a controller: the range of each
    control: Callable[[Array, Array], Array]
    """(settings [K, ...], state [S, ...]) -> action, before noise and clipping"""
    noise: float  # deviation of a controller's action while it is on

    def day(self, seed: int) -> Day:
        """Of the episode that the environment begins with this seed."""
        return self.draw_day(gymnasium.utils.seeding.np_random(seed)[0])

    def observe(self, level: Array | float, inputs: Array, time: int) -> NDArray[np.float32]:
        """[S, ...] level, inputs, sine and cosine of the time, share of the episode that is over"""
        angle = 2 * np.pi * time / self.horizon
        clocks = (np.sin(angle), np.cos(angle), time / self.horizon)
        return np.stack(np.broadcast_arrays(level, *inputs, *clocks)).astype(np.float32)

    def controllers(self, count: int, rng: np.random.Generator) -> Array:
        """[K, count] random settings. The logs of a seed have those of `default_rng(seed)`."""
        low, high = np.array(list(self.settings.values())).T[..., None]
        return rng.uniform(low, high, (len(low), count))

    def logs(self, *, episodes: int, seed: int = 0) -> TrajectoryStore:
        """Days that controllers have run, one each."""
        rng = np.random.default_rng(seed)
        settings = self.controllers(episodes, rng)
        days = [self.draw_day(rng) for _ in range(episodes)]
        columns = zip(*self._run(settings, days, rng), strict=True)
        state, action, reward, _, following = (np.stack(column, axis=1) for column in columns)
        trajectories = [
            Trajectory.of(
                state=state[..., lane].T,
                action=action[lane, :, None],
                reward=reward[lane],
                final_state=following[:, -1, lane],
                terminated=False,
                truncated=True,
            )
            for lane in range(episodes)
        ]
        facts: dict[str, Any] = {"source": f"controllers of {self.name}", "seed": seed}
        facts["versions"] = {"numpy": np.__version__}
        environment = EnvironmentSpec((0.0,), (1.0,), self.horizon, self.identifier)
        return TrajectoryStore.of(trajectories, environment, facts, criteria=[self.criterion])

    def replay(self, settings: Array, days: Sequence[Day], *, seed: int = 0) -> tuple[Array, Array]:
        """Returns and costs [N, D] of N controllers [K, N], each on all of D days."""
        steps = self._run(settings[..., None], days, np.random.default_rng(seed))
        returns, costs = np.sum([(reward, cost) for _, _, reward, cost, _ in steps], axis=0)
        return returns, costs

    def _run(
        self, settings: Array, days: Sequence[Day], rng: np.random.Generator
    ) -> Iterator[tuple[Array, ...]]:
        """State, action, reward, cost and next state of controllers on days, step by step."""
        inputs = np.stack([of_day for of_day, _ in days], axis=-1)
        level = np.broadcast_to([first for _, first in days], (*settings.shape[1:-1], len(days)))
        state = self.observe(level, inputs[0], 0)
        for time in range(self.horizon):
            wanted = self.control(settings, state)
            blurred = wanted + self.noise * rng.standard_normal(level.shape)
            action = np.where(wanted > 0, blurred, 0).clip(0, 1).astype(np.float32)
            step = level, inputs[time], action.astype(float)
            level = self.advance(*step)
            following = self.observe(level, inputs[time + 1], time + 1)
            yield state, action, self.reward(*step), self.cost(*step), following
            state = following


class PlantEnv(gymnasium.Env):
    """A plant as Gymnasium has it; the end of the day is `truncated`."""

    def __init__(self, name: str) -> None:
        self._plant = PLANTS[name]
        size = len(self._plant.observe(0.0, self._plant.day(0)[0][0], 0))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.action_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        (self._inputs, self._level), self._time = self._plant.draw_day(self.np_random), 0
        return self._plant.observe(self._level, self._inputs[0], 0), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        power: Any = np.clip(action, 0, 1, dtype=float)[0]
        step: Any = np.float64(self._level), self._inputs[self._time], power
        reward, self._level = float(self._plant.reward(*step)), float(self._plant.advance(*step))
        self._time += 1
        state = self._plant.observe(self._level, self._inputs[self._time], self._time)
        return state, reward, False, self._time == self._plant.horizon, {}


def foresight(plant: Plant, day: Day, limits: Sequence[float]) -> tuple[Array, Array]:
    """Returns and costs [limits] of the best courses within each limit, the whole day known.

    A dynamic program over time, level and what remains of the budget; it ends with the courses
    themselves, so that they keep their limits whatever the grids are.
    """
    (inputs, first), (low, high) = day, plant.levels
    top, actions = max(*limits, 1e-6), np.linspace(0, 1, GRID[2])
    values = np.zeros((plant.horizon + 1, *GRID[:2]))

    def step(time: int, level: Array, remaining: Array) -> tuple[Array, ...]:
        """Worth, reward, cost and next level of actions [A], for levels and budgets [..., 1]."""
        at = np.broadcast_arrays(level, remaining, actions)[0], inputs[time], actions
        reward, cost, after = plant.reward(*at), plant.cost(*at), plant.advance(*at)
        left = remaining - cost
        (row, share), (column, part) = (
            _cell(after, low, high, GRID[0]),
            _cell(left, 0, top, GRID[1]),
        )
        later = values[time + 1]
        lower, upper = (
            later[row + k, column] * (1 - part) + later[row + k, column + 1] * part for k in (0, 1)
        )
        worth = np.where(left < 0, -np.inf, reward + lower * (1 - share) + upper * share)
        return worth, reward, np.broadcast_to(cost, worth.shape), after

    levels, budgets = np.linspace(low, high, GRID[0]), np.linspace(0, top, GRID[1])
    for time in reversed(range(plant.horizon)):
        values[time] = step(time, levels[:, None, None], budgets[:, None])[0].max(-1)
    remaining, earned = np.array(limits, dtype=float)[:, None], np.zeros((len(limits), 1))
    level = np.full_like(remaining, first)
    for time in range(plant.horizon):
        worth, *outcomes = step(time, level, remaining)
        best = worth.argmax(-1)[:, None]
        reward, cost, level = (np.take_along_axis(outcome, best, -1) for outcome in outcomes)
        remaining, earned = remaining - cost, earned + reward
    return earned[:, 0], np.array(limits) - remaining[:, 0]


def _cell(values: Array, low: float, high: float, size: int) -> tuple[Array, Array]:
    """Of a grid of `size` points: the point below each value, and how far it is to the next."""
    position = ((values - low) / (high - low) * (size - 1)).clip(0, size - 1)
    index = position.astype(int).clip(max=size - 2)
    return index, position - index


def _slow_noise(rng: np.random.Generator, horizon: int, *, memory: float) -> Array:
    """[T + 1] of unit size; `memory` is the share of an episode over which it forgets itself."""
    noise, keep = rng.standard_normal(horizon + 1), np.exp(-1 / (memory * horizon))
    for time in range(1, horizon + 1):
        noise[time] = keep * noise[time - 1] + np.sqrt(1 - keep**2) * noise[time]
    return noise


def _peak(hours: Array, at: float, width: float) -> Array:
    return np.exp(-0.5 * ((hours - at) / width) ** 2)


# A room: 96 quarters of an hour, level in degrees Celsius. A heater of 3 kW warms it by 2.8 K an
# hour; in the same time it loses a twelfth of the difference to outdoors. Earns hours of comfort: a
# tenth less for each degree off 21, and a tenth of that while nobody is in. Costs euros. Inputs:
# degrees outdoors, euros per kWh, whether somebody is in.


def _room_day(rng: np.random.Generator) -> Day:
    hours = np.arange(97) / 4
    outdoor = rng.uniform(-6, 8) - 4 * np.cos(2 * np.pi * (hours - 3) / 24)
    outdoor += 1.5 * _slow_noise(rng, 96, memory=0.1)
    price = 0.18 + 0.12 * _peak(hours, 8, 1.5) + 0.18 * _peak(hours, 19, 2)
    price = price * rng.uniform(0.8, 1.4) + 0.02 * _slow_noise(rng, 96, memory=0.03)
    is_in = ((hours >= 6) & (hours < 9)) | ((hours >= 16) & (hours < 23))
    return np.stack([outdoor, price.clip(0.05), is_in], axis=1), rng.uniform(14, 20)


def _room_control(settings: Array, state: Array) -> Array:
    setpoint, setback, thrift, gain, strongest = settings
    level, _, price, is_in = state[:4]
    wanted = setpoint - setback * (1 - is_in) - thrift * (price - 0.25)
    return np.minimum(strongest, gain * (wanted - level))


ROOM = Plant(
    "plant-room",
    "saformer/Room-v0",
    horizon=96,
    levels=(-10.0, 35.0),
    draw_day=_room_day,
    advance=lambda level, inputs, action: level + 0.25 * ((inputs[0] - level) / 12 + 2.8 * action),
    reward=lambda level, inputs, action: (
        0.25 * (0.1 + 0.9 * inputs[2]) * (1 - np.abs(level - 21) / 10).clip(0)
    ),
    cost=lambda level, inputs, action: 0.75 * inputs[1] * action,
    criterion="0.75 * state[2] * action[0]",
    settings={"setpoint": (15, 23), "setback": (0, 10), "thrift": (0, 16), "gain": (0.2, 1.0)}
    | {"strongest": (0.3, 1.0)},
    control=_room_control,
    noise=0.1,
)

# A battery of 7.5 kWh, the only supply of a house: 288 times five minutes, level as a share. The
# charger takes 3 kW from the grid, stores 90% of it and stops when full. Earns kWh that the house
# gets; costs kg of CO2. Inputs: kg of CO2 per kWh of the grid, kW that the house wants.


def _battery_day(rng: np.random.Generator) -> Day:
    hours = np.arange(289) / 12
    sun = _peak(hours, 13, 2.5) * rng.uniform(0.3, 1.0)
    carbon = 0.45 - 0.35 * sun + 0.12 * _peak(hours, 19, 2)
    carbon += 0.06 * _slow_noise(rng, 288, memory=0.1)
    load = 0.3 + 0.4 * _peak(hours, 8, 1.5) + 0.7 * _peak(hours, 19, 2.5)
    load = load * rng.uniform(0.7, 1.3) + 0.05 * _slow_noise(rng, 288, memory=0.02)
    return np.stack([carbon.clip(0.05), load.clip(0.05)], axis=1), rng.uniform(0, 0.3)


def _supplied(level: Array, load: Array) -> Array:
    """Share of the battery that the house draws in a step."""
    return np.minimum(level, load / 12 / 7.5)


def _charged(level: Array, action: Array) -> Array:
    """Share of the charger's power that there is room for."""
    return np.minimum(action, (1 - level) / 0.03)


def _battery_control(settings: Array, state: Array) -> Array:
    threshold, gain, full, strongest = settings
    return np.where(state[0] < full, np.minimum(strongest, gain * (threshold - state[1])), 0)


BATTERY = Plant(
    "plant-battery",
    "saformer/Battery-v0",
    horizon=288,
    levels=(0.0, 1.0),
    draw_day=_battery_day,
    advance=lambda level, inputs, action: (
        level - _supplied(level, inputs[1]) + 0.03 * _charged(level, action)
    ),
    reward=lambda level, inputs, action: 7.5 * _supplied(level, inputs[1]),
    cost=lambda level, inputs, action: 0.25 * inputs[0] * _charged(level, action),
    criterion="0.25 * state[1] * minimum(action[0], (1 - state[0]) / 0.03)",
    settings={
        "threshold": (0.3, 0.7),
        "gain": (2, 20),
        "full": (0.2, 1.0),
        "strongest": (0.2, 1.0),
    },
    control=_battery_control,
    noise=0.05,
)

# A tank: 200 times six minutes, level as a share. At full speed a pump empties it in two hours and
# takes 10 kW, most of it with the cube of its speed; an outlet takes 0.3 of that flow from a full
# tank, less from a lower one; what comes beyond the brim is lost. Earns hours with the level near
# the middle; costs kWh. Input: inflow, as a share of the pump's at full speed.


def _tank_day(rng: np.random.Generator) -> Day:
    inflow = rng.uniform(0.2, 0.5) + 0.06 * _slow_noise(rng, 200, memory=0.05)
    for _ in range(rng.poisson(3)):
        inflow += rng.uniform(0.2, 0.8) * _peak(np.arange(201), rng.uniform(0, 200), 6)
    return inflow.clip(0)[:, None], rng.uniform(0.3, 0.7)


def _tank_control(settings: Array, state: Array) -> Array:
    target, gain, ahead, strongest = settings
    return np.minimum(strongest, gain * (state[0] - target) + ahead * state[1])


TANK = Plant(
    "plant-tank",
    "saformer/Tank-v0",
    horizon=200,
    levels=(0.0, 1.0),
    draw_day=_tank_day,
    advance=lambda level, inputs, action: np.clip(
        level + 0.05 * (inputs[0] - 0.3 * level - action), 0, 1
    ),
    reward=lambda level, inputs, action: 0.1 * (1 - ((level - 0.5) / 0.4) ** 2).clip(0),
    cost=lambda level, inputs, action: 0.2 * action + 0.8 * action**3,
    criterion="0.2 * action[0] + 0.8 * action[0] ** 3",
    settings={"target": (0.3, 1.0), "gain": (0.5, 4), "ahead": (0, 1), "strongest": (0.1, 1.0)},
    control=_tank_control,
    noise=0.05,
)

PLANTS = {plant.name: plant for plant in (ROOM, BATTERY, TANK)}
for _plant in PLANTS.values():
    gymnasium.register(
        _plant.identifier, "saformer.envs.plants:PlantEnv", kwargs={"name": _plant.name}
    )
