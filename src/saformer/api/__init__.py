"""The Python interface. The command line is a thin layer over these functions."""

from saformer.api.calibrating import calibrate
from saformer.api.datasets import build_data, export_data, import_data, inspect_data
from saformer.api.demonstration import demo
from saformer.api.exporting import export
from saformer.api.finetuning import finetune
from saformer.api.listener import Listener
from saformer.api.run_data import data_of
from saformer.api.runs import DEFAULT_LIMITS, evaluate, evaluate_offline, load
from saformer.api.training import train, train_together
from saformer.api.trials import sweep
from saformer.data.limits import Limit
from saformer.shield import Shield

__all__ = [
    "DEFAULT_LIMITS",
    "Limit",
    "Listener",
    "Shield",
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
    "load",
    "sweep",
    "train",
    "train_together",
]
