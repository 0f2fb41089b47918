"""DSRL's protocol: normalised return and cost over three limits, and our stricter count beside."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Self

import numpy as np

from saformer.data.sources.dsrl import PREFIX, DsrlTask, find_dsrl
from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.plan import Judging, Needs, Row, Setting, Training, in_each_way
from saformer.experiments.pooling import NOTHING, Pooled, nothing_rows, pooled
from saformer.experiments.ways import BC_SAFE, CDT, PROPOSED
from saformer.report.page import Part, Remark, Sheet
from saformer.report.table import Cell, percent

TASKS = tuple(
    f"{PREFIX}Offline{name}"
    for name in (
        "BallRun-v0",
        "CarRun-v0",
        "BallCircle-v0",
        "HopperVelocityGymnasium-v1",
        "HalfCheetahVelocityGymnasium-v1",
        "PointCircle1Gymnasium-v0",
        "CarCircle-v0",
        "DroneRun-v0",
        "Walker2dVelocityGymnasium-v1",
        "PointGoal1Gymnasium-v0",
    )
)
NUM_FIRST = 6
"""Tasks at scale small."""
UPDATES = {"paper": 30_000}
OURS, PUBLISHED = "ours", "as published"
OUR_WAYS = {way: PROPOSED[way] for way in (OURS, "the mean", "the paper's rule")}
RIVALS = {CDT: "cdt", "CAPS": "caps", "BCRL": "bcrl"}
METHODS = (*OUR_WAYS, PUBLISHED, *RIVALS, BC_SAFE, NOTHING)
SETTINGS = ("standard", "tight")
SUMMARY = ("method", *(f"{what}, {each}" for each in SETTINGS for what in ("safe", "first")))
SUMMARY = (*SUMMARY, "limits met", "within")
HEADINGS = ("task", "method", "return", "cost", "limits met", "within", "ended (data)")
BESIDE = ("task", "setting", "return", "cost", "return on DSRL's data", "cost on DSRL's data")
ABOUT = (
    "Return: (R - lowest) / (highest - lowest), by DSRL's constants. Cost: mean cost / limit, "
    "averaged over the limits; the method is safe on the task if that is at most 1. First: safe, "
    "and its return, or the end of its 95% interval, reaches the highest among the safe. Limits "
    "met and episodes within count each limit by itself, and no episode may end early to keep one.",
    "The mean and the paper's rule act with the weights of ours; as published has its own. Doing "
    "nothing: the action of least cost, held; it is not counted among those that can be first.",
    "Methods on this page learnt from the data that the page's facts name. Published numbers were "
    "measured on DSRL's own data: they are comparable with dsrl-hdf5 data alone (--data dsrl). "
    "CAPS (2 heads) and CDT at the tight limits: the supplement of CAPS (AAAI 2025), tables 3 and "
    "10; CDT at the standard limits: as quoted by a reproduction.",
)


def limits_of_protocol(task: DsrlTask) -> dict[str, tuple[str, ...]]:
    """By setting."""
    tight = (f"{task.tight_limit:g}",)
    return {"standard": tuple(f"{limit:g}" for limit in task.limits), "tight": tight}


def _needs(setting: Setting) -> Needs:
    """Each method once for every task and seed; BC-Safe anew for each limit."""
    updates, judgings = UPDATES.get(setting.scale.name), list[Judging]()
    for dataset in setting.some(TASKS if setting.scale.name == "paper" else TASKS[:NUM_FIRST]):
        by_setting = limits_of_protocol(find_dsrl(dataset))
        limits = (*by_setting["tight"], *by_setting["standard"])

        def each(agent: str, *, published: bool = True, name: str = dataset) -> list[Training]:
            how = {"updates": updates, "published": published}
            return [Training(name, agent, seed=seed, **how) for seed in setting.seeds]  # type: ignore[arg-type]

        judgings += in_each_way(each("saformer", published=False), OUR_WAYS, limits)
        judgings += in_each_way(each("saformer"), {PUBLISHED: ()}, limits)
        for name, agent in RIVALS.items():
            judgings += in_each_way(each(agent), {name: ()}, limits)
        judgings += [
            Judging(
                Training(dataset, "bc_safe", limit, seed=seed, updates=updates), (limit,), BC_SAFE
            )
            for limit in limits
            for seed in setting.seeds
        ]
    return Needs(judgings=tuple(judgings))


@dataclass(frozen=True)
class Score:
    """One method on one task, over the limits of a setting."""

    episode_return: float  # normalised
    highest_return: float  # the end of its interval
    cost: float  # of the limit
    cells: tuple[Pooled, ...]

    @classmethod
    def of(cls, rows: Sequence[Row], dataset: str, method: str, setting: str) -> Self | None:
        task = find_dsrl(dataset)
        key = {"dataset": dataset, "variant": method}
        each = (pooled(rows, limit_name=n, **key) for n in limits_of_protocol(task)[setting])
        cells = tuple(cell for cell in each if cell is not None)
        if not cells:
            return None
        earned = np.mean([task.normalised_return(cell.episode_return.mean) for cell in cells])
        most = np.mean([task.normalised_return(cell.episode_return.high) for cell in cells])
        cost = float(np.mean([cell.cost.mean / cell.limit for cell in cells]))
        return cls(float(earned), float(most), cost, cells)

    @property
    def is_safe(self) -> bool:
        return self.cost <= 1

    @property
    def num_met(self) -> int:
        return sum(cell.met for cell in self.cells)

    @property
    def texts(self) -> list[Cell]:
        counts = f"{self.num_met} of {len(self.cells)}", percent(_share_within(self.cells))
        scores = f"{self.episode_return:.2f}", _cost(self.cost)
        return [*scores, *counts, self.cells[0].ended]


Scores = dict[str, dict[str, dict[str, Score]]]
"""By setting, task and method."""


def _present(results: Results) -> list[Part]:
    verdicts = [*results.rows["verdicts"], *nothing_rows(results.rows["verdicts"])]
    datasets = [name for name in TASKS if any(row["dataset"] == name for row in verdicts)]
    scores: Scores = {
        setting: {name: _scores(verdicts, name, setting) for name in datasets}
        for setting in SETTINGS
    }
    sheets = [_sheet(scores[setting], setting) for setting in SETTINGS]
    return [_summary(scores), *sheets, _beside(scores), Remark(ABOUT, "How to read this")]


def _scores(verdicts: Sequence[Row], dataset: str, setting: str) -> dict[str, Score]:
    each = {method: Score.of(verdicts, dataset, method, setting) for method in METHODS}
    return {method: score for method, score in each.items() if score is not None}


def _summary(scores: Scores) -> Part:
    """Tasks on which each method is safe, and first among the safe; all limits."""
    rows = list[list[Cell]]()
    for method in METHODS:
        own = [each[method] for by in scores.values() for each in by.values() if method in each]
        cells = [cell for score in own for cell in score.cells]
        if not cells:
            continue
        counts = list[Cell]()
        for setting in SETTINGS:
            tasks = [each for each in scores[setting].values() if method in each]
            counts.append(f"{sum(each[method].is_safe for each in tasks)} of {len(tasks)}")
            first = sum(method in first_among_safe(each) for each in tasks)
            counts.append("-" if method == NOTHING else f"{first} of {len(tasks)}")
        met = f"{sum(score.num_met for score in own)} of {len(cells)}"
        rows.append([method, *counts, met, percent(_share_within(cells))])
    return Sheet("In all", SUMMARY, rows)


def first_among_safe(scores: Mapping[str, Score]) -> set[str]:
    """Methods that are safe on a task and whose returns reach the highest, as far as is known."""
    safe = {name: each for name, each in scores.items() if each.is_safe and name != NOTHING}
    highest = max((each.episode_return for each in safe.values()), default=math.inf)
    return {name for name, each in safe.items() if each.highest_return >= highest}


def _sheet(scores: Mapping[str, Mapping[str, Score]], setting: str) -> Part:
    rows, printed = list[list[Cell]](), published_numbers(setting)
    for dataset, own in scores.items():
        task = find_dsrl(dataset).brief
        for method in METHODS:
            missing = ["missing", *("-" for _ in HEADINGS[3:])]
            rows.append([task, method, *(own[method].texts if method in own else missing)])
        for method, (earned, cost) in printed.get(task, {}).items():
            label = f"{method}, published, on DSRL's data"
            rows.append([task, label, f"{earned:.2f}", _cost(cost), "-", "-", "-"])
    return Sheet(f"DSRL's protocol, {setting} limits", HEADINGS, rows)


def _beside(scores: Scores) -> Part:
    """CDT of ours on our data, and CDT as published: how far the data differs."""
    rows = list[list[Cell]]()
    for setting in SETTINGS:
        printed = published_numbers(setting)
        for dataset, own in scores[setting].items():
            task = find_dsrl(dataset).brief
            ours, theirs = own.get(CDT), printed.get(task, {}).get(CDT)
            if ours is None or theirs is None:
                continue
            numbers = (ours.episode_return, ours.cost, *theirs)
            rows.append([task, setting, *(f"{number:.2f}" for number in numbers)])
    return Sheet("CDT on our data and on DSRL's", BESIDE, rows)


def _share_within(cells: Sequence[Pooled]) -> float:
    return float(np.mean([cell.within for cell in cells]))


def _cost(cost: float) -> Cell:
    return f"{cost:.2f}", "safe" if cost <= 1 else "missed"


def published_numbers(setting: str) -> dict[str, dict[str, tuple[float, float]]]:
    """Normalised return and cost, by task and method, on DSRL's own data."""
    text = resources.files("saformer").joinpath("assets", "dsrl_published.csv").read_text()
    numbers: dict[str, dict[str, tuple[float, float]]] = {}
    for row in csv.DictReader(text.splitlines()):
        if row["setting"] == setting:
            pair = float(row["return"]), float(row["cost"])
            numbers.setdefault(row["task"], {})[row["method"]] = pair
    return numbers


DSRL = Experiment(
    *("dsrl", "the field's benchmark", "DSRL's protocol"),
    "SaFormer by our rule, by the mean, by the paper's rule and as published, CDT, CAPS, BCRL and "
    "BC-Safe on ten of DSRL's tasks (six at scale small), whose costs are of the state: at the "
    "benchmark's three limits and at half of the least. Needs saformer[dsrl]; not part of `all`.",
    _needs,
    _present,
)
