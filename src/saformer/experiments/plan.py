"""Plans: datasets to describe, runs to train, ways to judge them; and jobs that carry them out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from saformer.agents.registry import KINDS
from saformer.core.transformer import TrunkConfig
from saformer.data.home import data_home
from saformer.data.sources.dsrl import FILE_PREFIX, PREFIX
from saformer.envs.tasks import MIXTURES
from saformer.experiments.ways import REFERENCE, Options
from saformer.training.loop.presets import PRESETS, Preset, as_published

Row = dict[str, Any]
KEY = ("dataset", "agent", "cost_discount", "seed", "criteria", "variant")
"""Of a row; a kind of rows that lacks a field has None."""
Files = dict[str, bytes]
"""By their paths within the folder of runs."""
ROBOTS = ("halfcheetah", "walker2d", "hopper")  # in the paper's order
DATASETS = tuple(f"{robot}-{mixture}" for robot in ROBOTS for mixture in MIXTURES)
CHEETAHS = DATASETS[:3]
EFFORT_DATASETS = tuple(f"{robot}-effort" for robot in ROBOTS)
LIMITS = ("p10", "p20", "p30", "p50")
D4RL_LIMITS = dict(zip(CHEETAHS, ("4490", "4300", "4300"), strict=True))
NEAREST_RANKS = dict(zip(CHEETAHS, ("p10", "p20", "p50"), strict=True))
"""Of Table 1's undiscounted limits among the paper's thresholds."""
SOURCES = ("behaviours", "d4rl", "dsrl")
FROM = "-from-"
"""In the name of a part of a dataset, before the percentile that all of it costs at least."""


def whole_of(dataset: str) -> str:
    """The dataset that this one is, or is a part of."""
    return dataset.partition(FROM)[0]


@dataclass(frozen=True)
class Scale:
    """The size of everything."""

    name: Literal["smoke", "small", "paper"]
    episodes: int = 20  # under each limit
    swept_episodes: int = 5  # under each of ten limits: there it counts whether costs follow them
    candidates: tuple[int, ...] = tuple(2**n for n in range(10))  # N of Figure 5
    exploration: int = 200  # episodes that fine-tuning may take
    tuning: Options = ()  # of fine-tuning, beside the usual ones
    below: float = 1.0
    """limits of fine-tuning are this share of the paper's, which tiny models meet untaught"""
    horizon: int | None = None
    """steps of an episode, if less than the environment's: data is cut to pieces this long"""

    def preset(self, agent: str, *, published: bool = True) -> Preset:
        """An agent of this size: with the paper's method, or with ours."""
        preset = PRESETS["full" if self.name == "paper" else "small"](agent)
        if published:
            preset = as_published(preset)
        if self.name == "smoke":
            return _tiny(preset)
        every, saved = 1000, preset.fit.checkpoint_every
        if self.name == "paper":  # rollouts take long, and so does saving nine models
            every, saved = 20_000, 10_000  # four of the paper's epochs, two
        fit = replace(preset.fit, evaluate_every=every, checkpoint_every=saved)
        return replace(preset, fit=fit)


_TUNED = (("updates", 20), ("evaluation_episodes", 2))
_SMOKE = Scale("smoke", 2, 2, (1, 4), exploration=10, tuning=_TUNED, below=0.6, horizon=15)
SCALES = {"smoke": _SMOKE, "small": Scale("small"), "paper": Scale("paper")}
"""smoke: tiny models on scraps of data. small: preset small. paper: Table 6, 100,000 updates."""


def _tiny(preset: Preset) -> Preset:
    sizes: dict[str, Any] = {"window": 3, "hidden": (16, 16), "candidates": 4}
    sizes["trunk"] = TrunkConfig(layers=1, width=16, dropout=0.0)
    own = {name: size for name, size in sizes.items() if hasattr(preset.agent, name)}
    brief: Any = {"updates": 20, "batch_size": 16, "warmup_updates": 5}
    fit = replace(preset.fit, **brief, report_every=10, evaluate_every=10)
    return Preset(replace(preset.agent, **own), fit)


@dataclass(frozen=True)
class Training:
    """A run: the choices that the scale leaves open."""

    dataset: str
    agent: str = "saformer"
    limit: str | None = None  # of agents that are trained for one
    cost_discount: float = 1.0
    seed: int = 0
    criteria: tuple[str, ...] = ()  # of a step's cost, by default the data's own
    updates: int | None = None  # by default the scale's
    published: bool = True  # SaFormer with the paper's method, or with ours

    @property
    def pack(self) -> tuple[Any, ...]:
        """Equal for runs that can be trained in one call."""
        own = (self.limit is None, bool(self.criteria), self.published)
        return self.agent, *own, self.cost_discount, self.updates

    @property
    def may_end(self) -> bool | None:
        """Yes on the paper's datasets, as its Eq. 1 has it; else as the data says."""
        return whole_of(self.dataset) in DATASETS or None

    @property
    def name(self) -> str:
        limit = f" for {self.limit}" if self.limit else ""
        cost = f"{' and '.join(self.criteria)}, " if self.criteria else ""
        discount = f"cost discount {self.cost_discount:g}"
        method = "" if self.published else " (our method)"
        return f"{self.agent}{method}{limit} on {self.dataset}, {cost}{discount}, seed {self.seed}"


@dataclass(frozen=True)
class Judging:
    """One way to roll a run's policy out."""

    training: Training
    limits: tuple[str, ...] = LIMITS
    variant: str = ""  # its name in tables
    options: Options = ()  # of the policy, beside the usual ones
    cost_discount: float = 1.0
    episodes: int | None = None  # under each limit, by default the scale's
    finetuned: bool = False  # whether the run is fine-tuned to these limits first
    shield: bool = False
    """within a shield, and beside it the mean action that heeds no limit, in one too"""
    estimated: bool = False  # from its data alone too

    @property
    def variants(self) -> tuple[str, ...]:
        """The names of its rows in tables."""
        return (self.variant, REFERENCE) if self.shield else (self.variant,)


@dataclass(frozen=True)
class Needs:
    """All that an experiment is made from."""

    datasets: tuple[str, ...] = ()  # to describe
    judgings: tuple[Judging, ...] = ()
    curves: tuple[Training, ...] = ()  # runs whose evaluations while training are drawn

    @property
    def trainings(self) -> tuple[Training, ...]:
        """Every run, once."""
        judged = (judging.training for judging in self.judgings)
        return tuple(dict.fromkeys([*judged, *self.curves]))

    def __or__(self, other: Needs) -> Needs:
        """Both, and shared parts once."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Needs(*(tuple(dict.fromkeys(one + another)) for one, another in pairs))


@dataclass(frozen=True)
class Setting:
    """The settings of a command, which all of its runs share."""

    scale: Scale
    seeds: tuple[int, ...] = (0,)
    source: str = "behaviours"
    """behaviours: made here. d4rl, dsrl: their files. Else a folder of stores, by dataset"""
    updates: int | None = None  # of every run; by default the scale's

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"name at least one seed, and each once, got {self.seeds}")
        scale, source = self.scale, self.source
        if scale.horizon is not None and source != "behaviours":
            raise ValueError(f"scale {scale.name} makes its own data: leave {source!r} out")
        if source not in SOURCES and not Path(source).is_dir():
            stores = f"a folder of stores named {DATASETS[0]} and so on"
            raise ValueError(f"data is {', '.join(SOURCES)} or {stores}, got {source!r}")

    def task(self, dataset: str) -> str:
        """The name or path of a dataset's data."""
        if FROM in dataset:
            name, _, percentile = dataset.partition(FROM)
            whole = Path(self.task(name)).name.replace(":", "-")
            return str(data_home() / f"{whole}{FROM}{percentile}")
        if self.scale.horizon is not None:
            return str(data_home() / f"{dataset.replace(':', '-')}-cut-to-{self.scale.horizon}")
        if self.source == "behaviours":
            return dataset
        if self.source == "dsrl":
            return dataset.replace(PREFIX, FILE_PREFIX)
        return f"d4rl:{dataset}-v2" if self.source == "d4rl" else str(Path(self.source) / dataset)

    def some(self, datasets: tuple[str, ...]) -> tuple[str, ...]:
        """All of them; at scale smoke the first, which shows that everything works."""
        return datasets[:1] if self.scale.name == "smoke" else datasets

    def watched(self, trainings: Iterable[Training]) -> dict[str, tuple[str, ...]]:
        """Limits while training: Figures 2 and 3 are of HalfCheetah and the paper's cost alone."""
        return {
            self.task(each.dataset): (table_1_limit(self.source, each.dataset, each.cost_discount),)
            for each in trainings
            if each.dataset in CHEETAHS and not each.criteria
        }

    def each(self, *datasets: str, agent: str = "saformer", **choices: Any) -> Iterator[Training]:
        """A run of every seed on each dataset, for Table 1's limit if the agent needs one."""
        for dataset in datasets:
            limit, discount = None, choices.get("cost_discount", 1.0)
            if KINDS[agent].has_one_limit:
                limit = table_1_limit(self.source, dataset, discount)
            for seed in self.seeds:
                yield Training(dataset, agent, limit, seed=seed, **choices)


def in_each_way(
    models: Iterable[Training], ways: Mapping[str, Options], limits: tuple[str, ...] = LIMITS
) -> tuple[Judging, ...]:
    """Every model, acting in every way."""
    return tuple(Judging(model, limits, *way) for model in models for way in ways.items())


def table_1_limit(source: str, dataset: str, cost_discount: float) -> str:
    """The paper's own on D4RL's files; elsewhere the percentile that it is there."""
    if source == "d4rl":
        return D4RL_LIMITS[dataset] if cost_discount == 1 else "400"
    return NEAREST_RANKS[dataset] if cost_discount == 1 else "p10"


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
