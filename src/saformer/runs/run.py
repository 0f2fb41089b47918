"""A run's directory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from saformer.files import (
    append_line,
    is_unfinished,
    read_json,
    validated,
    write_atomically,
    write_json,
)
from saformer.runs import pretrained
from saformer.runs.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from saformer.runs.lock import LOCK, alone_in
from saformer.runs.metrics import MetricsRow
from saformer.runs.provenance import commit
from saformer.runs.spec import RunSpec

REMEDY = "restore it from a copy, or make it again"
EVALUATIONS, RECORDINGS, LONGEST_NAME = "evaluations", "recordings", 80
FORMAT = 2
"""Of run.json, export.json and calibration.json. Files of version 1 carry no number: their
SaFormers were trained without a rule of their own, and act by the paper's."""


def check_format(path: Path, content: dict[str, Any]) -> int:
    """The format that a file is written in, which must not be a later one than this version's."""
    number = content.get("format", 1)
    if not isinstance(number, int):
        raise ValueError(f"{path} is damaged (format: {number!r} is no number); {REMEDY}")
    if number > FORMAT:
        formats = f"(format {number}, this one reads {FORMAT})"
        raise ValueError(
            f"{path} was made by a newer version of saformer {formats}: update saformer"
        )
    return number


class Run:
    """A run's folder.

    run.json                    what it is
    metrics.jsonl               one row per report, as it trains
    checkpoint.safetensors      all of its state
    done.json                   written last, when training has finished
    evaluation.json, trace.json from the latest `evaluate`
    evaluations/                all evaluations, by limits, rule and time
    recordings/                 episodes to watch, from the latest `evaluate --record`
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
        self._is_alone = False
        self.failure = ""  # why `train_together` left it unfinished

    @classmethod
    def create(cls, path: str | Path, spec: RunSpec) -> Run:
        """Begin a run and leave it, as one that is killed before its first checkpoint does."""
        run = cls(path)
        with run.writing(spec):
            return run

    @contextmanager
    def writing(self, spec: RunSpec, *, resume: bool = False) -> Iterator[None]:
        """Begin this run, or go on with an interrupted one of the same spec, as the only one who
        writes to it; a finished one is left as it is."""
        self._check_can_be_written(spec, resume=resume)  # a folder that is refused stays untouched
        if resume and self.is_done:
            yield
            return
        self.path.mkdir(parents=True, exist_ok=True)
        with self.alone():
            self._check_can_be_written(spec, resume=resume)
            if not self.is_done and not self.checkpoint_path.exists():
                self.write_json(self.spec_path.name, {"format": FORMAT, **spec.plain()})
                self.metrics_path.unlink(missing_ok=True)
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other writers out; who has done so may do it again."""
        with nullcontext() if self._is_alone else alone_in(self.path):
            before, self._is_alone = self._is_alone, True
            try:
                yield
            finally:
                self._is_alone = before

    def _check_can_be_written(self, spec: RunSpec, *, resume: bool) -> None:
        another, is_run = "choose another folder with --out", self.spec_path.exists()
        if resume and not is_run:
            missing = f"there is no run to resume in {self.path}"
            raise FileNotFoundError(f"{missing}; leave --resume out to begin one")
        if self.is_export:
            export = f"{self.path} holds an export, which cannot be trained"
            raise FileExistsError(f"{export}; {another}")
        if resume:
            self.begun_with(spec)
        elif is_run and (self.is_done or self.checkpoint_path.exists()):
            raise FileExistsError(
                f"{self.path} already holds a run; continue it with --resume, or {another}"
            )
        others = (file for file in self.path.glob("*") if file.name != LOCK)
        if not is_run and not all(map(is_unfinished, others)):
            raise FileExistsError(f"{self.path} exists and is not a run; {another}")

    def begun_with(self, spec: RunSpec) -> Run:
        """This run, if it is there and has this spec."""
        if not self.spec_path.exists():
            missing = f"there is no run in {self.path}, where another rank began it"
            raise FileNotFoundError(f"{missing}: all ranks must see one folder")
        differences = self.spec.differences(spec)
        if differences:
            changed = f"{self.path} was begun with other settings, so it cannot be resumed"
            raise ValueError(f"{changed}: {'; '.join(differences)}")
        if not self.is_done and self.format < FORMAT:
            older = f"{self.path} was begun by an older version and cannot be resumed"
            raise ValueError(f"{older}: train again with another --out")
        return self

    @property
    def spec(self) -> RunSpec:
        """All settings that it was begun with."""
        return self._description()[0]

    @property
    def format(self) -> int:
        return self._description()[1]

    def _description(self) -> tuple[RunSpec, int]:
        if not self.spec_path.exists():
            raise FileNotFoundError(f"{self.path} is not a run: it has no {self.spec_path.name}")
        plain = read_json(self.spec_path, dict[str, Any], REMEDY)
        number = check_format(self.spec_path, plain)
        plain.pop("format", None)
        return validated(RunSpec, plain, self.spec_path, REMEDY), number

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
        append_line(self.metrics_path, json.dumps(row))

    def metrics(self) -> Iterator[dict[str, Any]]:
        return self.read_rows(self.metrics_path.name, MetricsRow)

    def read_rows(self, name: str, schema: Any = dict[str, Any]) -> Iterator[Any]:
        """The rows of a file that is written line by line; a last one cut short is none."""
        path = self.path / name
        if not path.exists():
            return
        *lines, _ = path.read_bytes().split(b"\n")
        for line in lines:  # what follows the last line's end was cut short
            yield validated(schema, line, path, REMEDY)

    def rewind_metrics(self, update: int) -> None:
        """Forget rows after this update: training makes them again."""
        rows = [row for row in self.metrics() if row["update"] <= update]
        write_atomically(self.metrics_path, "".join(f"{json.dumps(row)}\n" for row in rows))

    def write_json(self, name: str, content: dict[str, Any]) -> Path:
        path = self.path / name
        write_json(path, content)
        return path

    def keep(self, words: Iterable[str], content: Any) -> Path:
        """Write an evaluation beside earlier ones: evaluations/WORDS-TIME.json."""
        what = re.sub(r"[^\w.+-]", "+", "-".join(words))[:LONGEST_NAME]
        name = f"{what}-{datetime.now():%Y%m%d-%H%M%S-%f}"
        (self.path / EVALUATIONS).mkdir(exist_ok=True)
        return self.write_json(f"{EVALUATIONS}/{name}.json", content)

    def keep_page(self, page: Path) -> None:
        """Copy the page of the latest evaluation to where that very one is kept."""
        latest = (self.path / "evaluation.json").read_bytes()
        kept = (self.path / EVALUATIONS).glob("*.json")
        for evaluation in sorted(kept, key=lambda file: file.stat().st_mtime, reverse=True):
            if evaluation.read_bytes() == latest:
                write_atomically(evaluation.with_suffix(".html"), page.read_bytes())
                return

    def recordings(self) -> list[Path]:
        """Episodes to watch that were made since the latest evaluation."""
        judged = (self.path / "evaluation.json").stat().st_mtime
        files = (self.path / RECORDINGS).glob("*.*")
        return sorted(file for file in files if file.stat().st_mtime >= judged)

    def read_json(self, name: str, schema: Any = dict[str, Any]) -> Any:
        """What a file of findings holds, if it has what this type says; it may have more."""
        path = self.path / name
        if not path.exists():
            raise FileNotFoundError(f"there is no {name} in {self.path}")
        content = read_json(path, dict[str, Any], REMEDY)
        validated(schema, content, path, REMEDY)
        return content


def find_run(path: str | Path) -> Run:
    """The run or export in this folder, or the one that `pretrained:NAME` stands for."""
    pretrained.check_is_there(path)
    return Run(pretrained.folder_of(path))


def latest_run(task: str, runs: str | Path = "runs") -> Path:
    """The folder of the latest run on this task; those without a checkpoint are passed over."""
    specs = [spec for spec in Path(runs).glob("*/run.json") if _is_of(Run(spec.parent), task)]
    if not specs:
        raise FileNotFoundError(
            f"no run under {runs} was trained on {task}: train first, or give the run's folder"
        )
    return max(specs, key=lambda spec: spec.stat().st_mtime).parent


def _is_of(run: Run, task: str) -> bool:
    try:
        return run.checkpoint_path.exists() and run.spec.task == task
    except ValueError:  # another version's, or damaged: whose data it had cannot be said
        return False
