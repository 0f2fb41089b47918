"""Criteria by name and by text, and what they promise."""

import sys

import numpy as np
import pytest

from saformer.criteria import (
    CostCriterion,
    Step,
    above,
    criterion,
    energy,
    joint_torque,
    logged,
    outside_box,
    torque,
)
from tests.criteria.grammar import TWO_STEPS

OWN = """
import numpy as np
from saformer.criteria import CostCriterion, above

def jolt(step):
    return np.abs(step.next_state - step.state).sum(-1)

def fast(step):
    return step.columns["speed"] > 2

fast.reads = {"speed"}
made = above("speed", 2)
number = 3

def odd(step):
    raise ValueError("no idea")

odd.reads = "speed"
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of one's own."""
    (tmp_path / "own_costs.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "own_costs"
    sys.modules.pop("own_costs", None)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (torque, [3.5, 0.25]),
        (joint_torque(1), [2.0, 0.0]),
        (energy, [5.25, 0.0625]),
        (above("speed", 2.0), [1.0, 0.0]),
        (above(" state[0] + 4", np.float32(2)), [3.0, 0.0]),
        (above("reward", -1), [11.0, 21.0]),
        (outside_box({"state[0]": (-1, 1)}), [0.0, 1.0]),
        (outside_box({"state[0]": (-1, 1), "speed": (0, 2)}), [1.0, 1.0]),
        (outside_box({"state[0]": (-5, 1), "speed": (0, 4)}), [0.0, 0.0]),
        (logged("speed"), [3.0, 1.0]),
        (logged("infos/cost"), [0.5, 1.5]),
        (logged("torque"), [7.0, 8.0]),
        (logged("sum"), [9.0, 9.5]),
        (logged("if"), [2.0, 2.5]),
        (logged('odd "name"\n'), [4.0, 4.5]),
        (logged("vitesse_\u00e9lev\u00e9e"), [6.0, 6.5]),
    ],
    ids=lambda given: getattr(given, "name", ""),
)
def test_names_give_the_same_criterion_back(made, expected):
    """Runs keep the name alone. Seen to fail when a logged column may be called like a
    criterion."""
    odd = {"infos/cost": [0.5, 1.5], "torque": [7.0, 8.0], "sum": [9.0, 9.5], "if": [2.0, 2.5]}
    odd |= {'odd "name"\n': [4.0, 4.5], "vitesse_\u00e9lev\u00e9e": [6.0, 6.5]}
    columns = {**TWO_STEPS.columns, **{name: np.array(values) for name, values in odd.items()}}
    step = Step(TWO_STEPS.action, TWO_STEPS.state, reward=TWO_STEPS.reward, columns=columns)
    assert made(step).tolist() == expected
    again = criterion(made.name, trusted=False)
    assert again == made
    assert again(step).tolist() == expected


def test_a_criterion_declares_what_it_reads():
    """Seen to fail when every expression is said to read the action alone."""
    assert torque.reads_action_alone
    assert criterion("energy").reads_action_alone
    assert criterion("torque[1]").reads_action_alone
    speeding = criterion("abs(action).sum() + 0.1*(speed > 2) + column('infos/x') * state[0]")
    assert speeding.reads == {"action", "speed", "infos/x", "state"}
    assert not speeding.reads_action_alone
    assert speeding.missing(["speed", "other"]) == {"infos/x"}
    assert speeding.missing({"speed", "infos/x"}) == set()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("above(sped, 2)", "reads 'sped', which the data does not offer; did you mean 'speed'"),
        (
            "reward",
            "reads 'reward', which the data does not offer; On offer: action, infos/x, speed, "
            "state",
        ),
        ("next_state[0] + heat", "reads 'heat', 'next_state'"),
        ("infos/x", r"reads 'infos', 'x', .*in an expression: `infos/x`"),
    ],
)
def test_what_is_missing_is_named(text, message):
    """Seen to fail when it is left to Python to find out."""
    step = Step(
        np.zeros((2, 1)), np.zeros((2, 1)), columns={"speed": np.zeros(2), "infos/x": np.zeros(2)}
    )
    with pytest.raises(ValueError, match=message):
        criterion(text)(step)


def test_a_cost_is_one_number_per_step():
    """Seen to fail when the shape is not checked."""
    step = Step(np.zeros((4, 2, 3)))
    assert torque(step).shape == (4, 2)
    for given in (np.zeros(4), np.zeros((4, 2, 3)), 1.0):
        with pytest.raises(ValueError, match=r"expected \(4, 2\): one cost per step"):
            CostCriterion("odd", lambda step, given=given: given)(step)


def test_a_function_of_ones_own(own):
    """Seen to fail when its module stays unknown."""
    path = list(sys.path)
    jolt = criterion(f" {own}:jolt ")
    assert jolt.name == f"{own}:jolt"
    assert jolt.reads == {"state", "action", "next_state", "reward"}
    assert jolt(TWO_STEPS).tolist() == [1.5, 7.0]
    fast = criterion(f"{own}:fast")
    assert fast.reads == {"speed"}
    assert fast(TWO_STEPS).tolist() == [1.0, 0.0]
    made = criterion(f"{own}:made")
    assert made.name == f"{own}:made"
    assert made.reads == {"speed"}
    assert made(TWO_STEPS).tolist() == [1.0, 0.0]
    assert sys.path == path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("own_costs:nothing", "there is nothing of that name"),
        ("own_costs:number", "there is int of that name; a function Step -> cost is expected"),
        ("own_costs:odd", "reads is 'speed'; a set of names is expected"),
        ("no.such.module:cost", "'no.such.module' cannot be imported: No module named 'no'"),
    ],
)
@pytest.mark.usefixtures("own")
def test_a_function_that_is_none_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        criterion(text)


def test_a_file_from_elsewhere_runs_no_code(own):
    """Seen to fail when trust is not asked for."""
    with pytest.raises(
        ValueError, match=r"would run Python code .* type --criteria own_costs:jolt"
    ):
        criterion(f"{own}:jolt", trusted=False)
    assert own not in sys.modules


def test_constructors_refuse_what_would_mean_something_else():
    """Seen to fail when a quantity need not be an expression by itself."""
    for make, message in [
        (lambda: above("speed, 1) + above(reward", 2.0), "is not understood"),
        (lambda: above("speed", np.inf), "must be finite"),
        (lambda: outside_box({}), "the box is empty"),
        (lambda: outside_box({"speed": (2, 1)}), "lower one first"),
        (lambda: outside_box({"speed": (np.nan, 1)}), "lower one first"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()


def test_several_texts_give_several_constraints():
    step = Step(np.array([0.5, -2.0]), columns={"speed": np.array(3.0)})
    assert [
        float(criterion(text)(step)) for text in ("torque", "speed > 2", "above(speed, 1)")
    ] == [2.5, 1.0, 2.0]
