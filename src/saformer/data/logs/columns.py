"""A mapping held against the header of a log."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saformer.criteria import code
from saformer.criteria.expression import (
    Expression,
    column_expression,
    in_terms_of,
    parse_expression,
)
from saformer.criteria.step import PARTS
from saformer.data.logs.mapping import SEVERAL, LogMapping

USUAL = ("cost", "episode", "terminated", "truncated")
"""Optional columns that are taken for what they are called unless others are named."""


@dataclass(frozen=True)
class LogColumns:
    """What each column of a log is, by its name in the header."""

    how: LogMapping  # to read them
    state: tuple[str, ...]
    action: tuple[str, ...]
    next_state: tuple[str, ...]
    columns: tuple[str, ...]  # kept for criteria to read
    reward: str  # a column, or the text of what is reckoned
    earned: Expression | None  # of the reward, where it is no column
    criteria: tuple[str, ...]
    cost: str | None = None
    episode: str | None = None
    time: str | None = None
    time_of_day: str | None = None
    terminated: str | None = None
    truncated: str | None = None

    @classmethod
    def of(
        cls, mapping: LogMapping, header: Sequence[str], criteria: Sequence[str] = ()
    ) -> LogColumns:
        """Patterns expanded, usual names filled in, what expressions read among the columns."""
        lists: dict[str, Any] = {
            part: _expand(part, getattr(mapping, part), header) for part in SEVERAL
        }
        if mapping.state == LogMapping.state:  # either of the usual patterns will do
            lists["state"] = tuple(name for name in header if name.startswith(("state", "obs")))
        for part in ("state", "action"):
            if not lists[part]:
                raise ValueError(
                    f"no column is named as {part}: the header is {', '.join(header)}; say which "
                    f"with --{part} or in a mapping file"
                )
        num_next, num_states = len(lists["next_state"]), len(lists["state"])
        if num_next not in (0, num_states):
            raise ValueError(f"{num_next} next_state columns for {num_states} state columns")
        clocks = ("time", "time_of_day")
        single: dict[str, Any] = {n: _column(n, getattr(mapping, n), header) for n in clocks}
        for part in USUAL:
            single[part] = getattr(mapping, part) or (part if part in header else None)
        for part in ("terminated", "truncated", "episode"):
            if part != "episode" or mapping.period is None:
                _column(part, single[part], header)
        texts = tuple(criteria or (single["cost"] and [single["cost"]]) or ())
        single["cost"] = single["cost"] if single["cost"] in header else None
        single["episode"] = None if mapping.period else single["episode"]
        read = _reads("cost", texts, header, {*PARTS})
        read -= {*lists["state"], *lists["action"]}  # which the store has as such
        lists["columns"] = _unique(*lists["columns"], *(name for name in header if name in read))
        reward, earned = mapping.reward.strip(), None
        if reward not in header:
            _reads("reward", [reward], header, {"state", "action"})
            earned = parse_expression(reward, "reward")
        resolved = _criteria(texts, header, lists)
        return cls(mapping, **lists, reward=reward, earned=earned, criteria=resolved, **single)

    @property
    def needed(self) -> tuple[str, ...]:
        """Numeric columns without which a step cannot be used; in others a value may be missing."""
        read = () if self.earned is None else sorted(self.earned.reads - set(PARTS))
        return _unique(*self.state, *self.action, *read, self.reward, *self.next_state, self.cost)

    @property
    def numeric(self) -> tuple[str, ...]:
        """Columns that must hold numbers."""
        names = _unique(*self.needed, *self.columns)
        return tuple(name for name in names if self.earned is None or name != self.reward)

    @property
    def named(self) -> tuple[str, ...]:
        """Columns that the store has by name."""
        return _unique(self.cost, *self.columns)

    @property
    def read(self) -> tuple[str, ...]:
        """Every column that is read from the files."""
        clocks, marks = (self.time, self.time_of_day), (self.terminated, self.truncated)
        return _unique(*self.numeric, self.episode, *clocks, *marks)

    @property
    def marks_ends(self) -> bool:
        """Whether the log says where episodes ended."""
        return self.terminated is not None or self.truncated is not None


def _criteria(
    texts: Sequence[str], header: Sequence[str], parts: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Criteria over columns as a store has them: those of state and action are read there, so that
    a cost can be reckoned before an action is taken."""
    places = [(name, f"{p}[{i}]") for p in ("state", "action") for i, name in enumerate(parts[p])]
    terms = {name: place for name, place in places if name not in PARTS}
    expressions = [column_expression(text) if text in header else text for text in texts]
    pairs = [each if code.is_code(each) else in_terms_of(each, terms) for each in expressions]
    return tuple(pairs) or ("torque",)


def _reads(part: str, texts: Sequence[str], header: Sequence[str], known: set[str]) -> set[str]:
    """The columns that these expressions or names of columns read."""
    plain = [text for text in texts if text in header]
    names = set(plain)
    for text in texts:
        if text not in plain and not code.is_code(text):
            names |= set(parse_expression(text, part).reads) - known
    for name in sorted(names):
        _column(part, name, header)
    return names


def _unique(*names: str | None) -> tuple[str, ...]:
    return tuple(name for name in dict.fromkeys(names) if name is not None)


def _column(part: str, name: str | None, header: Sequence[str]) -> str | None:
    if name is not None and name not in header:
        raise ValueError(f"there is no column {name!r} for {part}; {_hint(name, header)}")
    return name


def _expand(part: str, names: Sequence[str], header: Sequence[str]) -> tuple[str, ...]:
    """Names with their patterns replaced by the columns they match, in the header's order."""
    is_usual = names == getattr(LogMapping, part)
    return _unique(*(each for name in names for each in _matches(part, name, header, is_usual)))


def _matches(part: str, name: str, header: Sequence[str], is_usual: bool) -> Iterator[str | None]:
    if "*" not in name or name in header:
        yield _column(part, name, header)
        return
    pattern = re.compile(".*".join(map(re.escape, name.split("*"))), re.DOTALL)
    matches = [column for column in header if pattern.fullmatch(column)]
    if not matches and not is_usual:
        listed = ", ".join(header)
        raise ValueError(f"no column matches {name!r} for {part}; the header is {listed}")
    yield from matches


def _hint(name: str, header: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(name, header, n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else f"the header is {', '.join(header)}"
