"""The words of cost expressions: operators, functions, names that are taken, and how large a text
may grow."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Callable

import numpy as np

from saformer.criteria import values
from saformer.criteria.step import Doubles

MAX_CHARACTERS, MAX_NODES = 1000, 200
MAX_NUMBER, MAX_EXPONENT = 1e12, 8

ARITHMETIC: dict[type[ast.AST], Callable[..., Doubles]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Mod: np.mod,
}
LOGIC: dict[type[ast.AST], Callable[..., Doubles]] = {
    ast.And: values.both,
    ast.BitAnd: values.both,
    ast.Or: values.either,
    ast.BitOr: values.either,
    ast.Not: values.negation,
    ast.Invert: values.negation,
}
COMPARISONS: dict[type[ast.AST], Callable[..., Doubles]] = {
    ast.Lt: values.comparison(np.less),
    ast.LtE: values.comparison(np.less_equal),
    ast.Gt: values.comparison(np.greater),
    ast.GtE: values.comparison(np.greater_equal),
    ast.Eq: values.comparison(np.equal),
    ast.NotEq: values.comparison(np.not_equal),
}
FUNCTIONS: dict[str, tuple[int, Callable[..., Doubles]]] = {
    "abs": (1, np.abs),
    "sqrt": (1, np.sqrt),
    "exp": (1, np.exp),
    "minimum": (2, np.minimum),
    "maximum": (2, np.maximum),
    "above": (2, values.excess),
    "clip": (3, values.clipped),
    "outside": (3, values.beyond),
    "where": (3, values.choice),
}
"""Functions of each entry: how many arguments, and what they do."""
REDUCTIONS: dict[str, Callable[..., Doubles]] = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "norm": values.norm,
}
"""Functions of a vector's entries together."""
METHODS = ("sum", "mean", "max", "min")
METHODS_AS_WRITTEN = " ".join(f".{name}()" for name in METHODS)
CALLABLE = (*FUNCTIONS, *REDUCTIONS, "column")
SHORTHANDS = {"torque": "abs(action).sum()", "energy": "(action**2).sum()"}
"""Names that stand for expressions."""
JOINT_TORQUES = "abs(action)"
"""What torque[0] picks from."""


def spelt(column: str) -> str:
    """A column's name as an expression: as it is, where that reads as a name of its own."""
    taken = column in CALLABLE or column in SHORTHANDS or keyword.iskeyword(column)
    plain = column.isidentifier() and column.isascii() and not taken and not is_hidden(column)
    return column if plain else f"column({column!r})"


def is_hidden(name: str) -> bool:
    """Whether Python keeps names like this to itself."""
    return name.startswith("__") or name.endswith("__")
