"""A run's directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from saformer.runs import pretrained
from saformer.runs.checkpoint import (
    Checkpoint,
    is_unfinished,
    load_checkpoint,
    save_checkpoint,
    write_atomically,
)
from saformer.runs.provenance import commit
from saformer.runs.spec import RunSpec

FORMAT = 2
"""Of run.json, export.json and calibration.json. Files of version 1 carry no number: their
SaFormers were trained without a rule of their own, and act by the paper's."""


def check_format(path: Path, content: dict[str, Any]) -> int:
    """The format that a file is written in, which must not be a later one than this version's."""
    number: int = content.get("format", 1)
    if number > FORMAT:
        raise ValueError(
            f"{path} was made by a newer version of saformer (format {number}, this one reads "
            f"{FORMAT}): update saformer"
        )
    return number


class Run:
    """Where a run keeps its spec, its metrics, its checkpoint and its results.

    run.json                 what it is            metrics.jsonl      one row per report, as it
    trains checkpoint.safetensors   all of its state      done.json          written last, when
    training has finished evaluation.json, trace.json                    what `evaluate` found
    calibration.json         what `calibrate` found to be kept back of limits, for each violation
    rate episodes.jsonl           of a run that was fine-tuned: one row per episode that it explored
    export.json, weights.safetensors               of an export, in place of metrics and checkpoint
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | Path, spec: RunSpec) -> Run:
        """Begin a run, or return to an unfinished one of the same spec that has no checkpoint
        yet."""
        run = cls(path)
        if run.is_export:
            raise FileExistsError(
                f"{path} holds an export, which cannot be trained; choose another folder with --out"
            )
        if run.spec_path.exists():
            if run.is_done or run.checkpoint_path.exists():
                raise FileExistsError(
                    f"{path} already holds a run; continue it with --resume, or choose another "
                    "folder with --out"
                )
        elif run.path.exists() and any(not is_unfinished(path) for path in run.path.iterdir()):
            raise FileExistsError(
                f"{path} exists and is not a run; choose another folder with --out"
            )
        run.path.mkdir(parents=True, exist_ok=True)
        run.write_json(run.spec_path.name, {"format": FORMAT, **spec.plain()})
        run.metrics_path.unlink(missing_ok=True)
        return run

    @classmethod
    def open_or_create(cls, path: Path, spec: RunSpec, *, resume: bool) -> Run:
        """A new run, or an interrupted one of the same spec to go on with."""
        if not resume:
            return cls.create(path, spec)
        if not cls(path).spec_path.exists():
            raise FileNotFoundError(
                f"there is no run to resume in {path}; leave --resume out to begin one"
            )
        run = cls(path).begun_with(spec)
        return run if run.is_done or run.checkpoint_path.exists() else cls.create(path, spec)

    def begun_with(self, spec: RunSpec) -> Run:
        """This run, if it is there and has this spec."""
        if not self.spec_path.exists():
            raise FileNotFoundError(
                f"there is no run in {self.path}, where another rank began it: all ranks must see "
                "one folder"
            )
        differences = self.spec.differences(spec)
        if differences:
            raise ValueError(
                f"{self.path} was begun with other settings, so it cannot be resumed: "
                f"{'; '.join(differences)}"
            )
        if not self.is_done and self.format < FORMAT:
            raise ValueError(
                f"{self.path} was begun by an older version and cannot be resumed: train again "
                "with another --out"
            )
        return self

    @property
    def spec_path(self) -> Path:
        """What the run is."""
        return self.path / "run.json"

    @property
    def checkpoint_path(self) -> Path:
        """All of its state."""
        return self.path / "checkpoint.safetensors"

    @property
    def weights_path(self) -> Path:
        """Of an export: what was learnt, and nothing that would let it learn on."""
        return self.path / "weights.safetensors"

    @property
    def export_path(self) -> Path:
        """Of an export: how it came about."""
        return self.path / "export.json"

    @property
    def metrics_path(self) -> Path:
        """One JSON row per line."""
        return self.path / "metrics.jsonl"

    @property
    def spec(self) -> RunSpec:
        """All settings that it was begun with."""
        return self._description()[0]

    @property
    def format(self) -> int:
        """By which version it was begun."""
        return self._description()[1]

    def _description(self) -> tuple[RunSpec, int]:
        if not self.spec_path.exists():
            raise FileNotFoundError(f"{self.path} is not a run: it has no {self.spec_path.name}")
        try:
            plain = json.loads(self.spec_path.read_text())
            number = check_format(self.spec_path, plain)
            return RunSpec.from_plain(plain), number
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self.spec_path} is damaged or of another version: {error!r}"
            ) from None

    @property
    def is_export(self) -> bool:
        """Whether this holds the weights alone."""
        return self.export_path.exists() or self.weights_path.exists()

    @property
    def is_done(self) -> bool:
        """Whether training went through to its end."""
        return (self.path / "done.json").exists()

    def mark_done(self, facts: dict[str, Any]) -> None:
        """Say that training has finished; nothing is written to a run's training after this."""
        self.write_json("done.json", {**facts, "commit": commit()})

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint."""
        save_checkpoint(self.checkpoint_path, checkpoint)

    def load(self, *, groups: tuple[str, ...] | None = None) -> Checkpoint:
        """The latest checkpoint, checked to belong to this run."""
        if self.is_export:
            raise ValueError(
                f"{self.path} is an export: it holds weights, and no optimiser state to go on "
                "with. Take the run that "
                f"it was made from, or train one: saformer train {self.spec.task_name} --agent "
                f"{self.spec.agent}"
            )
        checkpoint = load_checkpoint(self.checkpoint_path, groups=groups)
        written_by = checkpoint.facts.get("spec")
        if written_by != self.spec.digest:
            raise ValueError(
                f"{self.checkpoint_path} belongs to another run ({written_by}), not to this one "
                f"({self.spec.digest}): "
                "it was copied here, or run.json was changed"
            )
        return checkpoint

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Add one row."""
        with self.metrics_path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def metrics(self) -> Iterator[dict[str, Any]]:
        """All rows so far."""
        return self.read_rows(self.metrics_path.name)

    def read_rows(self, name: str) -> Iterator[dict[str, Any]]:
        """The rows of a file that is written line by line; a last line that was cut short is passed
        over."""
        path = self.path / name
        if not path.exists():
            return
        for line in path.read_text().splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                return

    def rewind_metrics(self, update: int) -> None:
        """Forget rows after this update: they will be made again."""
        kept = [json.dumps(row) for row in self.metrics() if row["update"] <= update]
        write_atomically(self.metrics_path, "".join(f"{line}\n" for line in kept))

    def write_json(self, name: str, content: Any) -> Path:
        """Keep a result beside the run."""
        path = self.path / name
        write_atomically(path, json.dumps(content, indent=2))
        return path

    def read_json(self, name: str) -> Any:
        """A result kept earlier."""
        path = self.path / name
        if not path.exists():
            raise FileNotFoundError(f"there is no {name} in {self.path}")
        return json.loads(path.read_text())


def find_run(path: str | Path) -> Run:
    """The run or export in this folder, or the one that `pretrained:NAME` stands for."""
    pretrained.check_is_there(path)
    return Run(pretrained.folder_of(path))
