"""DSRL's environments under today's packages: made, reset, stepped, repeated, rolled out."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from saformer.data.sources.dsrl import PREFIX, dsrl_tasks, find_dsrl
from saformer.data.store import EnvironmentSpec
from saformer.envs.collect import collect_episodes
from saformer.envs.costed import make_by_id
from saformer.envs.dsrl import registry
from saformer.envs.dsrl.behaviours import EPISODES
from saformer.envs.lanes import Maker
from saformer.envs.tasks import find_task, make_data

PACKAGES = {"bullet": ("pybullet", "bullet_safety_gym")}
PACKAGES |= dict.fromkeys(("navigation", "velocity"), ("mujoco", "xmltodict", "safety_gymnasium"))
TASKS = [task for task in dsrl_tasks().values() if task.environment]
SIX = ("BallRun", "CarRun", "BallCircle", "PointGoal1", "CarCircle1", "HopperVelocity")
WIDTHS = {"BallRun": (7, 2), "CarRun": (7, 2), "BallCircle": (8, 2), "PointGoal1": (60, 2)}
WIDTHS |= {"CarCircle1": (40, 2), "HopperVelocity": (11, 3)}


def require(task):
    for package in PACKAGES[task.suite]:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: `saformer doctor` says how to get it")


def episode(environment, seed: int, steps: int) -> list[tuple[float, float]]:
    """Rewards and costs of random actions, the same for each seed of the environment."""
    state, _ = environment.reset(seed=seed)
    assert environment.observation_space.shape == state.shape
    bounds, outcomes = environment.action_space, []
    actions = np.random.default_rng(0).uniform(bounds.low, bounds.high, (steps, *bounds.shape))
    for action in actions.astype(np.float32):
        state, reward, terminated, truncated, info = environment.step(action)
        assert np.isfinite(state).all()
        outcomes.append((float(state.sum()), reward, float(info["cost"])))
        if terminated or truncated:
            break
    return outcomes


def check(task, steps: int) -> None:
    with make_by_id(f"dsrl:{task.name}") as environment:
        assert environment.spec.max_episode_steps == task.horizon
        first, other, again = (episode(environment, seed, steps) for seed in (3, 5, 3))
    with make_by_id(f"dsrl:{task.name}") as environment:
        alone = episode(environment, 3, steps)
    assert first == again == alone, "an episode depends on its seed, not on those before it"
    assert first != other


def resident_mb() -> float:
    """Memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_closed_bullet_lanes_give_their_memory_back():
    """A lane of CarRun takes 90 MB: eighty of one rollout would stay beside those of the next."""
    task = find_dsrl(f"{PREFIX}OfflineCarRun-v0")
    require(task)
    lanes = [make_by_id(f"dsrl:{task.name}") for _ in range(4)]
    for lane in lanes:
        lane.reset(seed=0)
    before = resident_mb()
    for lane in lanes:
        lane.close()
    assert before - resident_mb() > 4 * 50


@pytest.mark.parametrize("brief", SIX)
def test_six_environments(brief):
    """Bounds of -1 and 1, and episodes that repeat from their seeds.

    Seen to fail when cars are not built anew, when numpy's generator is not seeded, and when the
    cost of Safety-Gymnasium stays outside info.
    """
    task = next(task for task in TASKS if task.brief == brief)
    require(task)
    check(task, steps=30)
    with make_by_id(f"dsrl:{task.name}") as environment:
        widths = environment.observation_space.shape + environment.action_space.shape
        assert widths == WIDTHS[brief]
        assert environment.action_space.low.tolist() == [-1] * WIDTHS[brief][1]


@pytest.mark.long
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.brief)
def test_every_environment(task):
    """All 29, for longer."""
    require(task)
    check(task, steps=200)


def test_there_are_29_of_38():
    """By suite, with the limits of the protocol."""
    assert len(dsrl_tasks()) == 38
    suites = [task.suite for task in TASKS]
    assert [suites.count(suite) for suite in ("bullet", "navigation", "velocity")] == [8, 16, 5]
    assert all(task.name in gymnasium.registry for task in TASKS)
    ball, goal = dsrl_tasks()["OfflineBallRun-v0"], dsrl_tasks()["OfflinePointGoal1Gymnasium-v0"]
    assert (ball.limits, ball.tight_limit) == ((10, 20, 40), 5)
    assert (goal.limits, goal.tight_limit) == ((20, 40, 80), 10)
    assert ball.normalised_return(26.339754104614258) == 0
    assert ball.normalised_return(1327.445556640625) == 1
    assert ball.normalised_return(676.8926553726196) == pytest.approx(0.5)


def test_the_global_generator_is_left_alone():
    """Seen to fail when its state is not put back after a reset."""
    require(dsrl_tasks()["OfflineBallRun-v0"])
    with make_by_id("dsrl:OfflineBallRun-v0") as environment:
        np.random.seed(7)
        expected = np.random.uniform()
        np.random.seed(7)
        environment.reset(seed=1)
        assert np.random.uniform() == expected


def test_nothing_is_imported_until_an_environment_is_made():
    """Seen to fail when the registry imports pybullet."""
    names = "pybullet bullet_safety_gym safety_gymnasium mujoco"
    code = f"import sys, saformer.envs.costed; assert not {set(names.split())} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_missing_is_said(monkeypatch):
    """Seen to fail when an ImportError from far below comes through."""
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    for name in ("pybullet", "bullet_safety_gym"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ValueError, match=r"needs pybullet.*(saformer doctor|Python 3.11)"):
        make_by_id("dsrl:OfflineBallRun-v0")
    monkeypatch.setattr(sys, "version_info", (3, 12, 0))
    with pytest.raises(ValueError, match=r"wheels for Python 3.11 on Linux alone"):
        make_by_id("dsrl:OfflineBallRun-v0")


def test_episodes_can_be_collected_and_made_elsewhere(tmp_path):
    """By its name: costs of info become the criterion, and a worker can make it from text.

    Seen to fail when the environment is registered by a function, which no text names.
    """
    require(dsrl_tasks()["OfflineBallRun-v0"])

    def forward(state):
        return np.array([1.0, 0.0])

    store = collect_episodes("dsrl:OfflineBallRun-v0", forward, tmp_path / "s", episodes=2).store
    assert store.criteria == ("cost",)
    assert store.lengths.tolist() == [100, 100]
    assert store.steps["cost"].sum() > 0, "a ball at full speed is too fast"
    spec = EnvironmentSpec((-1.0, -1.0), (1.0, 1.0), 100, "dsrl:OfflineBallRun-v0")
    with Maker.read(Maker(spec, ()).text())() as environment:
        assert environment.reset(seed=0)[0].shape == (7,)


def test_data_is_made_on_first_use(tmp_path):
    """Careful and reckless episodes, the same from a seed, none of which may end early.

    Seen to fail when the stretch of recklessness is drawn from another generator.
    """
    task = dsrl_tasks()["OfflineBallRun-v0"]
    require(task)
    named = find_task("dsrl:OfflineBallRun-v0")
    assert (named.steps, named.may_end) == (94_000, False)
    stores = [make_data(named, tmp_path / name, steps=3000, seed=1) for name in "ab"]
    assert stores[0].fingerprint == stores[1].fingerprint
    cost = stores[0].steps["cost"].reshape(30, 100).sum(1)
    assert cost.min() == 0, "some are careful"
    assert cost.max() > 2 * max(task.limits) * 0.9, "some are reckless"


@pytest.mark.long
@pytest.mark.parametrize("brief", EPISODES)
def test_data_covers_the_limits(brief, tmp_path):
    """Every limit of the protocol and the tight one have examples within and beyond."""
    task = next(task for task in TASKS if task.brief == brief)
    require(task)
    named = find_task(f"dsrl:{task.name}")
    store = make_data(named, tmp_path / "s", steps=30 * task.horizon, seed=0)
    ends = np.cumsum(store.lengths)[:-1]
    cost = np.array([part.sum() for part in np.split(store.steps["cost"], ends)])
    assert 0.15 < (cost <= task.tight_limit).mean() < 0.9
    assert (cost > task.limits[-1]).mean() > 0.05


def test_tasks_without_behaviours_say_where_their_data_is():
    """Seen to fail with a KeyError."""
    with pytest.raises(ValueError, match="dsrl-hdf5:OfflineAntRun-v0"):
        find_task("dsrl:OfflineAntRun-v0")
