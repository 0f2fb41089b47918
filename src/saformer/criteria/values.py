"""The values of cost expressions: a number or a vector per step. Truth values count as 0 and 1.

What cannot be known is NaN, also as a truth value: a comparison with NaN is not quietly false, so
that a broken sensor never passes for a step without cost.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from saformer.criteria.step import PARTS, Array, Doubles, Step


@dataclass(frozen=True)
class Value:
    """Numbers of each step."""

    array: Array  # [..., 1] for one number per step, [..., size] for a vector; a constant is [1]
    size: int | None = None  # entries of the vector; None for one number


def of_step(step: Step, name: str) -> Value:
    """A part or column of the step: a vector if it has an axis more than the step."""
    array = np.asarray(getattr(step, name) if name in PARTS else step.columns[name])
    leading = step.action.shape[:-1]
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name!r} holds {array.dtype}, costs can only be computed from numbers")
    if array.shape == leading:
        return Value(array[..., None])
    if array.shape[:-1] == leading and array.ndim > len(leading):
        return Value(array, array.shape[-1])
    shapes = f"{(*leading,)} or {(*leading, 'k')}: a number or a vector per step"
    raise ValueError(f"{name!r} has shape {array.shape}, expected {shapes}")


def elementwise(function: Callable[..., Doubles], values: list[Value], text: str) -> Value:
    """Apply a function of numbers to every entry; numbers go with each entry of a vector."""
    sizes = {value.size for value in values if value.size is not None}
    if len(sizes) > 1:
        counts = " and ".join(map(str, sorted(sizes)))
        raise ValueError(f"{text!r} combines vectors of {counts} entries")
    arrays = [np.asarray(value.array, dtype=np.float64) for value in values]
    return Value(function(*arrays), sizes.pop() if sizes else None)


def over_entries(function: Callable[..., Doubles], value: Value, text: str) -> Value:
    """Reduce each step's vector to a number."""
    if value.size is None:
        raise ValueError(f"{text!r} needs a vector, but it is given one number per step")
    return Value(function(np.asarray(value.array, dtype=np.float64), axis=-1, keepdims=True))


def pick(value: Value, index: int | slice, text: str) -> Value:
    """An entry of each step's vector, or some of them."""
    if value.size is None:
        raise ValueError(f"{text!r} picks from a vector, but it is given one number per step")
    bounds = [index] if isinstance(index, int) else [index.start, index.stop]
    highest = value.size - 1 if isinstance(index, int) else value.size
    if any(bound is not None and not -value.size <= bound <= highest for bound in bounds):
        raise ValueError(f"{text!r} is out of range: there are {value.size} entries from 0 on")
    if isinstance(index, int):
        return Value(value.array[..., index, None])
    picked = value.array[..., index]
    if picked.shape[-1] == 0:
        raise ValueError(f"{text!r} picks none of the {value.size} entries")
    return Value(picked, picked.shape[-1])


def truth(x: Doubles) -> Doubles:
    """1 where x is not 0, NaN where it is not known."""
    return np.where(np.isnan(x), np.nan, x != 0)


def comparison(holds: Callable[[Doubles, Doubles], Array]) -> Callable[[Doubles, Doubles], Doubles]:
    """A comparison that gives 0, 1, or NaN where either side is NaN."""
    return lambda x, y: np.where(np.isnan(x) | np.isnan(y), np.nan, holds(x, y))


def both(x: Doubles, y: Doubles) -> Doubles:
    """x and y; false as soon as one of them is, whatever the other."""
    x, y = truth(x), truth(y)
    return np.where((x == 0) | (y == 0), 0.0, x * y)


def either(x: Doubles, y: Doubles) -> Doubles:
    """x or y; true as soon as one of them is, whatever the other."""
    x, y = truth(x), truth(y)
    return np.where((x == 1) | (y == 1), 1.0, x + y)


def negation(x: Doubles) -> Doubles:
    return 1 - truth(x)


def choice(condition: Doubles, x: Doubles, y: Doubles) -> Doubles:
    """x where the condition holds, else y."""
    condition = truth(condition)
    return np.where(np.isnan(condition), np.nan, np.where(condition == 1, x, y))


def product_of_finite(x: Doubles, y: Doubles) -> Doubles:
    """x times y, where NaN is a number that is not known: 0 times it is 0."""
    return np.where((x == 0) | (y == 0), 0.0, x * y)


def excess(x: Doubles, bound: Doubles) -> Doubles:
    """By how much x lies above the bound."""
    return np.maximum(x - bound, 0.0)


def beyond(x: Doubles, low: Doubles, high: Doubles) -> Doubles:
    """1 where x lies below low or above high."""
    return either(comparison(np.less)(x, low), comparison(np.greater)(x, high))


FUNCTIONS: dict[str, tuple[int, Callable[..., Doubles]]] = {
    "abs": (1, np.abs),
    "sqrt": (1, np.sqrt),
    "exp": (1, np.exp),
    "minimum": (2, np.minimum),
    "maximum": (2, np.maximum),
    "above": (2, excess),
    "clip": (3, np.clip),
    "outside": (3, beyond),
    "where": (3, choice),
}
"""Functions of each entry: how many arguments they take, and what they do."""
REDUCTIONS: dict[str, Callable[..., Doubles]] = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "norm": np.linalg.norm,
}
"""Functions of a vector's entries together."""
