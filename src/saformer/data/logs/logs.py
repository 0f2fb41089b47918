"""Logs as a source of trajectories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saformer.criteria import logged
from saformer.data.logs.episodes import Segmenter
from saformer.data.logs.files import SUFFIXES, LogBlock, find_files, header_of, read_blocks
from saformer.data.logs.mapping import LogMapping
from saformer.data.logs.survey import LogSurvey, survey
from saformer.data.sources.rows import Cutter, Rows
from saformer.data.sources.source import EnvironmentHints, Progress, Source


@dataclass(frozen=True)
class Logs:
    """Log files that were surveyed: what was found, and how to read them."""

    files: tuple[Path, ...]
    mapping: LogMapping
    """resolved"""
    survey: LogSurvey

    def source(self, *, drop_faulty: bool = False) -> Source:
        """The trajectories. A log with problems is refused, unless the episodes they lie in may be
        dropped."""
        problems = self.survey.problems
        if problems and not drop_faulty:
            raise ValueError(
                f"the log has {len(problems)} problems: {'; '.join(problems)}. Mend it, or leave "
                "the "
                f"{len(self.survey.faulty)} faulty episodes of {len(self.survey.lengths)} out "
                "with --drop-faulty"
            )
        faulty = self.survey.faulty
        dropped = sum(self.survey.lengths[number] for number in faulty)
        if dropped == self.survey.num_rows:
            raise ValueError(f"every episode is faulty: {'; '.join(problems)}")
        cutter = Cutter(ends_are_complete=not self.mapping.marks_ends)
        notes = [f"{len(faulty)} faulty episodes ({dropped} steps) were left out"] if faulty else []
        return Source(
            lambda: cutter.cut(self._rows()),
            self.survey.num_rows - dropped,
            self._hints(),
            {"source": _described(self.files), "layout": "log", "columns": list(self.mapping.read)},
            criteria=(logged(self.mapping.cost).name if self.mapping.cost else "torque",),
            notes=lambda: [*notes, *self.survey.warnings],
        )

    def _rows(self) -> Iterator[Rows]:
        segmenter = Segmenter(self.mapping)
        faulty = np.array(sorted(self.survey.faulty), dtype=np.int64)
        for file in self.files:
            for block in read_blocks(file, self.mapping):
                begins = segmenter.begins(block)
                number = segmenter.num_episodes - int(begins.sum()) - 1 + np.cumsum(begins)
                rows = _rows(block, begins, self.mapping)
                keep = ~np.isin(number, faulty)
                if keep.all():
                    yield rows
                elif keep.any():
                    yield rows[keep]

    def _hints(self) -> EnvironmentHints:
        return EnvironmentHints(
            self.mapping.environment,
            self.mapping.horizon,
            self.mapping.action_low,
            self.mapping.action_high,
        )


def is_log(text: str) -> bool:
    """Whether this looks like the name of a log, or of many."""
    return Path(text).suffix.lower() in SUFFIXES


def open_logs(
    patterns: Sequence[str | Path],
    mapping: LogMapping | None = None,
    *,
    progress: Progress | None = None,
) -> Logs:
    """Find log files, say which columns are what, and survey them. Nothing is written."""
    files = find_files(patterns)
    asked = mapping or LogMapping()
    resolved = asked.resolve(header_of(files[0], asked))
    for file in files[1:]:
        missing = set(resolved.read) - set(header_of(file, asked))
        if missing:
            raise ValueError(
                f"{file} has no column {', '.join(sorted(missing))}, which {files[0]} has"
            )
    return Logs(tuple(files), resolved, survey(files, resolved, progress=progress))


def _rows(block: LogBlock, begins: NDArray[Any], mapping: LogMapping) -> Rows:
    def stacked(names: Sequence[str]) -> NDArray[Any]:
        with np.errstate(over="ignore"):  # what is too large lies in an episode that is left out
            return np.stack([block.values[name] for name in names], axis=1).astype(np.float32)

    return Rows(
        stacked(mapping.state),
        stacked(mapping.action),
        block.values[mapping.reward],
        block.terminated,
        block.truncated,
        begins,
        stacked(mapping.next_state) if mapping.next_state else None,
        {name: block.values[name] for name in mapping.kept},
    )


def _described(files: Sequence[Path]) -> str:
    return files[0].name if len(files) == 1 else f"{files[0].name} and {len(files) - 1} more"
