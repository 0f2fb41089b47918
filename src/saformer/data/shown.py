"""Results as tables, in a terminal and in a notebook, and as frames; numbers of things in words."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar


def counted(count: int, one: str, many: str | None = None) -> str:
    """ "1 step", "2 steps" """
    return f"{count} {one if count == 1 else many or one + 's'}"


class Shown:
    """A result that `plain()` puts in plain values. How each kind is drawn is known outside, where
    tables are: `draw` is set there."""

    draw: ClassVar[Callable[[str, dict[str, Any], bool], str] | None] = None
    """(kind, plain values, as HTML) -> text"""

    def plain(self) -> dict[str, Any]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._drawn(as_html=False)

    def _repr_html_(self) -> str:
        return self._drawn(as_html=True)

    def _drawn(self, *, as_html: bool) -> str:
        draw, kind = Shown.draw, type(self).__name__
        return draw(kind, self.plain(), as_html) if draw else object.__repr__(self)


def frame_of(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows as a pandas frame, or one of polars where pandas is not installed. What is nested has
    columns of its own: near.bias, cost.0."""
    for library in ("pandas", "polars"):
        if find_spec(library):
            return import_module(library).DataFrame([dict(_flat(row)) for row in rows])
    raise ValueError("frames need pandas or polars: pip install pandas")


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, list | tuple):
        value = dict(enumerate(value)) if len(value) > 1 else {"": value[0] if value else None}
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, part in value.items():
        yield from _flat(part, f"{name}.{key}".strip("."))
