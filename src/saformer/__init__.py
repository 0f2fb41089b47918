"""Offline safe reinforcement learning: one policy for any cost budget, checked before every action.

    import saformer

    trained = saformer.train("plant-room", updates=1000)     # or a store's folder
    print(trained.evaluate(limits=["p20", "p50"]))           # a table
    policy = trained.policy()
    policy.reset(state, limit="p50")                         # or a cost: limit=300.0
    decision = policy.act(state)
    policy.observe(reward, cost)                             # what the action brought

Data     `import_data` reads logs and datasets, `collect` rolls a policy out in a simulator,
         `build_data` makes a named task's; `inspect_data` says which limits they support;
         `export_data` writes them for Minari.
Learn    `train` gives a `Trained`; `train_together` trains many runs; `demo` shows all of it.
         `register_agent` adds a method of your own, `Listener` hears of progress and metrics.
Judge    `load` opens a run; `evaluate`, `estimate`, `evaluate_offline`, `calibrate`, `sweep` judge
         it; `compare` holds several against each other, `select_policy` chooses from logs alone.
Deploy   `export` writes a small folder, `Shield` keeps limits by construction, `finetune` explores
         to keep limits that the data never showed, `data_of` opens a run's data.

The same verbs are commands: `saformer --help`.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

try:
    __version__ = version("saformer")
except PackageNotFoundError:
    __version__ = "unknown"

# Torch's threads spin while they wait: where another program wants a core, both crawl. It is read
# as torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from pathlib import Path

    from saformer.agents.registry import register_agent
    from saformer.api.collect import collect
    from saformer.api.data import build_data, export_data, import_data, inspect_data
    from saformer.api.finetune import FineTuned
    from saformer.api.listener import Listener
    from saformer.api.run_data import data_of
    from saformer.api.train import train_together
    from saformer.evaluation.calibration import Calibration
    from saformer.evaluation.evaluate import Evaluation
    from saformer.evaluation.offline.estimate import Estimate
    from saformer.evaluation.offline.held_out import OfflineEvaluation
    from saformer.evaluation.sweep import Sweep
    from saformer.experiments.demo import demo
    from saformer.report.compare import compare
    from saformer.selection import select_policy
    from saformer.shield import Shield
    from saformer.trained import Trained, load, train

_HOMES = {
    "api.collect": ("collect",),
    "api.data": ("build_data", "export_data", "import_data", "inspect_data"),
    "api.listener": ("Listener",),
    "api.run_data": ("data_of",),
    "api.train": ("train_together",),
    "agents.registry": ("register_agent",),
    "report.compare": ("compare",),
    "selection": ("select_policy",),
    "shield": ("Shield",),
    "experiments.demo": ("demo",),
    "trained": ("Trained", "load", "train"),
}
_CONTEXT = {"cost_discount", "criteria", "data", "device", "environment", "listener", "out"}
_CONTEXT |= {"workers"}
"""Keywords of `load`."""
__all__ = [
    "Listener",
    "Shield",
    "Trained",
    "__version__",
    "build_data",
    "calibrate",
    "collect",
    "compare",
    "data_of",
    "demo",
    "estimate",
    "evaluate",
    "evaluate_offline",
    "export",
    "export_data",
    "finetune",
    "import_data",
    "inspect_data",
    "load",
    "register_agent",
    "select_policy",
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


def __dir__() -> list[str]:
    return __all__


def evaluate(path: str | Path, **settings: Any) -> Evaluation:
    """`load(path).evaluate(...)`. The settings are those of `load` (`device`, `data`, `out`,
    `workers`, `listener`) and of `Trained.evaluate` (`limits`, `episodes`, `rule`, `options`,
    `rate`, `shield`, ...)."""
    return _loaded(path, settings).evaluate(**settings)


def evaluate_offline(path: str | Path, **settings: Any) -> OfflineEvaluation:
    """`load(path).evaluate_offline(...)`, with the settings of both."""
    return _loaded(path, settings).evaluate_offline(**settings)


def estimate(path: str | Path, **settings: Any) -> Estimate:
    """`load(path).estimate(...)`, with the settings of both."""
    return _loaded(path, settings).estimate(**settings)


def calibrate(path: str | Path, **settings: Any) -> Calibration:
    """`load(path).calibrate(rate, ...)`, with the settings of both."""
    return _loaded(path, settings).calibrate(**settings)


def sweep(path: str | Path, values: Any = (), **settings: Any) -> Sweep:
    """`load(path).sweep(values, ...)`, with the settings of both."""
    return _loaded(path, settings).sweep(values, **settings)


def export(path: str | Path, out: str | Path, **settings: Any) -> Path:
    """`load(path).export(out, ...)`, with the settings of both."""
    settings.setdefault("device", "cpu")
    return _loaded(path, settings).export(out, **settings)


def finetune(path: str | Path, limits: Any, *, out: Any = None, **settings: Any) -> FineTuned:
    """`load(path).finetune(limits, ...)`, with the settings of both; `out` is the new run's."""
    return _loaded(path, settings).finetune(limits, out=out, **settings)


def _loaded(path: str | Path, settings: dict[str, Any]) -> Trained:
    """The trained agent; takes the keywords of `load` out of the settings."""
    from saformer.trained import load

    return load(path, **{name: settings.pop(name) for name in _CONTEXT & set(settings)})
