"""Where what was found of a run is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from saformer.runs.export import copy_description
from saformer.runs.pretrained import PREFIX, is_pretrained
from saformer.runs.run import Run, find_run


def findings_of(path: str | Path, out: str | Path | None = None) -> Run:
    """Where the findings of a run go: `out`, else its own folder; nothing is ever written into the
    package."""
    run = find_run(path)
    usual = (
        Path("runs") / str(path).replace(PREFIX, "pretrained-") if is_pretrained(path) else run.path
    )
    kept = Run(out or usual)
    if kept.spec_path.exists() and kept.spec.digest != run.spec.digest:
        raise ValueError(
            f"{kept.path} holds another run, {kept.spec.name}, whose findings would be mistaken "
            f"for those of {path}: "
            "choose another folder with out (--out)"
        )
    return kept


def keep_findings(run: Run, kept: Run, content: dict[str, Any]) -> Path:
    """Write {file name: content}; in another folder than the run's, what the run is stands beside
    it."""
    if kept.path.resolve() != run.path.resolve():
        copy_description(run, kept)
    return [kept.write_json(name, found) for name, found in content.items()][-1]
