"""Three plants: physics and money by hand, logs, the environments, and the best courses."""

from dataclasses import replace

import numpy as np
import pytest

from saformer.criteria import criterion
from saformer.data.relabel import relabelled
from saformer.envs.costed import make
from saformer.envs.plants import BATTERY, PLANTS, ROOM, TANK, foresight
from saformer.envs.tasks import PLANT_TASKS, find_task, load_data

ALL = pytest.mark.parametrize("plant", PLANTS.values(), ids=lambda plant: plant.name)


def law(function, level, inputs, action) -> float:
    return float(function(np.float64(level), np.array(inputs, dtype=float), np.float64(action)))


def test_the_room_warms_and_cools():
    """A quarter of an hour at 20 degrees, 8 outdoors, costs 0.25 K; the heater gives 0.7 K. Seen to
    fail when the heater works for an hour."""
    assert law(ROOM.advance, 20, [8, 0.3, 1], 0) == pytest.approx(19.75)
    assert law(ROOM.advance, 20, [8, 0.3, 1], 1) == pytest.approx(20.45)


def test_the_room_earns_comfort_and_costs_money():
    """3 kW for a quarter of an hour at 0.40 a kWh are 0.30. Seen to fail when an empty room earns
    as much as one with somebody in it."""
    assert law(ROOM.cost, 20, [8, 0.4, 1], 1) == pytest.approx(0.3)
    assert law(ROOM.reward, 21, [8, 0.4, 1], 0) == pytest.approx(0.25)
    assert law(ROOM.reward, 21, [8, 0.4, 0], 0) == pytest.approx(0.025)
    assert law(ROOM.reward, 16, [8, 0.4, 1], 0) == pytest.approx(0.125)
    assert law(ROOM.reward, 26, [8, 0.4, 1], 0) == pytest.approx(0.125)
    assert law(ROOM.reward, 5, [8, 0.4, 1], 0) == 0


def test_the_battery_keeps_its_energy():
    """3 kW for five minutes are 0.25 kWh, 0.225 of which are stored. Seen to fail when the charger
    loses nothing."""
    carbon, load = 0.4, 1.2
    assert law(BATTERY.advance, 0.5, [carbon, load], 0) == pytest.approx(0.5 - 0.1 / 7.5)
    stored = law(BATTERY.advance, 0.5, [carbon, 0], 1) - 0.5
    assert 7.5 * stored == pytest.approx(0.9 * 0.25)
    assert law(BATTERY.reward, 0.5, [carbon, load], 0) == pytest.approx(0.1)
    assert law(BATTERY.cost, 0.5, [carbon, load], 1) == pytest.approx(0.25 * 0.4)


def test_the_battery_is_never_overdrawn_or_overcharged():
    """Seen to fail when a full battery goes on charging, and when an empty one goes on serving."""
    assert law(BATTERY.reward, 0.001, [0.4, 1.2], 0) == pytest.approx(0.0075)
    assert law(BATTERY.advance, 0.001, [0.4, 1.2], 0) == 0
    assert law(BATTERY.cost, 1, [0.4, 0.0], 1) == 0
    assert law(BATTERY.advance, 1, [0.4, 0.0], 1) == 1


def test_the_tank_fills_and_is_pumped():
    """Seen to fail when the outlet takes as much from a low tank as from a full one."""
    assert law(TANK.advance, 0.5, [0.4], 0) == pytest.approx(0.5 + 0.05 * 0.25)
    assert law(TANK.advance, 0.5, [0.4], 0.25) == pytest.approx(0.5)
    assert law(TANK.advance, 1, [2.0], 0) == 1
    assert law(TANK.advance, 0, [0.0], 1) == 0


def test_slow_pumping_is_cheap():
    """Half the speed for twice as long costs 0.4, not 1. Seen to fail when power is linear."""
    assert law(TANK.cost, 0.5, [0.4], 1) == pytest.approx(1.0)
    assert 2 * law(TANK.cost, 0.5, [0.4], 0.5) == pytest.approx(0.4)
    assert law(TANK.reward, 0.5, [0.4], 0) == pytest.approx(0.1)
    assert law(TANK.reward, 0.7, [0.4], 0) == pytest.approx(0.075)
    assert law(TANK.reward, 1, [0.4], 0) == 0


@ALL
def test_logs_are_what_the_environment_does(plant):
    """Recorded actions, repeated in the environment from the same day, give the recorded rewards
    and costs. Seen to fail when inputs are a step late, and when the criterion is another price."""
    settings = plant.controllers(1, np.random.default_rng(3))
    environment = make(plant.logs(episodes=1).environment, [criterion(plant.criterion)])
    state, _ = environment.reset(seed=1_000_003)
    steps = plant._run(settings, [plant.day(1_000_003)], np.random.default_rng(0))
    for time, (recorded, action, reward, cost, following) in enumerate(steps, 1):
        assert np.array_equal(state, recorded[:, 0])
        state, earned, terminated, truncated, info = environment.step(action)
        assert np.allclose(state, following[:, 0], atol=1e-6)
        assert earned == pytest.approx(reward[0], abs=1e-9)
        assert info["cost"][0] == pytest.approx(cost[0], abs=1e-5)
        assert not terminated
        assert truncated == (time == plant.horizon)


@ALL
def test_logs_run_to_the_end_of_the_day_within_bounds(plant):
    """Seen to fail when days end by `terminated`, and when actions are not brought within bounds."""
    store = plant.logs(episodes=20, seed=1)
    assert len(store) == 20
    assert set(store.lengths) == {plant.horizon}
    assert store.criteria == (plant.criterion,)
    assert store.environment.identifier == plant.identifier
    actions = store.gather("action")
    assert actions.min() >= 0
    assert actions.max() <= 1
    assert store.episodes["truncated"].all()
    assert not store.episodes["terminated"].any()


@ALL
def test_what_a_controller_switches_off_is_off(plant):
    """Seen to fail when noise is added to every action: a trickle that nobody wants costs."""
    settings = plant.controllers(20, np.random.default_rng(0))
    days = [plant.day(seed) for seed in range(20)]
    steps = plant._run(settings, days, np.random.default_rng(0))
    acted = [action[plant.control(settings, state) <= 0] for state, action, *_ in steps]
    assert sum(map(len, acted)) > 100
    assert not np.concatenate(acted).any()


@ALL
def test_a_seed_always_makes_the_same_logs(plant):
    assert plant.logs(episodes=3).fingerprint == plant.logs(episodes=3).fingerprint
    assert plant.logs(episodes=3).fingerprint != plant.logs(episodes=3, seed=1).fingerprint


@ALL
def test_controllers_can_be_tried_on_other_days(plant):
    """Each on every day; costs differ from controller to controller and from day to day. Seen to
    fail when every day is the first one."""
    plant = replace(plant, noise=0.0)
    settings = plant.controllers(4, np.random.default_rng(0))
    returns, costs = plant.replay(settings, [plant.day(seed) for seed in range(3)])
    assert returns.shape == costs.shape == (4, 3)
    (alone,), (cost,) = plant.replay(settings[:, 1:2], [plant.day(2)])
    assert returns[1, 2] == pytest.approx(alone[0])
    assert costs[1, 2] == pytest.approx(cost[0])
    assert len(np.unique(returns.round(6))) == len(np.unique(costs.round(6))) == 12


@ALL
def test_doing_nothing_costs_nothing(plant):
    """Seen to fail when a heater has a standing charge."""
    environment = make(plant.logs(episodes=1).environment, [criterion(plant.criterion)])
    environment.reset(seed=5)
    spent = [environment.step(np.zeros(1))[4]["cost"][0] for _ in range(plant.horizon)]
    assert spent == [0.0] * plant.horizon


@ALL
def test_foresight_keeps_its_limit_and_beats_every_controller(plant):
    """On the same day within the same cost. Seen to fail when the budget is left out of the dynamic
    program (limits pass), and when its courses ignore what is to come (controllers earn more)."""
    day = plant.day(1_000_000)
    returns, costs = plant.replay(plant.controllers(30, np.random.default_rng(0)), [day])
    limits = np.percentile(costs, [10, 50, 90])
    best, spent = foresight(plant, day, limits)
    assert (spent <= limits + 1e-9).all()
    assert (np.diff(best) >= 0).all()
    for limit, most in zip(limits, best, strict=True):
        assert most >= 0.99 * returns[costs <= limit].max()
    assert best[0] > foresight(plant, day, [0.0])[0][0]


@pytest.mark.parametrize("name", PLANT_TASKS)
def test_plants_are_tasks(name, tmp_path, monkeypatch):
    """Seen to fail when a task's size is in episodes."""
    monkeypatch.setenv("SAFORMER_HOME", str(tmp_path))
    task, plant = find_task(name), PLANTS[name]
    assert task.steps == 600 * plant.horizon
    store = load_data(task, steps=5 * plant.horizon)
    assert len(store) == 5
    assert relabelled(store, (), 1.0).criteria[0].name == plant.criterion
