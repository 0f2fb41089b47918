"""Logs as a source of trajectories."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.criteria import logged
from saformer.data.logs.files import SUFFIXES, LogBlock, find_files, header_of, read_log
from saformer.data.logs.mapping import LogMapping
from saformer.data.logs.survey import LogSurvey, survey
from saformer.data.sources.rows import Cutter, Rows
from saformer.data.sources.source import EnvironmentHints, Progress, Source


@dataclass(frozen=True)
class Logs:
    """Log files, how to read them, and what a survey says of them."""

    files: tuple[Path, ...]
    mapping: LogMapping  # resolved
    survey: LogSurvey

    def source(self, *, drop_faulty: bool = False) -> Source:
        """The trajectories. A log with problems is refused unless it may drop faulty episodes."""
        mapping, faulty, lengths = self.mapping, self.survey.faulty, self.survey.lengths
        problems = self.survey.problems
        if problems and not drop_faulty:
            raise ValueError(
                f"the log has {len(problems)} problems: {'; '.join(problems)}. Mend it, or leave "
                f"the {len(faulty)} faulty episodes of {len(lengths)} out with --drop-faulty"
            )
        dropped = sum(lengths[index] for index in faulty)
        if dropped == self.survey.num_rows:
            raise ValueError(f"every episode is faulty: {'; '.join(problems)}")
        cutter = Cutter(ends_are_complete=not mapping.marks_ends)
        notes = [f"{len(faulty)} faulty episodes ({dropped} steps) were left out"] if faulty else []
        bounds, others = (mapping.action_low, mapping.action_high), len(self.files) - 1
        name = self.files[0].name + (f" and {others} more" if others else "")
        return Source(
            lambda: cutter.cut(self._rows()),
            self.survey.num_rows - dropped,
            EnvironmentHints(mapping.environment, mapping.horizon, *bounds),
            {"source": name, "layout": "log", "columns": list(mapping.read)},
            criteria=(logged(mapping.cost).name if mapping.cost else "torque",),
            notes=lambda: [*notes, *self.survey.warnings],
        )

    def _rows(self) -> Iterator[Rows]:
        faulty = np.array(sorted(self.survey.faulty), dtype=np.int64)
        for block in read_log(self.files, self.mapping):
            rows, is_sound = _rows(block, self.mapping), ~np.isin(block.index, faulty)
            if is_sound.all():
                yield rows
            elif is_sound.any():
                yield rows[is_sound]


def is_log(text: str) -> bool:
    """Whether this looks like the name of a log, or of many."""
    return Path(text).suffix.lower() in SUFFIXES


def open_logs(
    patterns: Sequence[str | Path],
    mapping: LogMapping | None = None,
    *,
    progress: Progress | None = None,
) -> Logs:
    """Find log files, resolve their columns, and survey them. Nothing is written."""
    files, mapping = find_files(patterns), mapping or LogMapping()
    resolved = mapping.resolve(header_of(files[0], mapping))
    for file in files[1:]:
        missing = set(resolved.read) - set(header_of(file, mapping))
        if missing:
            names = ", ".join(sorted(missing))
            raise ValueError(f"{file} has no column {names}, which {files[0]} has")
    return Logs(tuple(files), resolved, survey(files, resolved, progress=progress))


def _rows(block: LogBlock, mapping: LogMapping) -> Rows:
    def stacked(names: Sequence[str]) -> NDArray[Any]:
        with np.errstate(over="ignore"):  # what is too large lies in an episode that is left out
            return np.stack([block.values[name] for name in names], axis=1).astype(np.float32)

    return Rows(
        stacked(mapping.state),
        stacked(mapping.action),
        block.values[mapping.reward],
        block.terminated,
        block.truncated,
        block.begins,
        stacked(mapping.next_state) if mapping.next_state else None,
        {name: block.values[name] for name in mapping.named},
    )
