"""Offline safe reinforcement learning: one policy for any cost budget, checked before every action.

import saformer

run = saformer.train("hopper-medium-replay", preset="small")
policy = saformer.load(run.path).policy()
policy.reset(state, limit=300.0)
decision = policy.act(state)
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

try:
    __version__ = version("saformer")
except PackageNotFoundError:
    __version__ = "unknown"

if TYPE_CHECKING:
    from saformer.api import (
        Shield,
        build_data,
        calibrate,
        demo,
        evaluate,
        evaluate_offline,
        export,
        export_data,
        finetune,
        import_data,
        inspect_data,
        load,
        sweep,
        train,
        train_together,
    )

__all__ = [
    "Shield",
    "__version__",
    "build_data",
    "calibrate",
    "demo",
    "evaluate",
    "evaluate_offline",
    "export",
    "export_data",
    "finetune",
    "import_data",
    "inspect_data",
    "load",
    "sweep",
    "train",
    "train_together",
]


def __getattr__(name: str) -> Any:
    # Found on first use, so that `import saformer.core` needs torch and nothing else.
    if name in __all__ and name != "__version__":
        from saformer import api

        return getattr(api, name)
    raise AttributeError(f"module 'saformer' has no attribute {name!r}")
