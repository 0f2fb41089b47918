"""A run's directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from saformer.files import is_unfinished, write_atomically
from saformer.runs import pretrained
from saformer.runs.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from saformer.runs.provenance import commit
from saformer.runs.spec import RunSpec


class Run:
    """A run's folder.

    run.json                    what it is
    metrics.jsonl               one row per report, as it trains
    checkpoint.safetensors      all of its state
    done.json                   written last, when training has finished
    evaluation.json, trace.json from `evaluate`
    calibration.json            from `calibrate`: shares of limits to hold back, by violation rate
    episodes.jsonl              of a run that was fine-tuned: one row per explored episode
    export.json, weights.safetensors   of an export, instead of metrics and checkpoint
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.spec_path = self.path / "run.json"
        self.checkpoint_path = self.path / "checkpoint.safetensors"
        self.weights_path = self.path / "weights.safetensors"
        self.export_path = self.path / "export.json"
        self.metrics_path = self.path / "metrics.jsonl"
        self.failure = ""
        """why `train_together` left it unfinished"""

    @classmethod
    def create(cls, path: str | Path, spec: RunSpec) -> Run:
        """Begin a run, or return to one of the same spec that has no checkpoint yet."""
        run = cls(path)
        if run.is_export:
            raise FileExistsError(
                f"{path} holds an export, which cannot be trained; choose another folder with --out"
            )
        is_run = run.spec_path.exists()
        if is_run and (run.is_done or run.checkpoint_path.exists()):
            raise FileExistsError(
                f"{path} already holds a run; continue it with --resume, or choose another folder "
                "with --out"
            )
        if not is_run and any(not is_unfinished(file) for file in run.path.glob("*")):
            raise FileExistsError(
                f"{path} exists and is not a run; choose another folder with --out"
            )
        run.path.mkdir(parents=True, exist_ok=True)
        write_atomically(run.spec_path, json.dumps(spec.plain(), indent=2))
        run.metrics_path.unlink(missing_ok=True)
        return run

    @property
    def spec(self) -> RunSpec:
        if not self.spec_path.exists():
            raise FileNotFoundError(f"{self.path} is not a run: it has no {self.spec_path.name}")
        try:
            return RunSpec.from_plain(json.loads(self.spec_path.read_text()))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            damage = f"{self.spec_path} is damaged or of another version: {error!r}"
            raise ValueError(damage) from None

    @property
    def is_export(self) -> bool:
        return self.export_path.exists() or self.weights_path.exists()

    @property
    def is_done(self) -> bool:
        """Whether training went through to its end."""
        return (self.path / "done.json").exists()

    def mark_done(self, facts: dict[str, Any]) -> None:
        """Say that training has finished; nothing is written to a run's training after this."""
        self.write_json("done.json", {**facts, "commit": commit()})

    def save(self, checkpoint: Checkpoint) -> None:
        save_checkpoint(self.checkpoint_path, checkpoint)

    def load(self, *, groups: tuple[str, ...] | None = None) -> Checkpoint:
        """The latest checkpoint, checked to belong to this run."""
        if self.is_export:
            raise ValueError(
                f"{self.path} is an export: it holds weights, and no optimiser state to go on "
                "with. Take the run that it was made from, or train one: saformer train "
                f"{self.spec.task_name} --agent {self.spec.agent}"
            )
        checkpoint = load_checkpoint(self.checkpoint_path, groups=groups)
        written_by = checkpoint.facts.get("spec")
        if written_by != self.spec.digest:
            raise ValueError(
                f"{self.checkpoint_path} belongs to another run ({written_by}), not to this one "
                f"({self.spec.digest}): it was copied here, or run.json was changed"
            )
        return checkpoint

    def append_metrics(self, row: dict[str, Any]) -> None:
        with self.metrics_path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def metrics(self) -> Iterator[dict[str, Any]]:
        return self.read_rows(self.metrics_path.name)

    def read_rows(self, name: str) -> Iterator[dict[str, Any]]:
        """The rows of a file that is written line by line; a last one cut short is none."""
        path = self.path / name
        if not path.exists():
            return
        for line in path.read_text().splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                return

    def rewind_metrics(self, update: int) -> None:
        """Forget rows after this update: training makes them again."""
        rows = [row for row in self.metrics() if row["update"] <= update]
        write_atomically(self.metrics_path, "".join(f"{json.dumps(row)}\n" for row in rows))

    def write_json(self, name: str, content: Any) -> Path:
        path = self.path / name
        write_atomically(path, json.dumps(content, indent=2))
        return path

    def read_json(self, name: str) -> Any:
        path = self.path / name
        if not path.exists():
            raise FileNotFoundError(f"there is no {name} in {self.path}")
        return json.loads(path.read_text())


def find_run(path: str | Path) -> Run:
    """The run or export in this folder, or the one that `pretrained:NAME` stands for."""
    pretrained.check_is_there(path)
    return Run(pretrained.folder_of(path))
