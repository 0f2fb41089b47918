"""The language of cost expressions, against those who mean harm and those who mistype."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saformer.criteria import criterion
from saformer.criteria.expression import parse_expression
from tests.criteria.grammar import TWO_STEPS, examples

HOSTILE = [
    "__import__('os')",
    "__import__('os').system('true')",
    "__builtins__",
    "__debug__",
    "().__class__",
    "action.__class__",
    "action.__class__.__mro__",
    "action.tofile('x')",
    "action.sum.__self__",
    "action.sum",
    "action.dump('x')",
    "column('speed').tofile('x')",
    "getattr(action, 'sum')()",
    "open('x')",
    "exec('1')",
    "eval('1')",
    "print(1)",
    "globals()",
    "column(speed)",
    "column(b'speed')",
    "column('a', 'b')",
    "column(f'{speed}')",
    "column(name='speed')",
    "9**9**9",
    "10**10**10",
    "action**action",
    "speed**9",
    "speed**-8.5",
    "speed**(1+1)",
    "speed**--1",
    "2**True",
    "1e999",
    "1e13",
    "9" * 500,
    "1j",
    "None",
    "...",
    "'speed'",
    "b'speed'",
    "f'{action}'",
    "f'{action:{action}}'",
    "(lambda: 1)()",
    "lambda: 1",
    "[x for x in action]",
    "sum(x for x in action)",
    "{1: 2}",
    "{1}",
    "[1]",
    "(1, 2)",
    "(x := 1)",
    "*action",
    "sum(*action)",
    "sum(**action)",
    "sum(action, 1)",
    "sum(action, axis=0)",
    "sum()",
    "min()",
    "abs(1, 2)",
    "clip(speed, 1)",
    "action.sum(0)",
    "action.sum(axis=0)",
    "action.sum()()",
    "sum(action)(1)",
    "action[speed]",
    "action[0, 1]",
    "action[1.0]",
    "action[True]",
    "action['0']",
    "action[None]",
    "action[...]",
    "action[::0]",
    "action[0:speed]",
    "action[1e12]",
    "action @ action",
    "speed // 2",
    "speed << 2",
    "speed ^ 2",
    "+speed",
    "~speed",
    "speed & 1",
    "speed > 1 & reward > 2",
    "(speed > 1) & reward > 2",
    "speed is 1",
    "speed in action",
    "not",
    "import os",
    "speed; reward",
    "speed = 1",
    "yield 1",
    "await speed",
    "abs",
    "sum + 1",
    "torque(1)",
    "torque.sum",
    "torque[speed]",
    "__speed",
    "speed__",
    "\uff41ction.sum()",  # full-width a: Python reads it as "action"
    "\u0430ction.sum()",  # Cyrillic a
    "spe\u200bed",
    "speed\x00",
    "speed\n",
    "(speed\n+ 1)",
    "speed\ud800",
    "",
    "   ",
    "# nothing",
    "(" * 99 + "speed" + ")" * 99 + "(",
    "(" * 450 + "speed" + ")" * 450,
    "-" * 900 + "speed",
    "not " * 240 + "speed",
    "abs(" * 150 + "speed" + ")" * 150,
    "[" * 300,
    "speed" + "[0]" * 300,
    "+".join(["a"] * 300),
    "speed + " * 300 + "1",
    "s" * 2000,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:30]))
def test_what_is_not_in_the_language_is_refused(text):
    """Seen to fail when exponents are not bounded, when keywords or arguments of methods are
    ignored, when look-alikes pass, when the number of parts is not bounded, and when & takes
    numbers."""
    with pytest.raises(ValueError, match="is not understood"):
        parse_expression(text)


def test_refusals_teach():
    for text, message in [
        (
            "abs(action).sum() + aps(speed)",
            r"'aps' at character 21: did you mean abs\? The functions are abs, sqrt",
        ),
        ("1 + action.sum", r"'action.sum' at character 5: .* \.sum\(\) \.mean\(\)"),
        ("speed +", "invalid syntax, at character 8"),
        ("1 + sum", r"'sum' at character 5: it is a function: call it, or write column\('sum'\)"),
        ("speed**speed", "from -8 to 8"),
        ("speed = 3", "at character 7"),
        ("clip(speed, 1)", "clip takes 3 arguments, not 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            criterion(text)


TOKENS = (
    "action", "state", "speed", "column('infos/qpos')", "0", "1", "-", "2.5", "(", ")", "[", "]",
    ":", ",", ".sum()",
    ".max()", "abs", "max", "sum", "where", "above", "outside", "**", "2", "+", "*", "/", "%",
    "<", "==", "&", "|", "~",
    " and ", " or ", " not ", " if ", " else ", "True", " lambda ", "__import__", "'os'",
    ".__class__", "@", "=", ":=",
    " for ", " in ", "f'{action}'", "{", "}", "\\", "#", "`", " ",
)  # fmt: skip


@examples(1500)
@given(st.text(max_size=40) | st.lists(st.sampled_from(TOKENS), max_size=12).map("".join))
def test_any_text_is_a_cost_or_a_value_error(text):
    """And nothing warns. Seen to fail when division by zero is left to numpy."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            cost = criterion(text, trusted=False)(TWO_STEPS)
        except ValueError:
            return
    assert cost.shape == (2,)
    assert np.isfinite(cost).all()
