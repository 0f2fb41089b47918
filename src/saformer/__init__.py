"""Offline safe reinforcement learning: one policy for any cost budget, checked before every action.

import saformer

trained = saformer.train("hopper-medium-replay", preset="small")
trained.evaluate(limits=["p10", "p50"])
policy = trained.policy()
policy.reset(state, limit=300.0)
decision = policy.act(state)
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

try:
    __version__ = version("saformer")
except PackageNotFoundError:
    __version__ = "unknown"

if TYPE_CHECKING:
    from saformer.api.data import build_data, export_data, import_data, inspect_data
    from saformer.api.demo import demo
    from saformer.api.listener import Listener
    from saformer.api.run_data import data_of
    from saformer.api.train import train, train_together
    from saformer.api.verbs import (
        calibrate,
        evaluate,
        evaluate_offline,
        export,
        finetune,
        judge,
        sweep,
    )
    from saformer.shield import Shield
    from saformer.trained import Trained, load

_HOMES = {
    "api.data": ("build_data", "export_data", "import_data", "inspect_data"),
    "api.demo": ("demo",),
    "api.listener": ("Listener",),
    "api.run_data": ("data_of",),
    "api.train": ("train", "train_together"),
    "api.verbs": (
        "calibrate",
        "evaluate",
        "evaluate_offline",
        "export",
        "finetune",
        "judge",
        "sweep",
    ),
    "shield": ("Shield",),
    "trained": ("Trained", "load"),
}
__all__ = [
    "Listener",
    "Shield",
    "Trained",
    "__version__",
    "build_data",
    "calibrate",
    "data_of",
    "demo",
    "evaluate",
    "evaluate_offline",
    "export",
    "export_data",
    "finetune",
    "import_data",
    "inspect_data",
    "judge",
    "load",
    "sweep",
    "train",
    "train_together",
]


def __getattr__(name: str) -> Any:
    # imported on first use, so that `import saformer.core` needs torch and nothing else
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"saformer.{module}"), name)
    raise AttributeError(f"module 'saformer' has no attribute {name!r}")
