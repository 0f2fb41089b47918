"""Cost expressions such as "abs(action).sum() + 0.1*(speed > 2)": a small part of Python's syntax.

The text is parsed to a tree, every node of which must be on the list of what is allowed, and
becomes a closure over numpy functions. It is never run as Python, so a text from anywhere can at
worst be refused.
"""

from __future__ import annotations

import ast
import difflib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from saformer.criteria import values
from saformer.criteria.language import (
    ARITHMETIC,
    CALLABLE,
    COMPARISONS,
    FUNCTIONS,
    JOINT_TORQUES,
    LOGIC,
    MAX_EXPONENT,
    MAX_NUMBER,
    METHODS,
    METHODS_AS_WRITTEN,
    REDUCTIONS,
    SHORTHANDS,
    is_hidden,
)
from saformer.criteria.source import Source
from saformer.criteria.step import Doubles, Step
from saformer.criteria.values import Value

Evaluate = Callable[[Step], Value]


@dataclass(frozen=True)
class Expression:
    """A parsed expression: Step -> cost [...]."""

    text: str
    reads: frozenset[str]
    """the parts and columns it names"""
    evaluate: Evaluate = field(compare=False, repr=False)

    def __call__(self, step: Step) -> Doubles:
        """One number per step; NaN or infinite where the arithmetic gives that."""
        with np.errstate(all="ignore"):
            value = self.evaluate(step)
        if value.size is not None:
            raise ValueError(f"it gives {value.size} values per step; add them up with .sum()")
        return np.array(
            np.broadcast_to(value.array[..., 0], step.action.shape[:-1]), dtype=np.float64
        )


def parse(text: str) -> Expression:
    """Read an expression; ValueError says what was not understood, where, and what could stand
    there."""
    source = Source(text)
    try:
        evaluate = _compile(source.tree(), source)
    except RecursionError:
        raise source.refusal("it is nested too deeply") from None
    return Expression(text, frozenset(source.reads), evaluate)


def _compile(node: ast.expr, source: Source) -> Evaluate:
    build = _BUILDERS.get(type(node))
    if build is None:
        kind = (
            f"after a dot come {METHODS_AS_WRITTEN}"
            if isinstance(node, ast.Attribute)
            else type(node).__name__
        )
        raise source.refusal(f"this is not part of the language: {kind}", node)
    return build(node, source)


def _apply(
    function: Callable[..., Doubles], operands: list[ast.expr], whole: ast.expr, source: Source
) -> Evaluate:
    evaluates, text = [_compile(operand, source) for operand in operands], source.part(whole)
    return lambda step: values.elementwise(
        function, [evaluate(step) for evaluate in evaluates], text
    )


def _number(node: ast.Constant, source: Source) -> Evaluate:
    if not isinstance(node.value, bool | int | float):
        raise source.refusal(
            "only numbers and True or False are constants; text belongs into column(...)", node
        )
    if not abs(node.value) <= MAX_NUMBER:
        raise source.refusal(f"numbers go up to {MAX_NUMBER:g}", node)
    number = values.constant(node.value)
    return lambda step: number


def _name(node: ast.Name, source: Source) -> Evaluate:
    name = node.id
    if name in SHORTHANDS:
        return _written_out(SHORTHANDS[name], source)
    if name in CALLABLE:
        raise source.refusal(
            f"it is a function: call it, or write column({name!r}) for a column of that name", node
        )
    if is_hidden(name) or not source.part(node).isascii():
        raise source.refusal("names are made of plain letters, digits and inner underscores", node)
    return _read(name, source)


def _written_out(text: str, source: Source) -> Evaluate:
    expression = parse(text)
    source.reads |= expression.reads
    return expression.evaluate


def _read(name: str, source: Source) -> Evaluate:
    source.reads.add(name)
    return lambda step: values.of_step(step, name)


def _binary(node: ast.BinOp, source: Source) -> Evaluate:
    if isinstance(node.op, ast.Pow):
        return _power(node, source)
    if type(node.op) in LOGIC:
        _require_truth([node.left, node.right], source)
        return _apply(LOGIC[type(node.op)], [node.left, node.right], node, source)
    if type(node.op) not in ARITHMETIC:
        raise source.refusal("the operators are + - * / % ** and, between truth values, & |", node)
    return _apply(ARITHMETIC[type(node.op)], [node.left, node.right], node, source)


def _power(node: ast.BinOp, source: Source) -> Evaluate:
    exponent = _literal(node.right)
    if exponent is None or not abs(exponent) <= MAX_EXPONENT:
        raise source.refusal(
            f"an exponent is a number from -{MAX_EXPONENT} to {MAX_EXPONENT}", node.right
        )
    return _apply(lambda base: np.power(base, float(exponent)), [node.left], node, source)


def _unary(node: ast.UnaryOp, source: Source) -> Evaluate:
    if isinstance(node.op, ast.USub):
        return _apply(np.negative, [node.operand], node, source)
    if isinstance(node.op, ast.Invert):
        _require_truth([node.operand], source)
    if type(node.op) not in LOGIC:
        raise source.refusal("the signs are - and, before truth values, not and ~", node)
    return _apply(LOGIC[type(node.op)], [node.operand], node, source)


def _require_truth(nodes: list[ast.expr], source: Source) -> None:
    """& | ~ bind tighter than comparisons: "a > 1 & b > 2" would mean something that nobody
    meant."""
    for node in nodes:
        if not _is_truth(node):
            raise source.refusal(
                "& | ~ go with comparisons in brackets, as in (a > 1) & (b > 2)", node
            )


def _is_truth(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp | ast.BinOp):
        return type(node.op) in LOGIC
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "outside"
    return isinstance(node, ast.Compare | ast.BoolOp) or (
        isinstance(node, ast.Constant) and isinstance(node.value, bool)
    )


def _logic(node: ast.BoolOp, source: Source) -> Evaluate:
    function = LOGIC[type(node.op)]
    return _apply(lambda *operands: functools.reduce(function, operands), node.values, node, source)


def _comparison(node: ast.Compare, source: Source) -> Evaluate:
    if any(type(operator) not in COMPARISONS for operator in node.ops):
        raise source.refusal("comparisons are < <= > >= == !=", node)
    hold = [COMPARISONS[type(operator)] for operator in node.ops]

    def chained(*operands: Doubles) -> Doubles:
        links = [holds(x, y) for holds, x, y in zip(hold, operands, operands[1:], strict=False)]
        return functools.reduce(values.both, links)

    return _apply(chained, [node.left, *node.comparators], node, source)


def _choice(node: ast.IfExp, source: Source) -> Evaluate:
    return _apply(values.choice, [node.test, node.body, node.orelse], node, source)


def _subscript(node: ast.Subscript, source: Source) -> Evaluate:
    is_joint = isinstance(node.value, ast.Name) and node.value.id == "torque"
    evaluate = _written_out(JOINT_TORQUES, source) if is_joint else _compile(node.value, source)
    text = source.part(node)
    index = (
        _slice(node.slice, source)
        if isinstance(node.slice, ast.Slice)
        else _index(node.slice, source)
    )
    return lambda step: values.pick(evaluate(step), index, text)


def _slice(node: ast.Slice, source: Source) -> slice:
    bounds = (node.lower, node.upper, node.step)
    lower, upper, step = (None if bound is None else _index(bound, source) for bound in bounds)
    if step == 0:
        raise source.refusal("a slice cannot advance by 0", node)
    return slice(lower, upper, step)


def _index(node: ast.expr, source: Source) -> int:
    index = _literal(node)
    if not isinstance(index, int):
        raise source.refusal(
            "entries are picked by whole numbers, as in state[0], state[-1] or action[0:2]", node
        )
    return index


def _call(node: ast.Call, source: Source) -> Evaluate:
    if node.keywords:
        raise source.refusal("arguments have no keywords", node)
    if isinstance(node.func, ast.Attribute):
        return _method(node, node.func, source)
    name = node.func.id if isinstance(node.func, ast.Name) else None
    if name == "column":
        return _column(node, source)
    if name in REDUCTIONS and len(node.args) == 1:
        return _reduction(REDUCTIONS[name], node.args[0], node, source)
    if name in ("min", "max") and node.args:
        _, larger_or_smaller = FUNCTIONS[f"{name}imum"]
        return _apply(
            lambda *operands: functools.reduce(larger_or_smaller, operands), node.args, node, source
        )
    if name in REDUCTIONS:
        raise source.refusal("it takes one argument, a vector", node)
    if name not in FUNCTIONS:
        nearest = difflib.get_close_matches(name or "", CALLABLE, n=1)
        hint = f"did you mean {nearest[0]}? " if nearest else ""
        raise source.refusal(f"{hint}The functions are {', '.join(CALLABLE)}", node.func)
    num_arguments, function = FUNCTIONS[name]
    if len(node.args) != num_arguments:
        raise source.refusal(f"{name} takes {num_arguments} arguments, not {len(node.args)}", node)
    return _apply(function, node.args, node, source)


def _method(node: ast.Call, called: ast.Attribute, source: Source) -> Evaluate:
    if called.attr not in METHODS or node.args:
        raise source.refusal(f"the methods are {METHODS_AS_WRITTEN}, without arguments", node)
    return _reduction(REDUCTIONS[called.attr], called.value, node, source)


def _reduction(
    function: Callable[..., Doubles], argument: ast.expr, whole: ast.Call, source: Source
) -> Evaluate:
    evaluate, text = _compile(argument, source), source.part(whole)
    return lambda step: values.over_entries(function, evaluate(step), text)


def _column(node: ast.Call, source: Source) -> Evaluate:
    name = (
        node.args[0].value
        if len(node.args) == 1 and isinstance(node.args[0], ast.Constant)
        else None
    )
    if not isinstance(name, str):
        raise source.refusal('column takes a name in quotes, as in column("infos/qpos")', node)
    return _read(name, source)


def _literal(node: ast.expr) -> int | float | None:
    """A number as it is written, with or without a minus; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        positive = _literal(node.operand) if isinstance(node.operand, ast.Constant) else None
        return None if positive is None else -positive
    number: Any = node.value if isinstance(node, ast.Constant) else None
    return number if type(number) in (int, float) and abs(number) <= MAX_NUMBER else None


_BUILDERS: dict[type[ast.expr], Callable[[Any, Source], Evaluate]] = {
    ast.Constant: _number,
    ast.Name: _name,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _logic,
    ast.Compare: _comparison,
    ast.IfExp: _choice,
    ast.Subscript: _subscript,
    ast.Call: _call,
}
"""Every node that is allowed; all others are refused."""
