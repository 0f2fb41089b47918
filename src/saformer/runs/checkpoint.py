"""Checkpoints: one safetensors file that is either whole or absent."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from saformer.files import write_atomically

VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """Tensors in named groups ("model", "random", ...), and plain facts."""

    groups: dict[str, dict[str, Tensor]]
    facts: dict[str, Any]


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint: at any moment the old or the new one is there, whole."""
    tensors = {
        f"{group}/{name}": tensor.contiguous()
        for group, content in checkpoint.groups.items()
        for name, tensor in content.items()
    }
    metadata = {"version": str(VERSION), "facts": json.dumps(checkpoint.facts)}
    write_atomically(path, save(tensors, metadata))


def load_checkpoint(path: Path, *, groups: tuple[str, ...] | None = None) -> Checkpoint:
    """Read a checkpoint back, or only some of its groups."""
    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint at {path}; train first, or check the path")
    content: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            version = metadata.get("version", "an unknown version")
            if version != str(VERSION):
                known = f"this version reads {VERSION}"
                raise ValueError(f"{path} has checkpoint version {version}; {known}")
            for key in file.keys():  # noqa: SIM118 (not a dictionary)
                group, name = key.split("/", 1)
                if groups is None or group in groups:
                    content.setdefault(group, {})[name] = file.get_tensor(key)
    except SafetensorError as error:
        remedy = "restore it from a copy, or train again"
        raise ValueError(f"{path} is truncated or damaged ({error}); {remedy}") from None
    return Checkpoint(content, json.loads(metadata["facts"]))
