"""Logs as a source of trajectories."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from saformer.data.logs.blocks import LogBlock, column_vectors, read_log
from saformer.data.logs.cells import time_style
from saformer.data.logs.columns import LogColumns
from saformer.data.logs.files import LogFile, Sample, find_files, sample_of
from saformer.data.logs.mapping import LogMapping
from saformer.data.logs.survey import LogSurvey, survey
from saformer.data.shown import counted
from saformer.data.sources.rows import Cutter, Rows
from saformer.data.sources.source import Progress, Source
from saformer.data.store import ACTION_NAMES


@dataclass(frozen=True)
class Logs:
    """Log files, how to read them, and what a survey says of them."""

    files: tuple[LogFile, ...]
    columns: LogColumns
    survey: LogSurvey

    @property
    def criteria(self) -> tuple[str, ...]:
        """That the log is judged by, over state, action and the columns that are kept."""
        return self.columns.criteria

    def source(self, *, drop_faulty: bool = False) -> Source:
        """The trajectories. A log with problems is refused unless it may drop faulty episodes."""
        how, lengths = self.columns.how, self.survey.lengths
        problems, left_out = self.survey.problems, self.survey.left_out
        others = len(self.files) - 1
        name = self.files[0].name + (f" and {others} more" if others else "")
        if problems and not drop_faulty:
            count = counted(len(problems), "problem")
            said = f"the log has {count}: {'; '.join(problems)}. {self.survey.remedy}"
            raise ValueError(f"{name}: {said}")
        dropped = sum(lengths[index] for index in left_out)
        if dropped == self.survey.num_rows:
            reasons = "; ".join(problems) or "none is whole"
            raise ValueError(f"{name}: every episode is faulty: {reasons}")
        cutter = Cutter(ends_are_complete=how.cuts or not self.columns.marks_ends)
        return Source(
            lambda: cutter.cut(self._rows()),
            self.survey.num_rows - dropped,
            replace(how.known, action_levels=self.survey.levels()),
            {"source": name, "layout": "log", **self._columns()},
            criteria=self.criteria,
            notes=lambda: [*self._notes(), *self.survey.warnings],
        )

    def _notes(self) -> Iterator[str]:
        faulty, lengths = self.survey.faulty, self.survey.lengths
        if faulty:
            steps = counted(sum(lengths[index] for index in faulty), "step")
            why = ", ".join(
                f"{count} because {why}" for why, count in Counter(faulty.values()).items()
            )
            yield f"left out: {counted(len(faulty), 'faulty episode')} ({steps}), {why}"
        pairs = zip(self.columns.action, self.survey.levels(), strict=False)
        for name, levels in pairs:
            if levels:
                listed = ", ".join(f"{level:g}" for level in levels)
                yield (
                    f"action {name!r} was logged at {listed} alone: whatever is chosen is put on "
                    "the nearest of these before it is verified or costed, unless --discrete "
                    "names other columns, or none"
                )

    def _columns(self) -> dict[str, list[str]]:
        return {"columns": list(self.columns.read), ACTION_NAMES: list(self.columns.action)}

    def _rows(self) -> Iterator[Rows]:
        left_out = np.array(sorted(self.survey.left_out), dtype=np.int64)
        for block in read_log(self.files, self.columns):
            rows, is_sound = _rows(block, self.columns), ~np.isin(block.index, left_out)
            if is_sound.all():
                yield rows
            elif is_sound.any():
                yield rows[is_sound]


def open_logs(
    patterns: Sequence[Any],
    mapping: LogMapping | None = None,
    *,
    criteria: Sequence[str] = (),
    progress: Progress | None = None,
) -> Logs:
    """Find log files, resolve their columns, and survey them. Nothing is written."""
    files, mapping = find_files(patterns), mapping or LogMapping()
    sample = sample_of(files[0], mapping)
    try:
        columns = LogColumns.of(_guessed(mapping, sample), sample.names, criteria)
    except ValueError as error:
        raise ValueError(f"{files[0]}: {error}") from None
    for name in set(mapping.discrete or ()) - {*columns.action, "none"}:
        raise ValueError(f"discrete names {name!r}, which is no action column")
    for file in files[1:]:
        missing = set(columns.read) - set(sample_of(file, mapping, num_rows=10).names)
        if missing:
            names = ", ".join(sorted(missing))
            raise ValueError(f"{file} has no column {names}, which {files[0]} has")
    return Logs(tuple(files), columns, survey(files, columns, progress=progress))


def _guessed(mapping: LogMapping, sample: Sample) -> LogMapping:
    """With what the first rows show of decimal points and dates."""
    if mapping.decimal is None:
        mapping = replace(mapping, decimal=sample.decimal)
    if mapping.time in sample.header and mapping.time_format is None:
        style = time_style(sample.times(mapping.time, mapping.time_of_day), mapping.time)
        mapping = replace(mapping, time_format=style)
    return mapping


def _rows(block: LogBlock, columns: LogColumns) -> Rows:
    return Rows(
        column_vectors(block, columns.state),
        column_vectors(block, columns.action),
        block.values[columns.reward],
        block.terminated,
        block.truncated,
        block.begins,
        column_vectors(block, columns.next_state) if columns.next_state else None,
        {name: block.values[name] for name in columns.named},
    )
