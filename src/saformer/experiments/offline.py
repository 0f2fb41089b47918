"""Are estimates from logs alone true? Each is held against rollouts in the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from saformer.data.statistics import mean_known, rank_correlation
from saformer.envs.tasks import PLANT_TASKS
from saformer.evaluation.offline.estimate import cost_scale
from saformer.experiments.dsrl import TASKS
from saformer.experiments.experiment import Experiment, Results
from saformer.experiments.plan import (
    DATASETS,
    EFFORT_DATASETS,
    LIMITS,
    Judging,
    Needs,
    Row,
    Setting,
    Training,
    in_each_way,
)
from saformer.experiments.ways import BC_SAFE, CDT, WITHOUT_CRITIC, Options
from saformer.report.figure import Line, Panel, line_panels
from saformer.report.page import Part, Picture, Remark, Sheet
from saformer.report.table import numbers, percent, rounded

ALL = (*PLANT_TASKS, *DATASETS, *EFFORT_DATASETS, *TASKS)
CHOSEN_ON, CONFIRMED_ON = ALL[::2], ALL[1::2]
"""Every other: how much doubt is supported, and widths of intervals, were chosen on the first."""
WITH_RIVALS = ("plant-room", "halfcheetah-medium", "hopper-effort", TASKS[0])
RULES: dict[str, Options] = {
    "feasible": (("rule", "feasible"),),
    "paper": (("rule", "paper"),),
    "no critic": WITHOUT_CRITIC,
}
CHOICES = ("dataset", "chosen by estimates", "best by rollouts", "chosen", "best")
GUESSES = ("the limit", "the data's mean", "the critic at the first state")
SMALL, LARGE = 0.1, 0.25
ABOUT = (
    "Every policy is rolled out in its simulator, and estimated from its training data alone "
    "(`Trained.estimate`). Error: |estimated - rolled out| / rolled-out mean cost, of at least 5% "
    "of the data's mean. Rank correlation: of estimated and rolled-out mean cost over the limits "
    "and rules of a dataset; below it, how well rollouts themselves agree on that order. Covered: "
    "the rolled-out mean lies in the nominal 90% interval.",
    "How much doubt is supported was chosen on the first half, to keep back at least 95% of errors "
    "above 25% there; the least width of intervals on four of its datasets (plant-room, "
    "plant-tank, halfcheetah-medium-replay, CarRun). The second half confirms both.",
)


@dataclass(frozen=True)
class Check:
    """One estimate beside its rollouts."""

    dataset: str
    variant: str
    cost: float  # rolled out
    estimated: float
    interval: tuple[float, float]
    trust: str
    data_mean: float
    guesses: dict[str, float]  # by cruder means
    halves: tuple[float, float]  # mean cost of every other rollout, and of the rest

    @classmethod
    def of(cls, row: Row) -> Check:
        estimate = row["estimate"]
        guesses = {GUESSES[0]: row["limit"], GUESSES[1]: estimate["data_mean"]}
        guesses[GUESSES[2]] = estimate["first_forecast"]
        known = {name: float(value) for name, value in guesses.items() if value is not None}
        own = (row["dataset"], row["variant"], row["mean_cost"], estimate["cost"])
        told = (tuple(estimate["interval"]), estimate["trust"], estimate["data_mean"])
        halves = (float(np.mean(row["costs"][start::2])) for start in (0, 1))
        return cls(*own, *told, known, tuple(halves))  # type: ignore[arg-type]

    def error(self, estimated: float | None = None) -> float:
        wrong = abs((self.estimated if estimated is None else estimated) - self.cost)
        return wrong / cost_scale(self.cost, self.data_mean)

    @property
    def covered(self) -> bool:
        low, high = self.interval
        return low <= self.cost <= high


def summary_of(checks: Sequence[Check]) -> dict[str, float]:
    """The figures that the estimates are judged by; NaN where there is nothing to judge."""
    supported = [each for each in checks if each.trust == "supported"]
    small = [each for each in checks if each.error() < SMALL]
    large = [each for each in checks if each.error() > LARGE]
    return {
        "rank correlation, median over datasets": _correlation(checks, lambda each: each.estimated),
        "the same of one half of the rollouts with the other": _correlation(
            checks, lambda each: each.halves[0], lambda each: each.halves[1]
        ),
        "error, median of supported": _median(each.error() for each in supported),
        "covered, of supported": _share(each.covered for each in supported),
        "not supported, of errors above 25%": _share(e.trust != "supported" for e in large),
        "supported, of all": _share(each.trust == "supported" for each in checks),
        "supported, of errors below 10%": _share(each.trust == "supported" for each in small),
        "error, median of all": _median(each.error() for each in checks),
    }


def _correlation(
    checks: Sequence[Check],
    value: Callable[[Check], float],
    other: Callable[[Check], float] = attrgetter("cost"),
) -> float:
    names = dict.fromkeys(each.dataset for each in checks)
    groups = [[each for each in checks if each.dataset == name] for name in names]
    each = [rank_correlation([value(c) for c in own], [other(c) for c in own]) for own in groups]
    return _median(found for found in each if not np.isnan(found))


def _median(values: Iterable[float]) -> float:
    known = list(values)
    return float(np.median(known)) if known else float("nan")


def _share(values: Iterable[bool]) -> float:
    return mean_known([float(value) for value in values])


@dataclass(frozen=True)
class Choice:
    """Of the ways to act on a dataset, the one with the highest estimated safe share."""

    dataset: str
    chosen: str
    best: str  # with the highest safe share of rollouts
    shares: tuple[float, float]  # of both, rolled out

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Choice | None:
        """None where no limit has anything to earn."""
        ways = dict.fromkeys(row["variant"] for row in rows)
        own = {way: [row for row in rows if row["variant"] == way] for way in ways}
        estimated = {way: _safe_share(row["estimate"] for row in own[way]) for way in ways}
        rolled_out = {way: _safe_share(own[way]) for way in ways}
        if np.isnan(list(rolled_out.values())).any():
            return None
        chosen = max(ways, key=lambda way: estimated[way])
        best = max(ways, key=lambda way: rolled_out[way])
        return cls(rows[0]["dataset"], chosen, best, (rolled_out[chosen], rolled_out[best]))


def _safe_share(rows: Iterable[Row]) -> float:
    shares = [row["safe_share"] for row in rows]
    return mean_known([float("nan") if share is None else share for share in shares])


def choices_of(rows: Sequence[Row]) -> list[Choice]:
    """Of each dataset."""
    names = dict.fromkeys(row["dataset"] for row in rows)
    choices = [Choice.of([row for row in rows if row["dataset"] == name]) for name in names]
    return [choice for choice in choices if choice is not None]


def _needs(setting: Setting) -> Needs:
    models = list(setting.each(*setting.some(ALL), published=False))
    rivals = [name for name in setting.some(ALL) if name in WITH_RIVALS]
    judgings = [
        *in_each_way(models, RULES),
        *in_each_way(setting.each(*rivals, agent="cdt"), {CDT: ()}),
        *(
            Judging(Training(dataset, "bc_safe", limit, seed=seed), (limit,), BC_SAFE)
            for dataset in rivals
            for limit in LIMITS
            for seed in setting.seeds
        ),
    ]
    return Needs(judgings=tuple(replace(each, estimated=True) for each in judgings))


def _present(results: Results) -> list[Part]:
    checks = [Check.of(row) for row in results.rows["verdicts"]]
    halves = {
        "chosen on": [each for each in checks if each.dataset in CHOSEN_ON],
        "confirmed on": [each for each in checks if each.dataset in CONFIRMED_ON],
    }
    figures = {name: summary_of(half) for name, half in halves.items()}
    rows = [
        [name, *(rounded(_plain(own[name])) for own in figures.values())]
        for name in summary_of(checks)
    ]
    guessed = [[guess, *(_guess(half, guess) for half in halves.values())] for guess in GUESSES]
    headings = ("", *(f"{name} ({len(half)} estimates)" for name, half in halves.items()))
    cells = [_cells(each) for each in checks]
    chosen = [
        [each.dataset, each.chosen, each.best, *(f"{share:.2f}" for share in each.shares)]
        for each in choices_of(results.rows["verdicts"])
    ]
    columns = ("dataset", "way", "trust", "rolled out", "estimated", "error", "covered")
    return [
        Sheet("Estimates against rollouts", headings, rows),
        Sheet("Cruder guesses of cost: median error; rank correlation", headings, guessed),
        Sheet("Choosing by estimates alone: safe shares, rolled out", CHOICES, chosen),
        Picture("Every estimate", _scatter(checks), "Both as shares of the data's mean cost."),
        Sheet("Every cell", columns, cells),
        Remark(ABOUT, "How to read this"),
    ]


def _guess(checks: Sequence[Check], guess: str) -> str:
    known = [each for each in checks if guess in each.guesses]
    error = _median(each.error(each.guesses[guess]) for each in known)
    return rounded(_plain(error), _plain(_correlation(known, lambda each: each.guesses[guess])))


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else value


def _cells(check: Check) -> list[str]:
    costs = numbers([check.cost]), numbers([check.estimated])
    covered = "yes" if check.covered else "no"
    return [check.dataset, check.variant, check.trust, *costs, percent(check.error()), covered]


def _scatter(checks: Sequence[Check]) -> str:
    known = [each for each in checks if each.data_mean > 0]
    most = max((max(e.cost, e.estimated) / e.data_mean for e in known), default=1.0)

    def panel(trust: str) -> Panel:
        own = [each for each in known if each.trust == trust]
        x, y = ([getattr(e, n) / e.data_mean for e in own] for n in ("cost", "estimated"))
        equal = Line("equal", (0, most), (0, most))
        title = f"{trust} ({len(own)})"
        return Panel(title, [equal], x_label="rolled out", y_label="estimated", points=(x, y))

    words = ("supported", "extrapolates", "do not trust")
    return line_panels([panel(word) for word in words], columns=3)


OFFLINE = Experiment(
    *("offline", "without a simulator", "Estimates from logs alone, held against rollouts"),
    "SaFormer by three rules on plants, robots and DSRL's tasks, CDT and BC-Safe on four of them: "
    "what their logs alone let one expect, beside what the simulator shows. Needs saformer[dsrl]; "
    "not part of `all`.",
    _needs,
    _present,
)
