"""Checkpoints: one safetensors file that is either whole or absent."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from saformer.files import validated, write_atomically

VERSION, FACTS = 1, "facts"


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
    facts = json.dumps(checkpoint.facts)
    sums = {group: _checksum(content) for group, content in checkpoint.groups.items()}
    sums[FACTS] = hashlib.sha256(facts.encode()).hexdigest()
    metadata = {"version": str(VERSION), FACTS: facts, "sha256": json.dumps(sums)}
    write_atomically(path, save(tensors, metadata))


def load_checkpoint(path: Path, *, groups: tuple[str, ...] | None = None) -> Checkpoint:
    """Read a checkpoint back, or only some of its groups."""
    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint at {path}; train first, or check the path")
    content: dict[str, dict[str, Tensor]] = {group: {} for group in groups or ()}
    remedy = "restore it from a copy, or train again"
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            version = metadata.get("version", "an unknown version")
            if version != str(VERSION):
                known = f"this version reads {VERSION}"
                raise ValueError(f"{path} has checkpoint version {version}; {known}")
            for key in file.keys():  # noqa: SIM118 (not a dictionary)
                group, _, name = key.partition("/")
                if groups is None or group in groups:
                    content.setdefault(group, {})[name] = file.get_tensor(key)
    except SafetensorError as error:
        raise ValueError(f"{path} is truncated or damaged ({error}); {remedy}") from None
    if groups and not all(content.values()):
        raise ValueError(f"{path} is damaged: it lacks {', '.join(groups)}; {remedy}")
    facts = metadata.get(FACTS, "").encode()
    sums = {FACTS: hashlib.sha256(facts).hexdigest()}
    sums |= {group: _checksum(tensors) for group, tensors in content.items()}
    saved = validated(dict[str, str], metadata.get("sha256", "{}").encode(), path, remedy)
    for name in (name for name in sums if saved.get(name, sums[name]) != sums[name]):
        raise ValueError(f"{name} of {path} is not what was saved; {remedy}")
    return Checkpoint(content, validated(dict[str, Any], facts, path, remedy))


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    """Of names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        values = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(values.view(torch.uint8).numpy().data)
    return digest.hexdigest()
