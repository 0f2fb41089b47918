"""Trajectories are checked as they come in; stores are whole or absent."""

import json
import os

import numpy as np
import pytest

from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory
from saformer.envs import allowance

BOX = EnvironmentSpec(action_low=(-1.0,), action_high=(1.0,), horizon=5)


def trajectory(steps: int = 3, **changes) -> Trajectory:
    columns = {
        "state": np.arange(2.0 * steps).reshape(steps, 2),
        "action": np.full((steps, 1), 0.5),
        "reward": np.ones(steps),
        "final_state": np.zeros(2),
        "terminated": True,
        "truncated": False,
    }
    return Trajectory.of(**{**columns, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"state": [[1.0, np.nan], [0, 0], [0, 0]]}, r"state holds 1 NaN or infinite values, the first at \(0, 1\)"),
        ({"reward": [0.0, np.inf, 0.0]}, "reward holds 1 NaN"),
        ({"action": np.zeros((2, 1))}, r"action has shape \(2, 1\), expected \(3, 1\)"),
        ({"reward": np.zeros(4)}, r"reward has shape \(4,\), expected \(3,\)"),
        ({"final_state": np.zeros(3)}, r"final_state has shape \(3,\)"),
        ({"state": np.zeros(3)}, "must be"),
    ],
)
def test_bad_trajectories_are_refused(changes, message):
    """Seen to fail when the finite check is dropped."""
    with pytest.raises(ValueError, match=message):
        trajectory(**changes)


def test_a_trajectory_needs_a_step():
    with pytest.raises(ValueError, match="at least one step"):
        trajectory(steps=0)


def test_an_empty_dataset_is_refused():
    with pytest.raises(ValueError, match="empty"):
        TrajectoryStore.of([], BOX)


def test_trajectories_must_agree():
    with pytest.raises(ValueError, match="trajectory 1 has 2 action columns, expected 1"):
        TrajectoryStore.of([trajectory(), trajectory(action=np.zeros((3, 2)))], BOX)
    with pytest.raises(ValueError, match="trajectory 1 has 1 state columns, expected 2"):
        TrajectoryStore.of([trajectory(), trajectory(state=np.zeros((3, 1)), final_state=np.zeros(1))], BOX)


def test_action_bounds_are_checked():
    with pytest.raises(ValueError, match="empty"):
        EnvironmentSpec(action_low=(1.0,), action_high=(1.0,), horizon=5)
    with pytest.raises(ValueError, match="1 lower and 2 upper"):
        EnvironmentSpec(action_low=(1.0,), action_high=(1.0, 2.0), horizon=5)


def test_what_is_saved_is_what_is_opened(tmp_path):
    store = allowance.dataset(episodes=3)
    opened = store.save(tmp_path / "store")
    assert len(opened) == 3
    assert opened.num_steps == 60
    assert opened.environment == store.environment
    assert opened.fingerprint == store.fingerprint
    for ours, theirs in zip(store, opened, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(vars(ours).values(), vars(theirs).values(), strict=True))
    assert isinstance(opened.columns["state"], np.memmap)


def test_fingerprint_sees_every_value():
    """Seen to fail when only the shapes are digested."""
    first, second = TrajectoryStore.of([trajectory()], BOX), TrajectoryStore.of([trajectory()], BOX)
    assert first.fingerprint == second.fingerprint
    second.columns["reward"][1] += 1e-6
    assert first.fingerprint != second.fingerprint


def test_stores_are_never_overwritten(tmp_path):
    store = TrajectoryStore.of([trajectory()], BOX)
    store.save(tmp_path / "store")
    with pytest.raises(FileExistsError, match="never overwritten"):
        store.save(tmp_path / "store")


def test_a_failed_save_leaves_nothing(tmp_path, monkeypatch):
    """A disk that fills up half-way. Seen to fail when the unfinished folder is not removed."""
    saved = []

    def save(path, values, allow_pickle):
        if len(saved) == 2:
            raise OSError(28, "No space left on device")
        saved.append(path)
        path.write_bytes(b"")

    monkeypatch.setattr(np, "save", save)
    with pytest.raises(OSError, match="No space"):
        TrajectoryStore.of([trajectory()], BOX).save(tmp_path / "store")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: (path / "manifest.json").unlink(), "not a trajectory store"),
        (lambda path: (path / "manifest.json").write_text("{"), "damaged"),
        (lambda path: (path / "reward.npy").write_bytes(b"\x93NUMPY"), "missing or damaged"),
        (lambda path: (path / "state.npy").unlink(), "missing or damaged"),
        (lambda path: np.save(path / "reward.npy", np.zeros(7)), "its manifest says"),
        (
            lambda path: (path / "manifest.json").write_text(
                json.dumps({**json.loads((path / "manifest.json").read_text()), "format": 99})
            ),
            "store format 99, this version reads 1",
        ),
    ],
)
def test_damaged_stores_are_refused(tmp_path, spoil, message):
    TrajectoryStore.of([trajectory()], BOX).save(tmp_path / "store")
    spoil(tmp_path / "store")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        TrajectoryStore.open(tmp_path / "store")
