"""The same criteria online: what an environment tells, and what it does not."""

import gymnasium
import numpy as np
import pytest

from saformer.criteria import Step, criterion
from saformer.data.store import EnvironmentSpec
from saformer.envs.costed import Costed, make

IDENTIFIER = "saformer-tests/Lamp-v0"


class Lamp(gymnasium.Env):
    """Counts its steps; tells numbers, other things, and a cost of its own, always in the same
    dictionary."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self) -> None:
        self._info = {"word": "hello", "nothing": None, "nested": {"x": 1.0}}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._time = 0
        return np.array([0.1, 0.0]), self._info

    def step(self, action):
        self._time += 1
        self._info |= {"lit": self._time > 1, "time": self._time, "place": np.array([3.0, 4.0])}
        self._info.setdefault("cost", 0.25)
        return (
            np.array([0.1, float(self._time)]),
            float(self._time),
            self._time == 3,
            False,
            self._info,
        )


gymnasium.register(IDENTIFIER, entry_point=f"{__name__}:Lamp")


def lamp(*texts: str) -> Costed:
    spec = EnvironmentSpec(action_low=(-1.0,), action_high=(1.0,), horizon=3, identifier=IDENTIFIER)
    environment = make(spec, [criterion(text) for text in texts])
    environment.reset(seed=0)
    return environment


def test_criteria_read_info_and_the_step():
    """Seen to fail when info is not passed on."""
    environment = lamp("lit", "time + norm(place)", "torque", "state[1]", "next_state[1]", "reward")
    costs = [environment.step(np.array([-5.0]))[4]["cost"].tolist() for _ in range(2)]
    assert costs == [[0.0, 6.0, 1.0, 0.0, 1.0, 1.0], [1.0, 7.0, 1.0, 1.0, 2.0, 2.0]]


def test_the_environments_own_cost_can_be_read():
    """Seen to fail when our costs are written into the environment's own dictionary, to be read as
    its next cost."""
    environment = lamp("cost", "cost + 1")
    for _ in range(3):
        assert environment.step(np.array([0.0]))[4]["cost"].tolist() == [0.25, 1.25]


def test_criteria_see_what_a_trajectory_would_keep():
    """A tenth as float32 is more than a tenth. Seen to fail when states are costed in double
    precision."""
    assert lamp("state[0] > 0.1").step(np.array([0.0]))[4]["cost"].tolist() == [1.0]


@pytest.mark.parametrize("name", ["word", "nothing", "nested", "tme"])
def test_what_the_environment_does_not_offer_is_named(name):
    with pytest.raises(
        ValueError,
        match=rf"criterion '{name} > 2' reads '{name}', which environment '{IDENTIFIER}', by its "
        r"info, does not offer; "
        r".*On offer: action, cost, lit, next_state, place, reward, state, time$",
    ):
        lamp(f"{name} > 2").step(np.array([0.0]))


class Pictures(Lamp):
    observation_space = gymnasium.spaces.Box(0, 255, (4, 4), np.uint8)


class Buttons(Lamp):
    action_space = gymnasium.spaces.Discrete(3)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            Pictures,
            r"observations of 'Pictures' are Box\(0, 255, \(4, 4\), uint8\), .*FlattenObservation",
        ),
        (Buttons, r"actions of 'Buttons' are Discrete\(3\), .* continuous"),
    ],
)
def test_spaces_that_are_no_vectors_are_refused(environment, message):
    """Seen to fail when any Box will do."""
    with pytest.raises(ValueError, match=message):
        Costed(environment(), [criterion("torque")])


def test_hopper_costs_the_same_online_and_offline():
    """Seen to fail when info is not passed on."""
    pytest.importorskip("mujoco")
    spec = EnvironmentSpec(
        action_low=(-1.0,) * 3, action_high=(1.0,) * 3, horizon=1000, identifier="Hopper-v5"
    )
    criteria = [
        criterion("above(x_velocity, -0.1)"),
        criterion("energy + 0.5*(next_state[0] > 1.24)"),
    ]
    environment = make(spec, criteria)
    state, _ = environment.reset(seed=3)
    rng = np.random.default_rng(0)
    recorded, online = [], []
    for _ in range(15):
        action = rng.uniform(-1, 1, 3).astype(np.float32)
        next_state, reward, _, _, info = environment.step(action)
        recorded.append((state, action, next_state, reward, info["x_velocity"]))
        online.append(info["cost"])
        state = next_state
    state, action, next_state, reward, velocity = (
        np.array(values) for values in zip(*recorded, strict=True)
    )
    kept = [np.float32(values) for values in (action, state, next_state, reward)]
    offline = np.stack(
        [cost(Step(*kept, columns={"x_velocity": velocity})) for cost in criteria], axis=-1
    )
    assert np.array_equal(online, offline)
    assert (offline.max(0) > 0).all()
    assert (offline[:, 0] == 0).any()
    mistyped = make(spec, [criterion("above(x_velocty, 1.0)")])
    mistyped.reset(seed=0)
    with pytest.raises(ValueError, match="did you mean 'x_velocity'"):
        mistyped.step(np.zeros(3))
