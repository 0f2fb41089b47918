"""Bundles of behaviours, packaged and of the user's making, and the datasets that are built from
them."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from saformer.envs import allowance, behaviours
from saformer.envs.bundle import ENVIRONMENTS, Behaviour, bundle_of, open_bundle, save_bundle
from saformer.envs.tasks import find_task, make_data


def pendulum_arrays(**changes):
    """Three random snapshots of a small policy for Pendulum, whose actions lie in [-2, 2]."""
    rng = np.random.default_rng(0)
    shapes = {"w0": (3, 8), "b0": (8,), "w1": (8, 6), "b1": (6,), "w2": (6, 2), "b2": (2,)}
    arrays = {
        name: rng.standard_normal((3, *shape)).astype(np.float16) for name, shape in shapes.items()
    }
    arrays |= {
        "steps": np.array([10, 20, 30]),
        "replay": np.array([0, 1]),
        "medium": np.array(1),
        "expert": np.array(2),
    }
    arrays |= {
        "environment": np.array("Pendulum-v1"),
        "action_low": np.array([-2.0]),
        "action_high": np.array([2.0]),
    }
    return {name: values for name, values in (arrays | changes).items() if values is not None}


@pytest.fixture
def pendulum(tmp_path) -> Path:
    """A bundle that a user made."""
    save_bundle(pendulum_arrays(), tmp_path / "pendulum.npz")
    return tmp_path / "pendulum.npz"


@pytest.mark.parametrize("robot", ["hopper", "walker2d", "halfcheetah"])
def test_bundled_behaviours_reproduce_their_environment(robot):
    """A stored trajectory, replayed, gives the stored rewards. Seen to fail when states are shifted
    by one."""
    store = behaviours.build(robot, "medium-expert", steps=300, seed=3, workers=1)
    assert len(store) >= 2
    trajectory = store[0]
    assert trajectory.terminated != trajectory.truncated
    low, high = store.environment.action_low, store.environment.action_high
    assert ((trajectory.action >= low) & (trajectory.action <= high)).all()
    environment = gymnasium.make(ENVIRONMENTS[robot])
    positions = environment.unwrapped
    environment.reset(seed=0)
    # hidden coordinates (the horizontal position) do not matter to the reward, which counts
    # velocity
    qpos = np.concatenate([[0.0], trajectory.state[0, : positions.model.nq - 1]])
    positions.set_state(qpos, trajectory.state[0, positions.model.nq - 1 :])
    for step in range(3):
        state, reward, *_ = environment.step(trajectory.action[step])
        assert reward == pytest.approx(trajectory.reward[step], abs=5e-2)
        assert np.allclose(state, trajectory.state[step + 1], atol=5e-2)


# robot: the first action of the medium episode, its second, and the first of the expert's, for
# steps=20, seed=5
AS_FIRST_BUILT = {
    "hopper": (
        [-0.964128, -0.990536, 0.652335],
        [-0.870909, -0.570006, 0.735741],
        [0.080328, -0.939587, 0.920015],
    ),
    "walker2d": (
        [-0.990089, 0.224361, -0.709543, 0.236380, -0.581396, 0.839293],
        [-0.658436, 0.968526, 0.911264, 0.975769, 0.565554, 0.787955],
        [-0.876742, 0.287568, 0.085884, -0.374033, -0.879472, 0.996054],
    ),
    "halfcheetah": (
        [-0.628100, 0.402063, -0.966927, -0.764324, -0.883877, -0.299666],
        [0.359776, 0.287315, -0.919942, -0.198656, -0.619729, -0.963266],
        [-0.463592, -0.836025, -0.886276, -0.202568, 0.400416, 0.194978],
    ),
}


EFFORT = {"hopper-effort": 16, "walker2d-effort": 18, "halfcheetah-effort": 18}
"""Snapshots."""


@pytest.mark.parametrize("robot", EFFORT)
def test_effort_tasks_mix_every_snapshot(robot):
    """One episode of each. Seen to fail when the task takes the medium snapshot."""
    bundle = open_bundle(robot)
    assert bundle.snapshots("medium-replay") == list(range(EFFORT[robot]))
    assert bundle.environment == ENVIRONMENTS[robot.removesuffix("-effort")]
    assert find_task(robot).steps == 400_000
    first = [bundle.behaviour(k).gaussian(np.zeros(bundle.weights[0].shape[1]))[0] for k in (0, -1)]
    assert not np.allclose(*first, atol=0.1)


def test_an_effort_task_is_built_from_its_own_bundle(tmp_path):
    """Seen to fail when it takes the robot's torque bundle."""
    store = make_data(find_task("hopper-effort"), tmp_path / "store", steps=16, workers=1)
    assert len(store) == 16
    assert store.provenance["bundle"] == open_bundle("hopper-effort").fingerprint
    assert store.criteria == ("torque",)


@pytest.mark.parametrize("robot", AS_FIRST_BUILT)
def test_packaged_robots_act_as_they_always_did(robot):
    """Values of the first release; a digest would differ between processors. Seen to fail when the
    noise is halved."""
    medium, expert = behaviours.build(robot, "medium-expert", steps=20, seed=5, workers=1)
    acted = np.stack([medium.action[0], medium.action[1], expert.action[0]])
    assert np.allclose(acted, AS_FIRST_BUILT[robot], atol=1e-4)


def test_unit_bounds_leave_the_squashed_action_to_the_bit():
    """Seen to fail when actions are scaled from their lower bound up."""
    ones = np.ones(10_000, np.float32)
    drawn = np.random.default_rng(0).normal(0, 3, 10_000).astype(np.float32)
    assert np.array_equal(Behaviour((), (), -ones, ones).squash(drawn), np.tanh(drawn))


def test_actions_fill_the_bounds_of_their_environment():
    """By hand: tanh(0) is the middle, tanh(+-20) the ends. Seen to fail when the middle is
    forgotten."""
    low, high = np.array([-2.0, 0.1], np.float32), np.array([2.0, 0.4], np.float32)
    behaviour = Behaviour((), (), low, high)
    assert behaviour.squash(np.zeros(2, np.float32)) == pytest.approx([0.0, 0.25])
    assert np.array_equal(behaviour.squash(np.full(2, -20, np.float32)), low)
    assert np.array_equal(behaviour.squash(np.full(2, 20, np.float32)), high)
    assert behaviour.squash(np.full(2, np.arctanh(0.5), np.float32)) == pytest.approx([1.0, 0.325])


def test_deviations_are_clipped():
    """Seen to fail when they are not: exp(50) is beyond float32 use."""
    layers = [np.zeros(shape, np.float32) for shape in ((2, 3), (3, 3), (3, 4))]
    biases = (
        np.zeros(3, np.float32),
        np.zeros(3, np.float32),
        np.array([0.5, -0.5, 50, -50], np.float32),
    )
    mean, log_deviation = Behaviour(tuple(layers), biases, -np.ones(2), np.ones(2)).gaussian(
        np.ones(2)
    )
    assert mean.tolist() == [0.5, -0.5]
    assert log_deviation.tolist() == [2.0, -10.0]


def test_a_build_does_not_depend_on_the_number_of_workers():
    """Seen to fail when workers share a random stream."""
    alone = behaviours.build("hopper", "medium-replay", steps=2400, seed=0, workers=1)
    together = behaviours.build("hopper", "medium-replay", steps=2400, seed=0, workers=2)
    assert alone.fingerprint == together.fingerprint
    assert (
        behaviours.build("hopper", "medium-replay", steps=2400, seed=1, workers=2).fingerprint
        != alone.fingerprint
    )


@pytest.mark.parametrize(
    "script_text",
    [
        "from saformer.envs import behaviours\n"
        'behaviours.build("hopper", "medium-replay", steps=2400, workers=2)',
        'import saformer\nsaformer.train("hopper-medium-replay", data_steps=2400)',
    ],
)
def test_a_script_without_a_main_guard_hears_what_to_do_and_nothing_else(tmp_path, script_text):
    """Seen to fail when workers complain too, when the pool's own words come through, and (it hung)
    when workers wait for the data that their parent makes."""
    script = tmp_path / "script.py"
    script.write_text(f"{script_text}\n")
    ended = subprocess.run(
        [sys.executable, script],
        env=os.environ | {"SAFORMER_HOME": str(tmp_path / "home")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.count("Traceback") == 1  # the script's own
    assert 'under `if __name__ == "__main__":`' in ended.stderr.splitlines()[-1]


def test_every_snapshot_of_a_mixture_owes_the_same_number_of_steps():
    chunks = behaviours._plan(open_bundle("hopper"), "medium-replay", 30_000, 0)
    owed: dict[int, int] = {}
    for chunk in chunks:
        owed[chunk.seed[1]] = owed.get(chunk.seed[1], 0) + chunk.steps
    assert set(owed.values()) == {2500}
    assert len(owed) == 12
    assert open_bundle("hopper").snapshots("medium") == [11]
    with pytest.raises(
        ValueError, match="unknown mixture 'expert'; there are medium, medium-replay, medium-expert"
    ):
        open_bundle("hopper").snapshots("expert")


def test_a_users_bundle_is_a_source_of_data(pendulum, monkeypatch):
    """Other processes find it too, and actions are the environment's. Seen to fail when actions
    stay in [-1, 1]."""
    monkeypatch.chdir(pendulum.parent)
    heard = []
    store = behaviours.build(
        pendulum.name,
        "medium-expert",
        steps=300,
        workers=2,
        progress=lambda *counts: heard.append(counts),
    )
    assert (
        store.fingerprint
        == behaviours.build(pendulum, "medium-expert", steps=300, workers=1).fingerprint
    )
    assert store.environment.identifier == "Pendulum-v1"
    assert store.environment.horizon == 200
    assert store.lengths.tolist() == [200, 200], "episodes run to their end"
    assert store.provenance["source"] == "bundled behaviours of pendulum.npz, medium-expert"
    assert store.provenance["bundle"] == open_bundle(pendulum).fingerprint
    assert heard == [(150, 300), (300, 300)]
    assert 1 < np.abs(store.steps["action"]).max() <= 2


def test_unknown_robots_are_refused():
    with pytest.raises(
        ValueError, match=r"unknown robot 'ant'; there are hopper, .* halfcheetah-effort, or"
    ):
        behaviours.build("ant", "medium", steps=10)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"w1": None, "expert": None}, "it has no w1, expert"),
        ({"environment": None}, "it has no environment"),
        ({"w1": np.zeros((3, 7, 6))}, r"w1 has shape \(3, 7, 6\), expected \(3, 8, 6\)"),
        ({"b2": np.zeros((2, 2))}, r"b2 has shape \(2, 2\), expected \(3, 2\)"),
        (
            {"w0": np.zeros((3, 8))},
            r"w0 is float64 \(3, 8\), expected floats \[snapshots, inputs, outputs\]",
        ),
        ({"w0": np.zeros((3, 3, 8), int)}, "w0 is int64"),
        (
            {"w2": np.zeros((3, 6, 3)), "b2": np.zeros((3, 3))},
            "w2 has 3 outputs, expected a mean and",
        ),
        ({"b1": np.full((3, 6), np.nan)}, "b1 holds NaN"),
        ({"steps": np.array([1, 2])}, "expected 3 integers"),
        ({"replay": np.array([0, 3])}, r"replay names snapshot 3, but there are 3 \(0 to 2\)"),
        ({"replay": np.array([], int)}, "replay is int64"),
        ({"medium": np.array(-1)}, "medium names snapshot -1"),
        ({"expert": np.array([2])}, r"expert is int64 \(1,\), expected one index"),
        ({"environment": np.array(5)}, "expected a Gymnasium id"),
        ({"action_low": None}, "expected both or neither"),
        ({"action_low": np.array([-2.0, -2.0])}, "action_low is float64"),
        ({"action_high": np.array([np.inf])}, "finite bounds"),
        ({"action_high": np.array([-2.0])}, "between finite bounds"),
    ],
)
def test_bundles_that_do_not_hang_together_are_refused(tmp_path, changes, complaint):
    """Seen to fail when indices beyond the snapshots pass."""
    np.savez(tmp_path / "odd.npz", **pendulum_arrays(**changes))
    with pytest.raises(ValueError, match=complaint):
        open_bundle(tmp_path / "odd.npz")
    with pytest.raises(ValueError, match=complaint):
        save_bundle(pendulum_arrays(**changes), tmp_path / "refused.npz")
    assert not (tmp_path / "refused.npz").exists()


class Trap:
    """Must never be unpickled."""

    def __reduce__(self):
        return pytest.fail, ("unpickled",)


def test_nothing_is_unpickled(tmp_path):
    """Seen to fail when objects may be loaded."""
    np.savez(tmp_path / "trap.npz", **pendulum_arrays(environment=np.array(Trap(), dtype=object)))
    (tmp_path / "plain.npz").write_bytes(pickle.dumps(Trap()))
    for name in ("trap.npz", "plain.npz"):
        with pytest.raises(ValueError, match="is not a bundle or is damaged"):
            open_bundle(tmp_path / name)


def test_damaged_files_are_refused(pendulum):
    """Seen to fail when the archive's own error comes through."""
    whole = pendulum.read_bytes()
    at = whole.index(b"w1.npy") + 60
    for damaged in (
        b"",
        whole[: len(whole) // 2],
        whole[:at] + bytes(byte ^ 255 for byte in whole[at : at + 8]) + whole[at + 8 :],
    ):
        pendulum.write_bytes(damaged)
        with pytest.raises(ValueError, match="is not a bundle or is damaged"):
            open_bundle(pendulum)
    with pytest.raises(FileNotFoundError, match="there is no bundle at"):
        open_bundle(pendulum.with_name("absent.npz"))


def test_bundles_are_never_overwritten_nor_written_by_halves(pendulum, monkeypatch):
    """Seen to fail when an existing file is replaced."""
    with pytest.raises(FileExistsError, match="never overwritten"):
        save_bundle(pendulum_arrays(), pendulum)
    with pytest.raises(ValueError, match=r"must end in .npz"):
        save_bundle(pendulum_arrays(), pendulum.with_suffix(".zip"))

    def disk_full(file, **arrays):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez_compressed", disk_full)
    with pytest.raises(OSError, match="no space left"):
        save_bundle(pendulum_arrays(), pendulum.with_name("other.npz"))
    assert list(pendulum.parent.iterdir()) == [pendulum]


def test_episodes_that_may_never_end_are_refused(tmp_path):
    """Allowance is registered without max_episode_steps. Seen to fail when that is not asked."""
    arrays = pendulum_arrays(
        environment=np.array(allowance.IDENTIFIER), action_low=None, action_high=None
    )
    save_bundle(arrays, tmp_path / "endless.npz")
    with pytest.raises(ValueError, match="has no max_episode_steps: its episodes may never end"):
        behaviours.build(tmp_path / "endless.npz", "medium", steps=10, workers=1)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"environment": np.array("Nowhere-v1")}, "environment 'Nowhere-v1' cannot be made"),
        (
            {"environment": np.array("absent_module:Arm-v0")},
            "type --environment absent_module:Arm-v0",
        ),
        (
            {"environment": np.array("CartPole-v1")},
            "actions of 'CartPole-v1' are Discrete",
        ),
        (
            {"environment": np.array("MountainCarContinuous-v0")},
            "reads 3 observations, MountainCarContinuous-v0 gives 2",
        ),
        (
            {"action_low": None, "action_high": None},
            r"has action_low \[-1.0\], Pendulum-v1 has \[-2.0\]",
        ),
    ],
)
def test_bundles_that_do_not_fit_their_environment_are_refused(tmp_path, changes, complaint):
    """Seen to fail when bounds are not compared: actions would be those of another machine."""
    save_bundle(pendulum_arrays(**changes), tmp_path / "odd.npz")
    with pytest.raises(ValueError, match=complaint):
        behaviours.build(tmp_path / "odd.npz", "medium", steps=10, workers=1)


def test_snapshots_differ_and_come_as_packed():
    """Seen to fail when every snapshot is the first."""
    arrays = pendulum_arrays()
    bundle = bundle_of(arrays, "here")
    state = np.array([0.5, -0.5, 2.0])
    for snapshot in range(3):
        hidden = state
        for layer in range(3):
            hidden = (
                hidden @ arrays[f"w{layer}"][snapshot].astype(float) + arrays[f"b{layer}"][snapshot]
            )
            hidden = np.maximum(hidden, 0) if layer < 2 else hidden
        mean, _ = bundle.behaviour(snapshot).gaussian(state)
        assert mean == pytest.approx(hidden[:1], rel=1e-4)
