"""Valid cost expressions at random, each with a translation that plain numpy can evaluate one step
at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st

from saformer.criteria import Step

SIZES = {"action": 3, "state": 4, "next_state": 4, "force": 2, "infos/qpos": 2}
NUMBERS = ("reward", "speed")
COMPARED = tuple(
    (f"({{}} {sign} {{}})", f"number({{}} {sign} {{}})")
    for sign in ("<", "<=", ">", ">=", "==", "!=")
)
FORMS: tuple[str | tuple[str, str], ...] = (
    "{} + {}", "{} - {}", "{} * {}", "{} / (abs({}) + 1)", "({}) % 2.5", "({}) % -0.75",
    "({}) ** 2", "({}) ** 3",
    "({}) ** 0", "(abs({}) + 1) ** -1.5", "-{}", "abs({})", "sqrt(abs({}))", "exp(-abs({}))",
    "min({}, {})",
    "max({}, {}, {})", "minimum({}, {})", "maximum({}, {})", "above({}, {})", "clip({}, -1, 2.5)",
    "outside({}, -1, 1.5)", "where({}, {}, {})", *COMPARED,
    ("({} < {} <= {})", "chained({}, {}, {})"),
    ("(({} < {}) & ({} >= {}))", "both(number({} < {}), number({} >= {}))"),
    ("(({} < {}) | ({} >= {}))", "either(number({} < {}), number({} >= {}))"),
    ("(~({} < {}))", "negated(number({} < {}))"),
    ("({} and {})", "both({}, {})"),
    ("({} or {} or {})", "either(either({}, {}), {})"),
    ("(not {})", "negated({})"),
    ("({0} if {1} else {2})", "where({1}, {0}, {2})"),
)  # fmt: skip
"""How expressions are made of others: as it is written, and how numpy is told where that
differs."""
REDUCED = (
    "sum({})", "mean({})", "min({})", "max({})", "norm({})", "({}).sum()", "({}).mean()",
    "({}).min()", "({}).max()"
)  # fmt: skip

Pair = tuple[str, str]
"""(expression, what numpy is given instead)"""

TWO_STEPS = Step(
    action=np.array([[0.5, -2.0, 1.0], [0.0, 0.0, 0.25]]),
    state=np.array([[1.0, 2.0], [-3.0, 4.0]]),
    next_state=np.array([[0.0, 2.5], [1.0, 1.0]]),
    reward=np.array([10.0, 20.0]),
    columns={
        "speed": np.array([3.0, 1.0]),
        "infos/qpos": np.array([[3.0, 4.0], [0.0, 1.0]]),
        "hit": np.array([True, False]),
    },
)


def examples(count: int) -> settings:
    """The same examples in every run: what fails, fails for everybody. Shown as found, for
    shrinking takes minutes."""
    return settings(
        max_examples=count, deadline=None, database=None, derandomize=True, phases=[Phase.generate]
    )


def steps(seed: int, leading: tuple[int, ...]) -> Step:
    """Steps whose numbers are quarters, so that most of the arithmetic is exact."""
    rng = np.random.default_rng(seed)

    def quarters(*shape: int) -> np.ndarray:
        return (rng.integers(-16, 17, (*leading, *shape)) / 4).astype(np.float32)

    parts = {name: quarters(size) for name, size in SIZES.items()} | {
        name: quarters() for name in NUMBERS
    }
    columns = {name: parts.pop(name) for name in ("force", "infos/qpos", "speed")}
    return Step(**parts, columns=columns)


@st.composite
def numbers(draw: Callable, depth: int = 3) -> Pair:
    """An expression that gives one number per step."""
    kind = draw(st.sampled_from(("leaf", "reduced", "made", "made"))) if depth else "leaf"
    if kind == "leaf":
        return draw(_leaves())
    if kind == "reduced":
        size = draw(st.sampled_from(sorted(set(SIZES.values()))))
        return _filled(draw(st.sampled_from(REDUCED)), [draw(_vectors(size, depth - 1))])
    form = draw(st.sampled_from(FORMS))
    return _filled(form, [draw(numbers(depth - 1)) for _ in range(_arity(form))])


@st.composite
def _vectors(draw: Callable, size: int, depth: int) -> Pair:
    """One that gives `size` numbers per step; numbers go with each entry of a vector."""
    if depth == 0 or draw(st.booleans()):
        whole = [_spelt(name) for name, of in SIZES.items() if of == size]
        parts = [
            f"{_spelt(name)}[{i}:{i + size}]"
            for name, of in SIZES.items()
            for i in range(of - size + 1)
        ]
        return _same(draw(st.sampled_from(whole + parts)))
    form = draw(st.sampled_from(FORMS))
    others = [draw(_vectors(size, depth - 1) | numbers(depth - 1)) for _ in range(_arity(form) - 1)]
    return _filled(form, [draw(_vectors(size, depth - 1)), *others])


@st.composite
def _leaves(draw: Callable) -> Pair:
    name = draw(st.sampled_from((*SIZES, *NUMBERS, "number", "True")))
    if name in SIZES:
        return _same(f"{_spelt(name)}[{draw(st.integers(-SIZES[name], SIZES[name] - 1))}]")
    if name == "number":
        return _same(repr(draw(st.integers(-12, 12)) / 4))
    return ("True", "1.0") if name == "True" else _same(name)


def _arity(form: str | tuple[str, str]) -> int:
    return (form if isinstance(form, str) else form[0]).count("{")


def _filled(form: str | tuple[str, str], operands: list[Pair]) -> Pair:
    written, told = (form, form) if isinstance(form, str) else form
    return written.format(*(text for text, _ in operands)), told.format(
        *(numpy for _, numpy in operands)
    )


def _spelt(name: str) -> str:
    return name if name.isidentifier() else f"column({name!r})"


def _same(text: str) -> Pair:
    return text, text


def by_numpy(translation: str, step: Step) -> float:
    """The reference: Python's own evaluation of one step, here in the tests alone."""
    names = {
        name: np.float64(getattr(step, name))
        for name in ("action", "state", "next_state", "reward")
    }
    names |= {name: np.float64(values) for name, values in step.columns.items()}
    with np.errstate(all="ignore"):
        return float(eval(translation, _FUNCTIONS | names | {"column": names.__getitem__}))


def _extreme(reduce: Callable, pairwise: Callable) -> Callable:
    return lambda *of: reduce(of[0]) if len(of) == 1 else functools.reduce(pairwise, of)


_FUNCTIONS = {
    "abs": np.abs,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "min": _extreme(np.min, np.minimum),
    "max": _extreme(np.max, np.maximum),
    "sum": np.sum,
    "mean": np.mean,
    "norm": np.linalg.norm,
    "clip": np.clip,
    "above": lambda x, bound: np.where(x > bound, x - bound, 0.0),
    "outside": lambda x, low, high: np.float64((x < low) | (x > high)),
    "where": lambda c, x, y: np.where(np.float64(c) != 0, x, y),
    "chained": lambda x, y, z: np.float64((x < y) & (y <= z)),
    "both": lambda x, y: np.float64(np.logical_and(x, y)),
    "either": lambda x, y: np.float64(np.logical_or(x, y)),
    "negated": lambda x: np.float64(np.logical_not(x)),
    "number": np.float64,
}
