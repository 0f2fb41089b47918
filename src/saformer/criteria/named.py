"""Criteria by name, and by the text that a user writes."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import numpy as np

from saformer.criteria import code
from saformer.criteria.expression import column_expression, parse_expression
from saformer.criteria.step import PARTS, Array, CostCriterion, Step


def _sum_of_magnitudes(step: Step) -> Array:
    return np.asarray(np.abs(step.action).sum(-1))


torque = CostCriterion("torque", _sum_of_magnitudes)
"""The paper's cost, sum_i |a_i|: what the motors wear."""


def _expression(text: str) -> CostCriterion:
    """The cost that an expression gives, as in "abs(action).sum() + 0.1*(speed > 2)"."""
    text = text.strip()
    parsed = parse_expression(text)
    return CostCriterion(text, parsed, parsed.reads)


energy = _expression("energy")  # sum_i a_i^2: what the motors draw


def joint_torque(joint: int) -> CostCriterion:
    """The torque of one joint alone, |a_i|: one constraint per joint."""
    return _expression(f"torque[{joint}]")


def above(quantity: str, bound: float) -> CostCriterion:
    """By how much a quantity exceeds a bound: above("speed", 2.0), above("abs(state[3])", 0.5)."""
    return _expression(f"above({_checked(quantity)}, {_number(bound)})")


def outside_box(box: Mapping[str, tuple[float, float]]) -> CostCriterion:
    """1 for each step with any quantity outside its bounds: outside_box({"speed": (0, 2)})."""
    if not box:
        raise ValueError('the box is empty; name quantities and bounds: {"state[0]": (-1, 1)}')
    sides = []
    for name, (low, high) in box.items():
        if not low <= high:
            raise ValueError(f"bounds of {name!r} are {(low, high)}; give the lower one first")
        sides.append(f"outside({_checked(name)}, {_number(low)}, {_number(high)})")
    return _expression(" or ".join(sides))


def logged(column: str) -> CostCriterion:
    """A cost that was recorded with the data, or that the environment reports: logged("cost")."""
    return _expression(column_expression(column))


def criterion(
    text: str | Callable[[Step], Array], *, trusted: bool = True, columns: Collection[str] = ()
) -> CostCriterion:
    """The criterion that a text describes.

    That is "torque", "torque[0]", "energy", the name of a logged column, an expression over the
    step and its columns, or "module:function" or "./file.py:function" for a Python function
    Step -> cost; or such a function itself. Functions are code: read texts that were found in a
    file with `trusted=False`, which refuses those that nobody typed. One of these `columns` goes by
    its name whatever that holds, as in "energy cost €"; elsewhere it stands in backticks.
    """
    if isinstance(text, CostCriterion):
        return text
    if trusted or not isinstance(text, str):
        text = code.typed(text)
    text = text.strip()
    if text in columns and not text.isidentifier():
        return logged(text)
    if text == torque.name:
        return torque
    return _of_function(text) if code.is_code(text) else _expression(text)


def _of_function(text: str) -> CostCriterion:
    try:
        function = code.load(text, "criteria")
    except ValueError as error:
        raise ValueError(f"criterion {error}") from error.__cause__
    if isinstance(function, CostCriterion):
        return replace(function, name=text)
    if not callable(function):
        kind = "nothing" if function is None else type(function).__name__
        problem = f"there is {kind} of that name; a function Step -> cost is expected"
        raise ValueError(f"criterion {text!r}: {problem}")
    reads = getattr(function, "reads", PARTS)
    if isinstance(reads, str) or not all(isinstance(part, str) for part in reads):
        expected = 'a set of names is expected, as in {"state"}'
        raise ValueError(f"criterion {text!r}: reads is {reads!r}; {expected}")
    return CostCriterion(text, function, frozenset(reads))


def _checked(quantity: str) -> str:
    """The text, if it is an expression by itself: else it could close a constructor's brackets."""
    return parse_expression(quantity.strip()).text


def _number(bound: float) -> str:
    if not math.isfinite(bound):
        raise ValueError(f"a bound must be finite, got {bound}")
    return repr(float(bound))
