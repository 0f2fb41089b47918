"""How results came to be: command, commit, seeds, hardware and duration."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from saformer import __version__
from saformer.engine.engine import Engine
from saformer.experiments.plan import Setting
from saformer.runs.provenance import commit


def how_it_was_made(
    setting: Setting, command: str, engine: Engine, seconds: float
) -> dict[str, Any]:
    """For the foot of a page."""
    return {
        "command": command,
        "scale": setting.scale.name,
        "data": setting.source,
        "seeds": list(setting.seeds),
        "episodes": setting.scale.episodes,
        "commit": commit(),
        "saformer": __version__,
        "versions": {name: _version(name) for name in ("torch", "numpy", "gymnasium", "mujoco")},
        "hardware": _hardware(),
        "engine": f"{engine.name}, {engine.jobs_at_once} at once",
        "this command": f"{seconds:.0f} s, what was found finished aside",
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _hardware() -> str:
    gpu = f"{torch.cuda.get_device_name()}, " if torch.cuda.is_available() else ""
    return f"{gpu}{os.cpu_count()} CPU cores ({platform.machine()})"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def time_spent(verdicts: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What training and rolling out took when it was done, which may have been earlier."""
    trained = {row["run"]: row["training_seconds"] for row in verdicts}
    judged = {
        (row["run"], row["variant"], row["cost_discount"]): row["evaluation_seconds"]
        for row in verdicts
    }
    if not trained:
        return {}
    return {
        "updates": ", ".join(str(count) for count in sorted({row["updates"] for row in verdicts})),
        "training": f"{sum(trained.values()):.0f} s, the sum over {len(trained)} runs (each of a pack counts it all)",
        "evaluation": f"{sum(judged.values()):.0f} s, the sum over {len(judged)} rollouts, at commit "
        + ", ".join(sorted({row["commit"] for row in verdicts})),
    }
