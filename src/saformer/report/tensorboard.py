"""Rows of metrics, as TensorBoard shows them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def tensorboard_writer() -> Callable[[Path, dict[str, Any]], None]:
    """Writes (run, row) into the run's folder."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("tensorboard needs TensorBoard: pip install 'saformer[track]'") from None
    writers: dict[Path, SummaryWriter] = {}

    def write(run: Path, row: dict[str, Any]) -> None:
        writer = writers.setdefault(run, SummaryWriter(str(run / "tensorboard")))
        for name, value in row.items():
            if isinstance(value, float):
                writer.add_scalar(name, value, row["update"])
        for limit, verdict in row.get("evaluation", {}).items():
            writer.add_scalar(f"evaluation/{limit}/return", verdict["return"], row["update"])
            writer.add_scalar(f"evaluation/{limit}/cost", verdict["cost"][0], row["update"])
        writer.flush()

    return write
