"""Results that print as tables, in a terminal and in a notebook."""

from collections.abc import Callable
from typing import Any, ClassVar


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
