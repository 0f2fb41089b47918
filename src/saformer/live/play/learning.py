"""A run that still learns: its curves and looks so far."""

from collections.abc import Sequence
from typing import Any

from saformer.runs.metrics import terms_by_phase
from saformer.runs.run import Run

MOST_POINTS = 300  # of a curve


class Learning:
    """Reads a run's metrics again whenever they have grown."""

    def __init__(self, run: Run) -> None:
        self._run, self._size = run, -1

    @property
    def is_done(self) -> bool:
        return self._run.is_done

    def look(self) -> dict[str, Any] | None:
        """What a page shows of it; None where nothing is new."""
        path = self._run.metrics_path
        size = path.stat().st_size if path.exists() else 0
        if size == self._size:
            return None
        self._size = size
        return self.event()

    def event(self) -> dict[str, Any]:
        rows = list(self._run.metrics())
        measured = [row for row in rows if "evaluation" not in row]
        looks = [row for row in rows if "evaluation" in row]
        names = terms_by_phase(measured[-1]) if measured else {}
        return {
            "type": "learning",
            "update": rows[-1]["update"] if rows else 0,
            "updates": self._run.spec.fit_config.get("updates"),
            "done": self.is_done,
            "phases": [
                {"name": phase, "curves": [_curve(measured, term) for term in terms]}
                for phase, terms in names.items()
            ],
            "looks": [_look(looks, name) for name in (looks[-1]["evaluation"] if looks else ())],
        }


def _curve(rows: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    points = [[row["update"], row[name]] for row in rows if row.get(name) is not None]
    stride = -(-len(points) // MOST_POINTS) or 1
    label = name.partition("/")[2].replace("_", " ")
    return {"name": label, "points": points[::-1][::stride][::-1]}  # the latest is among them


def _look(rows: Sequence[dict[str, Any]], limit: str) -> dict[str, Any]:
    """Costs, against their limit, and returns of the episodes that training itself plays."""
    own = [(row["update"], row["evaluation"][limit]) for row in rows if limit in row["evaluation"]]
    return {
        "name": limit,
        "limit": own[-1][1]["limit"][0],
        "cost": [[update, look["cost"][0]] for update, look in own],
        "return": [[update, look["return"]] for update, look in own],
    }
