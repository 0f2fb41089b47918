"""Trajectories are checked as they come in; what they must agree on."""

import numpy as np
import pytest

from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory

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
        (
            {"state": [[1.0, np.nan], [0, 0], [0, 0]]},
            r"state holds 1 NaN or infinite values, the first at \(0, 1\)",
        ),
        ({"reward": [0.0, np.inf, 0.0]}, "reward holds 1 NaN"),
        ({"action": np.zeros((2, 1))}, r"action has shape \(2, 1\), expected \(3, 1\)"),
        ({"reward": np.zeros(4)}, r"reward has shape \(4,\), expected \(3,\)"),
        ({"final_state": np.zeros(3)}, r"final_state has shape \(3,\)"),
        ({"state": np.zeros(3)}, "must be"),
        (
            {"state": np.zeros((3, 0)), "final_state": []},
            r"state has shape \(3, 0\): at least one column is needed",
        ),
        ({"action": np.zeros((3, 0))}, r"action has shape \(3, 0\): at least one column"),
        ({"columns": {"speed": np.zeros((3, 0))}}, r"column 'speed' has shape \(3, 0\), expected"),
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
    with pytest.raises(
        ValueError, match=r"trajectory 1 has float32 \[2\] action columns, expected float32 \[1\]"
    ):
        TrajectoryStore.of([trajectory(), trajectory(action=np.zeros((3, 2)))], BOX)
    with pytest.raises(
        ValueError, match=r"trajectory 1 has float32 \[1\] state columns, expected float32 \[2\]"
    ):
        TrajectoryStore.of(
            [trajectory(), trajectory(state=np.zeros((3, 1)), final_state=np.zeros(1))], BOX
        )


def test_action_bounds_are_checked():
    with pytest.raises(ValueError, match="empty"):
        EnvironmentSpec(action_low=(1.0,), action_high=(1.0,), horizon=5)
    for low in (-np.inf, np.nan):
        with pytest.raises(ValueError, match="action bounds must be finite, got"):
            EnvironmentSpec(action_low=(low,), action_high=(1.0,), horizon=5)
    with pytest.raises(ValueError, match="1 lower and 2 upper"):
        EnvironmentSpec(action_low=(1.0,), action_high=(1.0, 2.0), horizon=5)


def test_named_columns_are_checked():
    """Seen to fail when a column may be called state: criteria would read the wrong one."""
    kept = trajectory(columns={"speed": [1, 2, 3], "position": np.zeros((3, 2), np.float32)})
    assert kept.columns["speed"].dtype == np.float64
    assert kept.columns["position"].dtype == np.float32
    for columns, message in (
        ({"state": np.zeros(3)}, "may not be called 'state'"),
        ({"speed": np.zeros(4)}, r"column 'speed' has shape \(4,\), expected \(3,\)"),
        ({"name": ["a", "b", "c"]}, "column 'name' holds <U1, expected numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            trajectory(columns=columns)
    with pytest.raises(ValueError, match="trajectory 1 has no speed columns"):
        TrajectoryStore.of([trajectory(columns={"speed": np.zeros(3)}), trajectory()], BOX)


def test_fingerprint_sees_every_value():
    """Seen to fail when only the shapes are digested."""
    first = TrajectoryStore.of([trajectory()], BOX)
    assert first.fingerprint == TrajectoryStore.of([trajectory()], BOX).fingerprint
    changes = (
        {"reward": [1, 1, 1.000001]},
        {"final_state": [0, 1e-6]},
        {"truncated": True},
        {"columns": {"speed": np.zeros(3)}},
    )
    for change in changes:
        assert TrajectoryStore.of([trajectory(**change)], BOX).fingerprint != first.fingerprint
