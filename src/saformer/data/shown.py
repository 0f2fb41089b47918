"""Results that print as tables, in a terminal and in a notebook; numbers of things, in words."""

from collections.abc import Callable
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
