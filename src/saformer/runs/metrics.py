"""Names in rows of metrics: PHASE/TERM is a term of a phase's loss, PHASE/watched/FIGURE no part of
it (a multiplier, an expected cost), PHASE/gradient_norm stands beside both."""

from collections.abc import Iterable
from typing import Annotated, Any, NotRequired

from annotated_types import Ge, Le
from typing_extensions import TypedDict  # pydantic asks for it below Python 3.12

GRADIENT_NORM = "gradient_norm"
WATCHED = "watched/"
Number = Annotated[float, Ge(-1e300), Le(1e300)]
Figure = Annotated[int, Ge(-(2**63)), Le(2**63)] | Number | None
Watched = TypedDict(  # type: ignore[misc]  # mypy does not know extra_items yet
    "Watched", {"return": Number, "cost": list[Number], "limit": list[Number]}, extra_items=Any
)


class MetricsRow(TypedDict, extra_items=Figure):  # type: ignore[call-arg]
    """Of metrics.jsonl: the update and figures by name; an evaluation's by limit."""

    update: Annotated[int, Ge(0), Le(2**63)]
    evaluation: NotRequired[dict[str, Watched]]


def terms_by_phase(names: Iterable[str], *, watched: bool = False) -> dict[str, list[str]]:
    """The names of the terms that each phase minimises, or of the figures that are only watched."""
    by_phase: dict[str, list[str]] = {}
    for name in names:
        phase, slash, term = name.partition("/")
        if slash and term != GRADIENT_NORM and term.startswith(WATCHED) == watched:
            by_phase.setdefault(phase, []).append(name)
    return by_phase
