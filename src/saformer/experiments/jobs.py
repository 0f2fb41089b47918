"""Jobs that engines carry out, and the rows that come back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from saformer.experiments.plan import Judging, Setting, Training

Row = dict[str, Any]
KEY = ("dataset", "agent", "cost_discount", "seed", "criteria", "variant")
"""Of a row; a kind of rows that lacks a field has None."""
Files = dict[str, bytes]
"""By their paths within the folder of runs."""


@dataclass(frozen=True)
class Gathered:
    """Rows by kind ("data", "verdicts", "curves"), failures, files of runs on another machine."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    failed: list[dict[str, str]] = field(default_factory=list)
    files: Files = field(default_factory=dict)

    def add(self, other: Gathered) -> None:
        for kind, rows in other.rows.items():
            self.rows.setdefault(kind, []).extend(rows)
        self.failed.extend(other.failed)


@dataclass(frozen=True)
class DataJob:
    """A dataset to make, if it is not there yet, and to describe."""

    setting: Setting
    dataset: str
    workers: int | None = None

    @property
    def name(self) -> str:
        return f"data of {self.dataset}"

    def failures(self, why: str) -> list[dict[str, str]]:
        return [{"what": self.name, "why": why, "dataset": self.dataset, "agent": ""}]


@dataclass(frozen=True)
class RunJob:
    """Runs to train in one call, and to judge."""

    setting: Setting
    trainings: tuple[Training, ...]  # of one pack
    judgings: tuple[Judging, ...]
    curves: tuple[Training, ...]
    runs: str  # the folder of their folders
    device: str = "auto"
    workers: int | Literal["auto"] = "auto"  # that step environments
    threads: int | None = None  # that compute; None: as many as torch likes
    sign: str = ""  # a file by which another machine knows the folder of runs as the same one
    files: Files | None = None  # of the runs so far, for a machine that has a folder of its own

    @property
    def name(self) -> str:
        first, more = self.trainings[0], len(self.trainings) - 1
        return first.name + (f" and {more} more" if more else "")

    def failures(self, why: str) -> list[dict[str, str]]:
        return [failure_of(training, why) for training in self.trainings]


def failure_of(training: Training, why: str, judging: Judging | None = None) -> dict[str, str]:
    """Of a whole run, or of one way to judge it."""
    about = {"dataset": training.dataset, "agent": training.agent}
    if judging is None:
        return {"what": training.name, "why": why, **about}
    variant = f" ({judging.variant})" if judging.variant else ""
    what = f"evaluation{variant} of {training.name}"
    return {"what": what, "why": why, **about, "variant": judging.variant}
