"""A policy and a simulator of one's own become a store: `saformer data collect`, `saformer.collect`."""

import os
import signal
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import saformer
from saformer.cli.main import main
from saformer.criteria import code
from saformer.data.store import TrajectoryStore
from saformer.envs.costed import Costed

OWN = """
import gymnasium, numpy as np

class Plant(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float32)
    action_space = gymnasium.spaces.Box(0, 2, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.start = self.np_random.uniform()
        return np.array([0, self.start], np.float32), {}

    def step(self, action):
        self.steps += 1
        info = {"cost": 3 * float(action[0]), "mode": "auto", "flow": np.array([1.0, 2.0])}
        state = np.array([self.steps, self.start], np.float32)
        return state, 1.0, False, self.steps == 5, info

def steady(state):
    return [0.5]

class Varied:
    def __init__(self, rng):
        self.level = rng.uniform(0, 2)

    def __call__(self, state):
        return [self.level]

def two():
    return gymnasium.vector.SyncVectorEnv([Plant, Plant])
"""


class Compound(gymnasium.Env):
    """Observations by name; it never ends."""

    observation_space = gymnasium.spaces.Dict(
        {"speed": gymnasium.spaces.Box(-1, 1, (2,)), "gear": gymnasium.spaces.Discrete(3)}
    )
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, level: float = 0.0) -> None:
        self.level = level

    def observation(self) -> dict:
        return {"speed": np.full(2, self.level, np.float32), "gear": 1}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation(), {}

    def step(self, action):
        return self.observation(), 0.0, False, False, {}


def forward(observation) -> np.ndarray:
    return np.clip(observation["speed"][:1] + 5, -9, 9)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    return tmp_path


COLLECT = "data collect ./own.py:Plant --episodes 4 --out store --policy".split()  # noqa: SIM905


def test_episodes_become_a_store(here, capsys):
    """States, actions, rewards, ends, numbers of info, and info["cost"] as the criterion. Seen to
    fail when columns are not stored."""
    assert main([*COLLECT, "./own.py:Varied"]) == 0
    store = TrajectoryStore.open("store")
    first = store[0]
    assert first.state[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert first.final_state[0] == 5
    assert (first.truncated, first.terminated) == (True, False)
    assert store.criteria == ("cost",)
    assert store.column_names == ("cost", "flow"), "the word is no number"
    assert first.columns["cost"] == pytest.approx(3 * first.action[:, 0])
    assert len({float(part.action[0, 0]) for part in store}) == 4, "made anew for every episode"
    assert len({float(part.state[0, 1]) for part in store}) == 4, "other initial states"
    spec = store.environment
    assert (spec.action_low, spec.action_high, spec.horizon) == ((0.0,), (2.0,), 5)
    assert spec.identifier == f"{Path('own.py').resolve()}:Plant"
    assert "collected 4 trajectories, 20 steps" in capsys.readouterr().err


def test_a_seed_makes_the_same_episodes(here):
    """Seen to fail when the policy's generator is not seeded."""
    how = {"episodes": 3, "seed": 7}
    stores = [
        saformer.collect("./own.py:Plant", "./own.py:Varied", name, **how).store for name in "ab"
    ]
    other = saformer.collect("./own.py:Plant", "./own.py:Varied", "c", episodes=3, seed=8).store
    assert stores[0].fingerprint == stores[1].fingerprint != other.fingerprint


def test_what_was_collected_is_trained_on_and_judged(here, monkeypatch):
    """In the environment that was typed, which is remembered; or in one that is passed, wrapped,
    vectorised or as it stands. Seen to fail when the store does not remember, and for each of the
    three when only classes and functions are made."""
    assert main([*COLLECT[:3], "--episodes", "20", *COLLECT[5:], "./own.py:Varied"]) == 0
    monkeypatch.setattr(code, "_vouched", {})
    brief = "--agent cdt --updates 2 --batch-size 8 --width 16 --layers 1 --device cpu".split()  # noqa: SIM905
    assert main(["train", "store", *brief, "--out", "run"]) == 0
    trained = saformer.load("run", device="cpu", workers=0)
    how = {"limits": ["p50"], "episodes": 2}
    usual = trained.judge(**how)[0].rows
    make = code.load(code.typed("./own.py:Plant"), "environment")
    wrapped = gymnasium.wrappers.TimeLimit(make(), 5)
    vectors = gymnasium.vector.SyncVectorEnv([make, make])
    for environment in (wrapped, vectors, make(), "./own.py:two"):
        assert trained.judge(environment=environment, **how)[0].rows == usual
    with pytest.raises(ValueError, match="pass a function that makes one, with its wrappers"):
        trained.judge(environment=gymnasium.wrappers.vector.ClipReward(vectors, 0, 1), **how)


def test_observations_by_name_are_flattened_with_a_note(here):
    """The policy sees them as they are. Seen to fail when they are refused."""
    said: list[str] = []
    listener = saformer.Listener(say=said.append)
    how = {"episodes": 2, "horizon": 3, "criteria": ["energy"], "listener": listener}
    store = saformer.collect(partial(Compound, 0.25), forward, "store", **how).store
    assert store[0].state.tolist() == [[0, 1, 0, 0.25, 0.25]] * 3
    assert store[0].action.tolist() == [[1.0]] * 3, "brought within bounds"
    assert (store.environment.horizon, store.criteria) == (3, ("energy",))
    assert store.environment.identifier is None, "no other process can find a partial"
    text = "\n".join(said)
    assert "flattened to one vector, in this order: gear [3], speed [2]" in text
    assert "attach one later" in text
    with Costed(Compound(0.25), ()) as costed:
        assert costed.reset(seed=0)[0].tolist() == store[0].state[0].tolist()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["steady"], "policy 'steady' is no name of code"),
        (["./own.py:absent"], "is NoneType: a function of the observation"),
        (["./own.py:steady", "--episodes", "0"], "at least one episode is needed, got 0"),
        (["./own.py:steady", "--criteria", "torqe"], "torqe"),
        (["builtins:abs"], "the policy gave"),
    ],
)
def test_what_cannot_be_collected_is_said_in_a_line(here, more, message, capsys):
    """And nothing is left behind."""
    assert main([*COLLECT, *more]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert message in said
    assert "Traceback" not in said
    assert [path.name for path in Path().iterdir()] == ["own.py"]


def test_an_episode_that_never_ends_is_refused(here, monkeypatch):
    """Seen to fail: it went on for ever."""
    monkeypatch.setattr("saformer.envs.collect.ENDLESS", 50)
    with pytest.raises(ValueError, match="goes on after 50: say after how many steps"):
        saformer.collect(Compound, forward, "store", episodes=1)


class Stopping:
    """Presses Ctrl-C in the middle of the third episode."""

    count = 0

    def __init__(self, rng: np.random.Generator) -> None:
        Stopping.count += 1

    def __call__(self, state) -> list[float]:
        if Stopping.count == 3 and state[0] == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return [1.0]


def test_ctrl_c_keeps_whole_episodes(here, monkeypatch, capsys):
    """Seen to fail: nothing was left."""
    monkeypatch.setattr(Stopping, "count", 0)
    assert main([*COLLECT, f"{__name__}:Stopping"]) == 130
    assert len(TrajectoryStore.open("store")) == 2
    assert "stopped after 2 of 4 episodes" in capsys.readouterr().err
