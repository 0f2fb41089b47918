"""The language of cost expressions: by hand, and against numpy."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saformer.criteria import Step, criterion
from saformer.criteria.expression import parse_expression
from tests.criteria.grammar import TWO_STEPS, by_numpy, examples, numbers, steps


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("abs(action).sum() + 0.1*(speed > 2)", 3.6, 0.25),
        ("hit", 1.0, 0.0),
        ("torque + 0.1*(speed > 2)", 3.6, 0.25),
        ("torque[1] + max(torque[0:2]) + energy", 9.25, 0.0625),
        ("7", 7.0, 7.0),
        ("action[1]**2", 4.0, 0.0),
        ("2**-1 + 4**0.5", 2.5, 2.5),
        ("-2**2 + 5", 1.0, 1.0),
        ("7 - 2*3 % 4", 5.0, 5.0),
        ("state[-1]", 2.0, 4.0),
        ("abs(action[0:2]).max()", 2.0, 0.0),
        ("abs(action[::2]).sum()", 1.5, 0.25),
        ("norm(column('infos/qpos'))", 5.0, 1.0),
        ("mean(abs(next_state - state))", 0.75, 3.5),
        ("above(speed, 2)", 1.0, 0.0),
        ("outside(state, -1, 2).sum()", 0.0, 2.0),
        ("clip(reward, 0, 15)", 10.0, 15.0),
        ("where(hit, 5, 0.5)", 5.0, 0.5),
        ("5 if speed > 2 else 0.5", 5.0, 0.5),
        ("-4 < state[0] < 0", 0.0, 1.0),
        ("(speed > 2) & (reward < 15)", 1.0, 0.0),
        ("~(speed > 2) | (reward < 5)", 0.0, 1.0),
        ("speed and hit", 1.0, 0.0),
        ("not hit or reward == 10", 1.0, 1.0),
        ("max(speed, 2, state[1])", 3.0, 4.0),
        ("(minimum(state, 0) + 3).min()", 3.0, 0.0),
        ("exp(0*reward) + sqrt(reward - 10)**2", 1.0, 11.0),
    ],
)
def test_by_hand(text, first, second):
    """Seen to fail when a sign is lost, and when a chained comparison ends at its first link."""
    found = criterion(text)(TWO_STEPS)
    assert found.dtype == np.float64
    assert found == pytest.approx([first, second])


@examples(300)
@given(numbers(), st.integers(0, 1000))
def test_online_and_offline_agree_with_numpy(pair, seed):
    """One step at a time, many steps, and steps in two axes. Seen to fail when vectors are added up
    over steps."""
    text, translation = pair
    expression = parse_expression(text)
    many = steps(seed, (2, 3))
    together = expression(many)
    assert together.shape == (2, 3)
    for index in np.ndindex(2, 3):
        one = at(many, index)
        alone = expression(one)
        assert alone.shape == ()
        assert np.allclose(
            [alone, together[index]], by_numpy(translation, one), rtol=1e-9, atol=1e-6
        ), text


@examples(100)
@given(numbers())
def test_what_an_expression_names_is_all_it_reads(pair):
    """Seen to fail when names are not noted. Evaluated with nothing else there, it gives the
    same."""
    expression = parse_expression(pair[0])
    whole = steps(0, (4,))
    parts = {
        name: getattr(whole, name) for name in expression.reads & {"state", "next_state", "reward"}
    }
    columns = {name: values for name, values in whole.columns.items() if name in expression.reads}
    assert np.array_equal(
        expression(Step(whole.action, **parts, columns=columns)), expression(whole), equal_nan=True
    )


def at(step: Step, index) -> Step:
    parts = {
        name: getattr(step, name)[index] for name in ("action", "state", "next_state", "reward")
    }
    return Step(**parts, columns={name: values[index] for name, values in step.columns.items()})


def test_division_by_zero_is_reported_without_a_warning():
    """Seen to fail when division by zero is left to numpy, which warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="NaN or infinite"):
            criterion("1 / (state[0] - 1)")(TWO_STEPS)


@pytest.mark.parametrize(
    "text", ["speed > 2", "speed != 2", "outside(speed, 0, 1)", "above(speed, 2)",
    "1 if speed else 0", "not speed",
             "speed and 1", "0 or speed", "where(speed > 2, 1, 0)", "max(speed, 0)",
             "clip(speed, 0, 1)",
             "0 < speed < 1"],
)  # fmt: skip
def test_what_is_not_known_does_not_pass_for_free(text):
    """Seen to fail when a comparison with NaN is quietly false."""
    broken = Step(action=np.zeros((2, 1)), columns={"speed": np.array([np.nan, 1.0])})
    with pytest.raises(ValueError, match="NaN or infinite"):
        criterion(text)(broken)


@pytest.mark.parametrize(
    "text",
    ["speed != 0 and 1/speed > 0", "speed == 0 or 1/speed > 0", "0 if speed == 0 else 0/speed"],
)
def test_what_is_not_asked_for_need_not_be_known(text):
    """As in Python, the other side of a decided "and" or "or" does not matter. Seen to fail when
    NaN always wins."""
    standing = Step(action=np.zeros((1, 1)), columns={"speed": np.array([0.0])})
    assert np.isfinite(criterion(text.replace("1/speed", "(0*1/speed)"))(standing)).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abs(action)", r"gives 3 values per step; add them up with \.sum\(\)"),
        ("(action * state).sum()", "'action \\* state' combines vectors of 2 and 3 entries"),
        ("(action[0:1] * state).sum()", "combines vectors of 1 and 2 entries"),
        ("action[3]", r"'action\[3\]' is out of range: there are 3 entries"),
        ("action[-4]", "there are 3 entries"),
        ("sum(action[0:4])", "there are 3 entries"),
        ("sum(action[2:1])", "picks none of the 3 entries"),
        ("torque[3]", "criterion 'torque\\[3\\]': .* there are 3 entries"),
        ("reward.sum()", "one number per step"),
        ("sum(3)", "one number per step"),
        ("speed[0]", "one number per step"),
        ("image.sum()", r"'image' has shape \(2, 4, 4\), expected \(2,\) or \(2, 'k'\)"),
        ("word", "'word' holds <U1"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit_are_refused(text, message):
    """Seen to fail when a vector's first entry is taken for the cost, when a vector of one goes
    with any other, and when slices may reach beyond the end."""
    columns = {**TWO_STEPS.columns, "image": np.zeros((2, 4, 4)), "word": np.array(["a", "b"])}
    step = Step(TWO_STEPS.action, TWO_STEPS.state, reward=TWO_STEPS.reward, columns=columns)
    with pytest.raises(ValueError, match=message):
        criterion(text)(step)
