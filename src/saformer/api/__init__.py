"""Verbs, and how their results print."""

from importlib import import_module
from typing import Any

from saformer.data.shown import Shown

_TABLES = {
    "Evaluation": ("table", "verdict_table"),
    "Sweep": ("table", "sweep_table"),
    "Calibration": ("table", "calibration_table"),
    "Inspection": ("inspection", "inspection_tables"),
    "Selection": ("selection", "selection_table"),
    "Estimate": ("estimate", "estimate_table"),
    "OfflineEvaluation": ("offline", "offline_table"),
}


def _draw(kind: str, plain: dict[str, Any], as_html: bool) -> str:
    from saformer.report.table import rendered

    module, name = _TABLES[kind]  # imported only now: matplotlib takes its time
    return rendered(getattr(import_module(f"saformer.report.{module}"), name)(plain), as_html)


Shown.draw = _draw
