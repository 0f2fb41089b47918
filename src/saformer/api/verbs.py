"""The methods of `Trained` as functions of a path: `evaluate(path, ...)` is
`load(path).evaluate(...)`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saformer.api.finetune import FineTuned
from saformer.api.judge import Judged
from saformer.api.sweep import Sweep
from saformer.evaluation.calibration import Calibration
from saformer.evaluation.offline import OfflineEvaluation
from saformer.trained import Context, Trained, load

if TYPE_CHECKING:  # rollouts need Gymnasium
    from saformer.evaluation.evaluate import Evaluation

CONTEXT = {"listener", "cost_discount", *(field.name for field in fields(Context))}


def evaluate(path: str | Path, **settings: Any) -> Evaluation:
    """`Trained.evaluate` of the run, export or "pretrained:NAME" at this path.

    Settings are those of `load` (`device`, `data`, `out`, `workers`, `listener`) and of the
    method (`limits`, `episodes`, `rule`, `options`, `rate`, `shield`, ...).
    """
    return _loaded(path, settings).evaluate(**settings)


def judge(path: str | Path, **settings: Any) -> Judged:
    """`Trained.judge`: as `evaluate`, but nothing is written."""
    return _loaded(path, settings).judge(**settings)


def evaluate_offline(path: str | Path, **settings: Any) -> OfflineEvaluation:
    """`Trained.evaluate_offline`; see `evaluate` for the settings."""
    return _loaded(path, settings).evaluate_offline(**settings)


def calibrate(path: str | Path, **settings: Any) -> Calibration:
    """`Trained.calibrate`; see `evaluate` for the settings, and give the `rate`."""
    return _loaded(path, settings).calibrate(**settings)


def sweep(path: str | Path, *values: Any, **settings: Any) -> Sweep:
    """`Trained.sweep`; see `evaluate` for the settings."""
    return _loaded(path, settings).sweep(*values, **settings)


def export(path: str | Path, out: str | Path, **settings: Any) -> Path:
    """`Trained.export` to the new folder `out`: `dtype`, `command`; `data`, `listener`."""
    settings.setdefault("device", "cpu")
    return _loaded(path, settings).export(out, **settings)


def finetune(path: str | Path, limits: Any, *, out: Any = None, **settings: Any) -> FineTuned:
    """`Trained.finetune`: the new run is written to `out`; see `evaluate` for the context."""
    return _loaded(path, settings).finetune(limits, out=out, **settings)


def _loaded(path: str | Path, settings: dict[str, Any]) -> Trained:
    """The trained agent; takes its context out of the settings."""
    return load(path, **{name: settings.pop(name) for name in CONTEXT & set(settings)})
