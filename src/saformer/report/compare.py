"""Runs held against each other: one table, curves, a page, CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from saformer.files import write_atomically
from saformer.report.figure import Line, Panel, line_panels
from saformer.report.findings import EvaluationFile
from saformer.report.page import MARK_NOTE, Page, Part, Picture, Remark, Sheet
from saformer.report.table import (
    PROMISED,
    Cell,
    nothing_cells,
    numbers,
    rendered,
    terminal_table,
    verdict_cells,
)
from saformer.runs.run import EVALUATIONS, Run, find_run

ABOUT = ("task", "run", "agent")
NARROW = ("limit", "met", "cost", "within (95%)", "return", "share")
FIGURES: tuple[str, ...] = ("met", "within", "mean_cost", "worst_cost", "mean_return", "frontier")
FIGURES += ("frontier_share", "ended_early", "num_episodes")
WHOLE = "the policy"  # the usual name of a policy that was judged


@dataclass(frozen=True)
class JudgedRun:
    """A run, and one policy of it under some limits."""

    run: Run
    label: str
    judged: dict[str, Any]  # an evaluation, or one beside it
    nothing: dict[str, Any] | None  # doing nothing, under the same limits

    @property
    def about(self) -> tuple[str, str, str]:
        return self.run.spec.task_name, self.label, self.run.spec.agent


@dataclass(frozen=True, repr=False)
class Comparison:
    """Evaluations side by side; prints as a table."""

    runs: tuple[JudgedRun, ...]

    def __repr__(self) -> str:
        return rendered(comparison_tables(self))

    def _repr_html_(self) -> str:
        return rendered(comparison_tables(self), as_html=True)

    @property
    def tasks(self) -> dict[str, list[JudgedRun]]:
        tasks: dict[str, list[JudgedRun]] = {}
        for each in self.runs:
            tasks.setdefault(each.about[0], []).append(each)
        return tasks

    def plain(self) -> list[dict[str, Any]]:
        """A row for each run and limit; of several constraints, costs are joined by blanks."""
        return [row for each in self.runs for row in _plain_rows(each)]

    def write(self, folder: str | Path) -> Path:
        """comparison.html and comparison.csv; returns the page."""
        folder, text = Path(folder), io.StringIO()
        folder.mkdir(parents=True, exist_ok=True)
        rows = self.plain()
        table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        write_atomically(folder / "comparison.csv", text.getvalue())
        headings, cells = _rows(self)
        notes = (MARK_NOTE, *_differences(self))
        parts: list[Part] = [
            Sheet("", headings, cells, note=" ".join(notes)),
            *(Picture(task, _curves(runs), ABOUT_CURVES) for task, runs in self.tasks.items()),
            Remark(tuple(dict.fromkeys(str(r.run.path) for r in self.runs)), "What was compared"),
        ]
        return Page("Comparison", parts, broad=True).write(folder / "comparison.html")


ABOUT_CURVES = (
    "Against the limit: mean return, and mean cost beside the limit. While training: the mean "
    "return over the watched limits, where a run was watched more than once."
)


def compare(runs: Sequence[str | Path]) -> Comparison:
    """Hold runs of any tasks and agents against each other, by the latest evaluation of each.

    A run is its folder, an export, pretrained:NAME, or one of its earlier evaluations
    (RUN/evaluations/NAME.json). It prints as a table; `write(folder)` makes a page and a CSV file.
    """
    if not runs:
        raise ValueError("name at least one run: saformer compare RUN RUN ...")
    named = [_judged(path) for path in runs]
    names = [_name_of(run) for run, _ in named]
    judged: list[JudgedRun] = []
    for (run, evaluation), name, path in zip(named, names, runs, strict=True):
        label = name if names.count(name) == 1 else str(path)
        for one in (evaluation, *evaluation["beside"]):
            own = label if one["name"] == WHOLE else f"{label}, {one['name']}"
            judged.append(JudgedRun(run, own, one, evaluation.get("nothing")))
    return Comparison(tuple(sorted(judged, key=lambda each: each.about[0])))


def comparison_tables(comparison: Comparison) -> list[Table | Text]:
    """For the terminal, one for each task; what was judged otherwise last."""
    tables: list[Table | Text] = []
    for task, runs in comparison.tasks.items():
        headings, rows = _rows(Comparison(tuple(runs)), NARROW)
        tables.append(terminal_table(headings[1:], [row[1:] for row in rows], title=task))
    return [*tables, *map(Text, _differences(comparison))]


def _name_of(run: Run) -> str:
    """The folder's; of one that nobody named, what tells it from others."""
    spec = run.spec
    own = [spec.agent, *([spec.limit] if spec.limit else []), f"seed{spec.seed}"]
    return "-".join(own) if run.path.name == spec.name else run.path.name


def _judged(path: str | Path) -> tuple[Run, dict[str, Any]]:
    file = Path(path)
    if file.suffix == ".json" and file.parent.name == EVALUATIONS:
        run, name = Run(file.parent.parent), f"{EVALUATIONS}/{file.name}"
    else:
        run, name = find_run(path), "evaluation.json"
    assert run.spec  # a folder that is no run is refused here
    if not (run.path / name).exists():
        judge = f"judge it first: saformer evaluate {path}"
        raise FileNotFoundError(f"{path} was not evaluated, there is no {name}; {judge}")
    return run, run.read_json(name, EvaluationFile)


def _rows(
    comparison: Comparison, figures: Sequence[str] = PROMISED
) -> tuple[tuple[str, ...], list[list[Cell]]]:
    """By task, then by limit, then by run; doing nothing last."""
    rows: list[list[Cell]] = []
    for task, runs in comparison.tasks.items():
        numbered = [(each, index) for each in runs for index in range(len(_verdicts(each)))]
        numbered.sort(key=lambda pair: _verdicts(pair[0])[pair[1]]["limit"]["values"])
        for each, index in numbered:
            cells = verdict_cells(each.judged, index)
            rows.append([*each.about, *(cells[heading] for heading in figures)])
        idle = next((each.nothing for each in runs if each.nothing), None)
        if idle:
            cells = {**nothing_cells(idle), "limit": "any"}
            rows.append([task, "doing nothing", "-", *(cells.get(name, "-") for name in figures)])
    return (*ABOUT, *figures), rows


def _verdicts(each: JudgedRun) -> list[dict[str, Any]]:
    return list(each.judged["verdicts"])


def _plain_rows(each: JudgedRun) -> Iterator[dict[str, Any]]:
    for verdict in _verdicts(each):
        limit, spec = verdict["limit"], each.run.spec
        values = {name: verdict.get(name) for name in FIGURES}
        several = {name: v for name, v in values.items() if isinstance(v, list | tuple)}
        joined = {name: " ".join(map(str, v)) for name, v in several.items()}
        about = dict(zip(ABOUT, each.about, strict=True))
        named = {"seed": spec.seed, "limit_name": limit["name"]}
        yield {**about, **named, "limit": " ".join(map(str, limit["values"])), **values, **joined}


def _differences(comparison: Comparison) -> Iterator[str]:
    """In what the runs of a task were judged otherwise."""
    for task, runs in comparison.tasks.items():
        values: dict[str, set[str]] = {}
        for each in runs:
            verdicts = _verdicts(each)
            episodes = str(verdicts[0]["num_episodes"])
            values.setdefault("episodes under a limit", set()).add(episodes)
            values.setdefault("costs", set()).add(", ".join(each.judged["criteria"]))
            for verdict in verdicts:
                limit = verdict["limit"]
                values.setdefault(f"costs of {limit['name']}", set()).add(numbers(limit["values"]))
        for what, known in values.items():
            if len(known) > 1:
                yield f"{task}: {what} differ ({' and '.join(sorted(known))})"


def _curves(runs: Sequence[JudgedRun]) -> str:
    """Return and cost against the limit, and the return while training."""
    of_return, of_cost, learning = list[Line](), list[Line](), list[Line]()
    for each in runs:
        verdicts = sorted(_verdicts(each), key=lambda verdict: verdict["limit"]["values"])
        x = [verdict["limit"]["values"][0] for verdict in verdicts]
        of_return.append(Line(each.label, x, [verdict["mean_return"] for verdict in verdicts]))
        of_cost.append(Line(each.label, x, [verdict["mean_cost"][0] for verdict in verdicts]))
        watched = [row for row in each.run.metrics() if "evaluation" in row]
        seen = [(row["update"], row["evaluation"]) for row in watched]
        if len(seen) > 1:
            means = [sum(v["return"] for v in one.values()) / len(one) for _, one in seen]
            learning.append(Line(each.label, [update for update, _ in seen], means))
    limits = sorted({x for line in of_cost for x in line.x})
    of_cost.append(Line("the limit", limits, limits))
    panels = [
        Panel("Return", of_return, "limit", "mean return"),
        Panel("Cost", of_cost, "limit", "mean cost"),
        *([Panel("While training", learning, "update", "mean return")] if learning else []),
    ]
    return line_panels(panels, columns=2)
