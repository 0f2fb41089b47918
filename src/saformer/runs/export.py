"""Exports: what a run has learnt, without the data and the state to go on learning.

run.json              what the run is
done.json             how its training ended
weights.safetensors   the model, and what each stored trajectory earned and cost (totals)
calibration.json      the run's calibrations, if they were made with these very weights
export.json           how it was trained, its environment, the precision and checksum of the weights
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saformer.files import publish, read_json, unfinished_folder, validated, write_atomically
from saformer.runs.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from saformer.runs.run import FORMAT, Run, check_format

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
"""The precisions of matrices."""
EXPORTS, REMEDY = "exports", "copy the export again"


@dataclass(frozen=True)
class ExportFacts:
    """What is read of export.json; the rest is for people."""

    sha256: str
    environment: dict[str, Any]
    dtype: str = ""
    left_calibrations: tuple[float, ...] = ()


def narrowed(
    weights: Mapping[str, Tensor], parameters: Collection[str], dtype: str
) -> dict[str, Tensor]:
    """The weights with matrices among `parameters` in this precision.

    Vectors (biases, gains, multipliers) and buffers (statistics, bounds, targets) stay as they are:
    they are few, and rounding a statistic would move every quantity that it scales.
    """
    return {
        name: value.to(DTYPES[dtype]) if name in parameters and value.ndim > 1 else value
        for name, value in weights.items()
    }


def widened(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights in float32, whatever their precision in the file."""
    return {n: w.float() if w.dtype == torch.bfloat16 else w for n, w in weights.items()}


def write_export(
    path: Path,
    run: Run,
    content: Mapping[str, dict[str, Tensor]],
    facts: dict[str, Any],
    findings: Mapping[str, Any] | None = None,
) -> Run:
    """A new folder, all of it or nothing; findings are by their files' names."""
    with unfinished_folder(path, EXPORTS) as folder:
        export = Run(folder)
        copy_description(run, export)
        save_checkpoint(export.weights_path, Checkpoint(dict(content), {"spec": run.spec.digest}))
        described = {"format": FORMAT, **facts, "sha256": _digest(export.weights_path)}
        for name, finding in {export.export_path.name: described, **(findings or {})}.items():
            export.write_json(name, finding)
        publish(folder, path, EXPORTS)
    return Run(path)


def copy_description(run: Run, to: Run) -> None:
    """Copy all that a report reads beside findings: what a run is, and how its training ended."""
    to.path.mkdir(parents=True, exist_ok=True)
    for name in (run.spec_path.name, "done.json"):
        if (run.path / name).exists():
            write_atomically(to.path / name, (run.path / name).read_bytes())


def read_model(run: Run) -> dict[str, Tensor]:
    """The weights of a run or an export, in float32."""
    model = (
        read_groups(run, "model") if run.is_export else run.load(groups=("model",)).groups["model"]
    )
    for name, weights in model.items():
        if weights.isnan().any():
            remedy = "restore a copy, or train again"
            raise ValueError(f"the weights in {run.path} are damaged ({name} holds NaN): {remedy}")
    return widened(model)


def read_groups(run: Run, group: str) -> dict[str, Tensor]:
    """One group of an export's tensors, checked to be what was exported."""
    _check_is_there(run.weights_path)
    checkpoint = load_checkpoint(run.weights_path, groups=(group,))
    is_whole = _digest(run.weights_path) == read_facts(run)["sha256"]
    if not is_whole or checkpoint.facts.get("spec") != run.spec.digest:
        raise ValueError(
            f"{run.weights_path} is not what was exported with {run.export_path.name} and "
            f"{run.spec_path.name}: something was damaged or exchanged; copy the whole folder again"
        )
    return checkpoint.groups[group]


def read_facts(run: Run) -> dict[str, Any]:
    """How an export came about, and what of the data's environment it needs."""
    _check_is_there(run.export_path)
    facts: dict[str, Any] = read_json(run.export_path, dict[str, Any], REMEDY)
    check_format(run.export_path, facts)
    validated(ExportFacts, facts, run.export_path, REMEDY)
    return facts


def check_whole(run: Run) -> str:
    """Read all tensors of a run or an export, which holds them against their checksums; says what
    they are."""
    if run.is_export:
        groups = {group: read_groups(run, group) for group in ("model", "totals")}
    else:
        groups = run.load().groups
    return f"{sum(map(len, groups.values()))} tensors of {', '.join(groups)}"


def policy_identity(run: Run, weights: Mapping[str, Tensor]) -> str:
    """Equal for the same run with the same weights, those of its rule too, exported or not."""
    digest = hashlib.sha256(f"{run.spec.digest} {FORMAT}".encode())
    for name, value in sorted(weights.items()):
        digest.update(name.encode() + value.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _check_is_there(path: Path) -> None:
    if not path.exists():
        missing = f"{path.parent} is not a whole export: it has no {path.name}"
        raise FileNotFoundError(f"{missing}; copy it again")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
