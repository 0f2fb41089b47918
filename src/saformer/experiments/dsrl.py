"""DSRL's protocol: normalised return and cost over three limits, and our stricter count beside."""

import csv
from collections.abc import Sequence
from importlib import resources

import numpy as np

from saformer.agents.registry import KINDS
from saformer.data.sources.dsrl import PREFIX, DsrlTask, find_dsrl
from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.plan import Judging, Needs, Row, Setting, Training, in_each_way
from saformer.experiments.pooling import Pooled, pooled
from saformer.experiments.ways import BC_SAFE, CDT
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
UPDATES = {"paper": 30_000}
OURS, PUBLISHED = "ours", "as published"
RIVALS = {name: agent for name, agent in {"CAPS": "caps", "BCRL": "bcrl"}.items() if agent in KINDS}
METHODS = (OURS, PUBLISHED, CDT, *RIVALS, BC_SAFE)
HEADINGS = ("task", "method", "return", "cost", "limits met", "within", "ended (data)")
ABOUT = (
    "Return: (R - lowest) / (highest - lowest), by DSRL's constants. Cost: mean cost / limit, "
    "averaged over the limits; the method is safe on the task if that is at most 1. Limits met and "
    "episodes within count each limit by itself, and no episode may end early to keep one.",
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
    for dataset in setting.some(TASKS):
        by_setting = limits_of_protocol(find_dsrl(dataset))
        limits = (*by_setting["tight"], *by_setting["standard"])

        def each(agent: str, *, published: bool = True, name: str = dataset) -> list[Training]:
            how = {"updates": updates, "published": published}
            return [Training(name, agent, seed=seed, **how) for seed in setting.seeds]  # type: ignore[arg-type]

        judgings += in_each_way(each("saformer", published=False), {OURS: ()}, limits)
        judgings += in_each_way(each("saformer"), {PUBLISHED: ()}, limits)
        for name, agent in {CDT: "cdt", **RIVALS}.items():
            judgings += in_each_way(each(agent), {name: ()}, limits)
        judgings += [
            Judging(
                Training(dataset, "bc_safe", limit, seed=seed, updates=updates), (limit,), BC_SAFE
            )
            for limit in limits
            for seed in setting.seeds
        ]
    return Needs(judgings=tuple(judgings))


def _present(results: Results) -> list[Part]:
    verdicts = results.rows["verdicts"]
    datasets = [name for name in TASKS if any(row["dataset"] == name for row in verdicts)]
    sheets = [_sheet(verdicts, datasets, setting) for setting in ("standard", "tight")]
    return [*sheets, Remark(ABOUT, "How to read this")]


def _sheet(verdicts: Sequence[Row], datasets: Sequence[str], setting: str) -> Part:
    rows, printed = list[list[Cell]](), published_numbers(setting)
    for dataset in datasets:
        task = find_dsrl(dataset)
        for method in METHODS:
            key = {"dataset": dataset, "variant": method}
            limits = limits_of_protocol(task)[setting]
            cells = [pooled(verdicts, limit_name=name, **key) for name in limits]
            rows.append([task.brief, method, *_scores(task, [cell for cell in cells if cell])])
        for method, (earned, cost) in printed.get(task.brief, {}).items():
            label = f"{method}, published, on DSRL's data"
            rows.append([task.brief, label, f"{earned:.2f}", _cost(cost), "-", "-", "-"])
    return Sheet(f"DSRL's protocol, {setting} limits", HEADINGS, rows)


def _scores(task: DsrlTask, cells: Sequence[Pooled]) -> list[Cell]:
    """Of one method on one task, over the limits of a setting."""
    if not cells:
        return ["missing", *("-" for _ in HEADINGS[3:])]
    earned = np.mean([task.normalised_return(cell.episode_return.mean) for cell in cells])
    cost = float(np.mean([cell.cost.mean / cell.limit for cell in cells]))
    met, within = sum(cell.met for cell in cells), np.mean([cell.within for cell in cells])
    counts = f"{met} of {len(cells)}", percent(float(within))
    return [f"{earned:.2f}", _cost(cost), *counts, cells[0].ended]


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
    "SaFormer by our rule and as published, CDT and BC-Safe on ten of DSRL's tasks, whose costs "
    "are of the state: at the benchmark's three limits and at half of the least. Needs "
    "saformer[dsrl]; not part of `all`.",
    _needs,
    _present,
)
