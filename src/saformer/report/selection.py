"""Ways to act that were estimated from logs, as a table: the chosen one first."""

from pathlib import Path
from typing import Any

from rich.table import Table

from saformer.report.table import Cell, percent, rounded, terminal_table

HEADINGS = ("run", "rule", "withheld", "limits kept", "within", "safe share", "supported")
CHECKED = (*HEADINGS, "rolled out")


def selection_table(selection: dict[str, Any]) -> Table:
    """Sorted by the estimated safe share."""
    candidates, best = selection["candidates"], selection["best_rolled_out"]
    chosen = candidates[selection["chosen"]]
    ranked = sorted(candidates, key=lambda each: (-(each["safe_share"] or 0), -each["within"]))
    ranked.sort(key=lambda each: each is not chosen)
    headings = HEADINGS if best is None else CHECKED
    rows: list[list[Cell]] = [[_cells(each)[name] for name in headings] for each in ranked]
    caption = f"chosen from logs alone: {_name(chosen)}; limits {', '.join(selection['limits'])}"
    if best is not None:
        lost = (candidates[best]["rolled_out"] or 0) - (chosen["rolled_out"] or 0)
        caption += f"; rollouts would choose {_name(candidates[best])}, {lost:.2f} better there"
    return terminal_table(headings, rows, caption=caption)


def _name(candidate: dict[str, Any]) -> str:
    rule, margin = candidate["rule"], candidate["margin"]
    return f"{Path(candidate['run']).name} by {rule}, {margin:.0%} withheld"


def _cells(candidate: dict[str, Any]) -> dict[str, Cell]:
    trust = candidate["trust"]
    return {
        "run": Path(candidate["run"]).name,
        "rule": candidate["rule"],
        "withheld": percent(candidate["margin"]),
        "limits kept": f"{candidate['limits_met']} of {len(trust)}",
        "within": percent(candidate["within"]),
        "safe share": rounded(candidate["safe_share"]),
        "supported": f"{trust.count('supported')} of {len(trust)}",
        "rolled out": rounded(candidate["rolled_out"]),
    }
