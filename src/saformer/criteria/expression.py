"""Cost expressions such as "abs(action).sum() + 0.1*(speed > 2)": a small part of Python's syntax.

The text is parsed to a tree, every node of which must be on the list of what is allowed, and
becomes a closure over numpy functions. It is never run as Python, so a text from anywhere can at
worst be refused.
"""

import ast
import difflib
import functools
import keyword
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from saformer.criteria import values
from saformer.criteria.step import Doubles, Step
from saformer.criteria.values import FUNCTIONS, REDUCTIONS, Value

MAX_CHARACTERS, MAX_NODES = 1000, 200
MAX_NUMBER, MAX_EXPONENT = 1e12, 8

Function = Callable[..., Doubles]
Operators = dict[type[ast.AST], Function]
ARITHMETIC: Operators = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Mod: np.mod,
}
LOGIC: Operators = {
    **dict.fromkeys((ast.And, ast.BitAnd), values.both),
    **dict.fromkeys((ast.Or, ast.BitOr), values.either),
    **dict.fromkeys((ast.Not, ast.Invert), values.negation),
}
COMPARISONS: Operators = {
    ast.Lt: values.comparison(np.less),
    ast.LtE: values.comparison(np.less_equal),
    ast.Gt: values.comparison(np.greater),
    ast.GtE: values.comparison(np.greater_equal),
    ast.Eq: values.comparison(np.equal),
    ast.NotEq: values.comparison(np.not_equal),
}
METHODS = ("sum", "mean", "max", "min")
METHODS_AS_WRITTEN = " ".join(f".{name}()" for name in METHODS)
CALLABLE = (*FUNCTIONS, *REDUCTIONS, "column")
QUOTED = re.compile(r"`([^`'\"\\]+)`")
"""A column's name, whatever it holds, as in `Power [kW]`."""
SHORTHANDS = {"torque": "abs(action).sum()", "energy": "(action**2).sum()"}
"""Names that stand for expressions."""
JOINT_TORQUES = "abs(action)"  # What torque[0] picks from

Evaluate = Callable[[Step], Value]


@dataclass(frozen=True)
class Expression:
    """A parsed expression: Step -> cost [...]."""

    text: str
    reads: frozenset[str]  # the parts and columns it names
    evaluate: Evaluate = field(compare=False, repr=False)

    def __call__(self, step: Step) -> Doubles:
        """One number per step; NaN or infinite where the arithmetic gives that."""
        with np.errstate(all="ignore"):
            value = self.evaluate(step)
        if value.size is not None:
            raise ValueError(f"it gives {value.size} values per step; add them up with .sum()")
        costs = np.broadcast_to(value.array[..., 0], step.action.shape[:-1])
        return np.array(costs, dtype=np.float64)

    @functools.cached_property
    def in_any_state(self) -> "Expression":
        """Step -> what is known of the cost without the state; NaN where it depends on that."""
        compiler = _AnyState(self.text)
        return replace(self, evaluate=compiler.compile(compiler.tree()))


def parse_expression(text: str, what: str = "cost criterion") -> Expression:
    """Read an expression; ValueError says what was not understood, where, and what could be."""
    compiler = _Compiler(text, what)
    try:
        evaluate = compiler.compile(compiler.tree())
    except RecursionError:
        raise compiler.refusal("it is nested too deeply") from None
    return Expression(text, frozenset(compiler.reads), evaluate)


def column_expression(column: str) -> str:
    """A column's name as an expression: as it is, where that reads as a name of its own."""
    is_reserved = column in CALLABLE or column in SHORTHANDS or keyword.iskeyword(column)
    is_name = column.isidentifier() and column.isascii() and not _is_dunder(column)
    if is_name or not QUOTED.fullmatch(f"`{column}`"):
        return column if is_name and not is_reserved else f"column({column!r})"
    return f"`{column}`"


def in_terms_of(text: str, terms: Mapping[str, str]) -> str:
    """The expression with each of these columns written as its term, as in {"power": "action[0]"};
    as it was if it reads none of them."""
    if not parse_expression(text).reads & set(terms):
        return text
    return ast.unparse(_Terms(terms).visit(_Compiler(text).tree()))


class _Terms(ast.NodeTransformer):
    def __init__(self, terms: Mapping[str, str]) -> None:
        self._terms = {name: ast.parse(term, mode="eval").body for name, term in terms.items()}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return node if node.id in (*CALLABLE, *SHORTHANDS) else self._terms.get(node.id, node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        is_column = isinstance(node.func, ast.Name) and node.func.id == "column"
        if is_column and isinstance(node.args[0], ast.Constant):
            return self._terms.get(str(node.args[0].value), node)
        return self.generic_visit(node)


class _Compiler:
    """Turns the nodes of one text into closures, and refuses those that are not allowed."""

    def __init__(self, text: str, what: str = "cost criterion") -> None:
        self.text, self._what = QUOTED.sub(lambda name: f"column({name[1]!r})", text), what
        self.reads: set[str] = set()  # parts and columns named so far

    def tree(self) -> ast.expr:
        """The text parsed, if it is not too large; any node may be in it."""
        length = len(self.text)
        if length > MAX_CHARACTERS:
            raise self.refusal(f"it has {length} characters, at most {MAX_CHARACTERS} are allowed")
        if not self.text.isprintable():
            raise self.refusal("it holds line breaks or characters that cannot be seen")
        try:
            tree = ast.parse(self.text, mode="eval").body
        except SyntaxError as error:
            raise self.refusal(f"{error.msg}, at character {error.offset or length + 1}") from None
        except (ValueError, OverflowError, MemoryError) as error:
            raise self.refusal(f"it cannot be parsed ({error})") from None
        num_nodes = sum(isinstance(node, ast.expr) for node in ast.walk(tree))
        if num_nodes > MAX_NODES:
            raise self.refusal(f"it has {num_nodes} parts, at most {MAX_NODES} are allowed")
        return tree

    def refusal(self, problem: str, node: ast.expr | None = None) -> ValueError:
        """What is wrong, where, and what could be written instead."""
        where = ""
        if node is not None:
            character = len(self.text.encode()[: node.col_offset].decode()) + 1
            where = f" {_short(self._part(node))} at character {character}:"
        return ValueError(
            f"{self._what} {_short(self.text)} is not understood:{where} {problem}. Write "
            "torque, torque[0], energy, module:function, or an expression such as "
            '"abs(action).sum() + 0.1*(speed > 2)" over action, state, next_state, reward and the '
            "names of columns, in backticks if they are no plain names"
        )

    def compile(self, node: ast.expr) -> Evaluate:
        build = _BUILDERS.get(type(node))
        if build is None:
            kind, methods = type(node).__name__, f"after a dot come {METHODS_AS_WRITTEN}"
            problem = methods if isinstance(node, ast.Attribute) else kind
            raise self.refusal(f"this is not part of the language: {problem}", node)
        return getattr(self, build)(node)  # type: ignore[no-any-return]

    def _part(self, node: ast.expr) -> str:
        """A node as it was written."""
        return ast.get_source_segment(self.text, node) or ast.unparse(node)

    def _apply(self, function: Function, operands: list[ast.expr], whole: ast.expr) -> Evaluate:
        evaluates, text = [self.compile(operand) for operand in operands], self._part(whole)
        return lambda step: values.elementwise(function, [each(step) for each in evaluates], text)

    def _reduce(self, function: Function, argument: ast.expr, whole: ast.Call) -> Evaluate:
        evaluate, text = self.compile(argument), self._part(whole)
        return lambda step: values.over_entries(function, evaluate(step), text)

    def _read(self, name: str) -> Evaluate:
        self.reads.add(name)
        return lambda step: values.of_step(step, name)

    def _shorthand(self, text: str) -> Evaluate:
        expression = parse_expression(text)
        self.reads |= expression.reads
        return expression.evaluate

    def constant(self, node: ast.Constant) -> Evaluate:
        if not isinstance(node.value, bool | int | float):
            raise self.refusal("constants are numbers, True or False; text is for column()", node)
        if not abs(node.value) <= MAX_NUMBER:
            raise self.refusal(f"numbers go up to {MAX_NUMBER:g}", node)
        value = Value(np.array([node.value], dtype=np.float64))
        return lambda step: value

    def name(self, node: ast.Name) -> Evaluate:
        name = node.id
        if name in SHORTHANDS:
            return self._shorthand(SHORTHANDS[name])
        if name in CALLABLE:
            advice = f"call it, or write column({name!r}) for a column of that name"
            raise self.refusal(f"it is a function: {advice}", node)
        if _is_dunder(name) or not self._part(node).isascii():
            raise self.refusal("names are plain letters, digits and inner underscores", node)
        return self._read(name)

    def binary(self, node: ast.BinOp) -> Evaluate:
        operator, operands = type(node.op), [node.left, node.right]
        if operator is ast.Pow:
            exponent = _literal(node.right)
            if exponent is None or not abs(exponent) <= MAX_EXPONENT:
                bounds = f"-{MAX_EXPONENT} to {MAX_EXPONENT}"
                raise self.refusal(f"exponents go from {bounds}", node.right)
            return self._apply(lambda base: np.power(base, float(exponent)), [node.left], node)
        if operator in LOGIC:
            self._require_truth(operands)
            return self._apply(LOGIC[operator], operands, node)
        if operator not in ARITHMETIC:
            raise self.refusal("the operators are + - * / % **, and & | for truth values", node)
        return self._apply(ARITHMETIC[operator], operands, node)

    def unary(self, node: ast.UnaryOp) -> Evaluate:
        operator = type(node.op)
        if operator is ast.USub:
            return self._apply(np.negative, [node.operand], node)
        if operator is ast.Invert:
            self._require_truth([node.operand])
        if operator not in LOGIC:
            raise self.refusal("the signs are - and, before truth values, not and ~", node)
        return self._apply(LOGIC[operator], [node.operand], node)

    def _require_truth(self, nodes: list[ast.expr]) -> None:
        """& | ~ bind tighter than comparisons: "a > 1 & b > 2" would mean what nobody meant."""
        for node in nodes:
            if not _is_truth(node):
                raise self.refusal("& | ~ join brackets, as in (a > 1) & (b > 2)", node)

    def logic(self, node: ast.BoolOp) -> Evaluate:
        return self._apply(_folded(LOGIC[type(node.op)]), node.values, node)

    def comparison(self, node: ast.Compare) -> Evaluate:
        if any(type(operator) not in COMPARISONS for operator in node.ops):
            raise self.refusal("comparisons are < <= > >= == !=", node)
        hold = [COMPARISONS[type(operator)] for operator in node.ops]

        def chained(*operands: Doubles) -> Doubles:
            links = [holds(x, y) for holds, x, y in zip(hold, operands, operands[1:], strict=False)]
            return functools.reduce(values.both, links)

        return self._apply(chained, [node.left, *node.comparators], node)

    def choice(self, node: ast.IfExp) -> Evaluate:
        return self._apply(values.choice, [node.test, node.body, node.orelse], node)

    def subscript(self, node: ast.Subscript) -> Evaluate:
        is_joint = isinstance(node.value, ast.Name) and node.value.id == "torque"
        evaluate = self._shorthand(JOINT_TORQUES) if is_joint else self.compile(node.value)
        index, text = self._index(node.slice), self._part(node)
        return lambda step: values.pick(evaluate(step), index, text)

    def _index(self, node: ast.expr) -> int | slice:
        if isinstance(node, ast.Slice):
            bounds = (node.lower, node.upper, node.step)
            lower, upper, step = (None if bound is None else self._index(bound) for bound in bounds)
            if step == 0:
                raise self.refusal("a slice cannot advance by 0", node)
            return slice(lower, upper, step)
        index = _literal(node)
        if not isinstance(index, int):
            raise self.refusal("indices are whole numbers, as in state[-1], action[0:2]", node)
        return index

    def call(self, node: ast.Call) -> Evaluate:
        if node.keywords:
            raise self.refusal("arguments have no keywords", node)
        if isinstance(node.func, ast.Attribute):
            if node.func.attr not in METHODS or node.args:
                raise self.refusal(f"the methods are {METHODS_AS_WRITTEN}, without arguments", node)
            return self._reduce(REDUCTIONS[node.func.attr], node.func.value, node)
        name = node.func.id if isinstance(node.func, ast.Name) else None
        if name == "column":
            return self._column(node)
        if name in REDUCTIONS and len(node.args) == 1:
            return self._reduce(REDUCTIONS[name], node.args[0], node)
        if name in ("min", "max") and node.args:
            return self._apply(_folded(FUNCTIONS[f"{name}imum"][1]), node.args, node)
        if name in REDUCTIONS:
            raise self.refusal("it takes one argument, a vector", node)
        if name not in FUNCTIONS:
            nearest = difflib.get_close_matches(name or "", CALLABLE, n=1)
            hint = f"did you mean {nearest[0]}? " if nearest else ""
            raise self.refusal(f"{hint}The functions are {', '.join(CALLABLE)}", node.func)
        expected, function = FUNCTIONS[name]
        if len(node.args) != expected:
            raise self.refusal(f"{name} takes {expected} arguments, not {len(node.args)}", node)
        return self._apply(function, node.args, node)

    def _column(self, node: ast.Call) -> Evaluate:
        first = node.args[0] if len(node.args) == 1 else None
        name = first.value if isinstance(first, ast.Constant) else None
        if not isinstance(name, str):
            raise self.refusal('column takes a name in quotes, as in column("infos/qpos")', node)
        return self._read(name)


class _AnyState(_Compiler):
    """Reads every entry of the state as NaN, which is what cannot be known; 0 times it is 0."""

    def binary(self, node: ast.BinOp) -> Evaluate:
        if isinstance(node.op, ast.Mult):
            return self._apply(values.product_of_finite, [node.left, node.right], node)
        return super().binary(node)

    def subscript(self, node: ast.Subscript) -> Evaluate:
        is_entry = not isinstance(node.slice, ast.Slice)
        if is_entry and isinstance(node.value, ast.Name) and node.value.id == "state":
            return lambda step: Value(np.array([np.nan]))
        return super().subscript(node)


_BUILDERS: dict[type[ast.expr], str] = {
    ast.Constant: "constant",
    ast.Name: "name",
    ast.BinOp: "binary",
    ast.UnaryOp: "unary",
    ast.BoolOp: "logic",
    ast.Compare: "comparison",
    ast.IfExp: "choice",
    ast.Subscript: "subscript",
    ast.Call: "call",
}
"""Every node that is allowed; all others are refused."""


def _folded(function: Function) -> Function:
    return lambda *operands: functools.reduce(function, operands)


def _is_truth(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp | ast.BinOp):
        return type(node.op) in LOGIC
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "outside"
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool)
    return isinstance(node, ast.Compare | ast.BoolOp)


def _literal(node: ast.expr) -> int | float | None:
    """A number as it is written, with or without a minus; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        positive = _literal(node.operand) if isinstance(node.operand, ast.Constant) else None
        return None if positive is None else -positive
    number: Any = node.value if isinstance(node, ast.Constant) else None
    return number if type(number) in (int, float) and abs(number) <= MAX_NUMBER else None


def _is_dunder(name: str) -> bool:
    return name.startswith("__") or name.endswith("__")


def _short(text: str) -> str:
    return repr(text if len(text) <= 100 else text[:97] + "...")
