"""What an experiment asks for: data to look at, runs to train, and ways to judge them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from saformer.agents.registry import KINDS
from saformer.api.judge import REFERENCE
from saformer.core.transformer import TrunkConfig
from saformer.data.home import data_home
from saformer.envs.tasks import MIXTURES
from saformer.training.loop.presets import PRESETS, Preset

ROBOTS = ("halfcheetah", "walker2d", "hopper")
DATASETS = tuple(f"{robot}-{mixture}" for robot in ROBOTS for mixture in MIXTURES)
"""In the paper's order."""
CHEETAHS = DATASETS[:3]
LIMITS = ("p10", "p20", "p30", "p50")
UNHEEDED = ("p10",)
"""What DT is judged under: it heeds no limit, so that one is as good as another."""
TEN_LIMITS = tuple(f"p{percent}" for percent in range(5, 100, 10))
D4RL_LIMITS = {
    "halfcheetah-medium": "4490",
    "halfcheetah-medium-replay": "4300",
    "halfcheetah-medium-expert": "4300",
}
NEAREST_RANKS = {
    "halfcheetah-medium": "p10",
    "halfcheetah-medium-replay": "p20",
    "halfcheetah-medium-expert": "p50",
}
"""Of Table 1's undiscounted limits among the paper's thresholds."""
WITHOUT_CHEAPEST = "-from-p10"
"""Ends the name of a dataset of which all that costs less than its p10 was discarded."""


@dataclass(frozen=True)
class Scale:
    """How much is made of everything."""

    name: Literal["smoke", "small", "paper"]
    episodes: int
    """under each limit"""
    swept_episodes: int
    """under each of ten limits: what counts there is whether costs follow them"""
    candidates: tuple[int, ...]
    """N of Figure 5"""
    exploration: int
    """episodes that fine-tuning may take"""
    below: float = 1.0
    """limits of fine-tuning are this share of the paper's: tiny models of scraps would keep the
    paper's untaught"""
    horizon: int | None = None
    """steps of an episode, if less than the environment's: data is then cut to pieces of this
    length"""

    def preset(self, agent: str) -> Preset:
        """How an agent is trained."""
        if self.name == "smoke":
            return _tiny(agent)
        preset = PRESETS[self.name](agent)
        paper = self.name == "paper"
        every = 20_000 if paper else 1000  # four of the paper's epochs: rollouts take long
        saved = (
            10_000 if paper else preset.fit.checkpoint_every
        )  # so does saving nine models with their optimisers
        return replace(
            preset, fit=replace(preset.fit, evaluate_every=every, checkpoint_every=saved)
        )


SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            "smoke",
            episodes=2,
            swept_episodes=2,
            candidates=(1, 4),
            exploration=10,
            below=0.6,
            horizon=30,
        ),
        Scale(
            "small",
            episodes=20,
            swept_episodes=5,
            candidates=tuple(2**n for n in range(10)),
            exploration=200,
        ),
        Scale(
            "paper",
            episodes=20,
            swept_episodes=5,
            candidates=tuple(2**n for n in range(10)),
            exploration=200,
        ),
    )
}
"""smoke: tiny models on scraps of data. small: preset small. paper: Table 6, 100,000 updates."""


def _tiny(agent: str) -> Preset:
    preset = PRESETS["small"](agent)
    sizes: dict[str, Any] = {
        "trunk": TrunkConfig(layers=1, width=16, dropout=0.0),
        "window": 3,
        "hidden": (16, 16),
        "candidates": 4,
    }
    has = {name: value for name, value in sizes.items() if hasattr(preset.agent, name)}
    fit = replace(
        preset.fit, updates=20, batch_size=16, warmup_updates=5, report_every=10, evaluate_every=10
    )
    return Preset(replace(preset.agent, **has), fit)


@dataclass(frozen=True)
class Training:
    """A run, by what was chosen for it; the scale says the rest."""

    dataset: str
    agent: str = "saformer"
    limit: str | None = None
    """of agents that are trained for one"""
    cost_discount: float = 1.0
    seed: int = 0
    criteria: tuple[str, ...] = ()
    """what a step costs, where that is not what the data came with"""
    updates: int | None = None
    """where they are not as many as the scale's"""

    @property
    def pack(self) -> tuple[Any, ...]:
        """Equal for runs that can be trained in one call."""
        return self.agent, self.limit is None, self.cost_discount, bool(self.criteria), self.updates

    @property
    def name(self) -> str:
        """For a person to read."""
        limit = f" for {self.limit}" if self.limit else ""
        cost = f"{' and '.join(self.criteria)}, " if self.criteria else ""
        return f"{self.agent}{limit} on {self.dataset}, {cost}cost discount {self.cost_discount:g}, seed {self.seed}"


@dataclass(frozen=True)
class Judging:
    """One way to roll a run's policy out."""

    training: Training
    limits: tuple[str, ...] = LIMITS
    variant: str = ""
    """what tables call it"""
    options: tuple[tuple[str, Any], ...] = ()
    """of the policy, where they are not the usual ones"""
    cost_discount: float = 1.0
    episodes: int | None = None
    """under each limit, where they are not as many as usual"""
    finetuned: bool = False
    """whether the run is fine-tuned to these limits first"""
    shield: bool = False
    """within a shield, and beside it the mean action that heeds no limit, in one too"""

    @property
    def variants(self) -> tuple[str, ...]:
        """What tables call its rows."""
        return (self.variant, REFERENCE) if self.shield else (self.variant,)


@dataclass(frozen=True)
class Needs:
    """All that an experiment asks for."""

    datasets: tuple[str, ...] = ()
    """to be described"""
    judgings: tuple[Judging, ...] = ()
    curves: tuple[Training, ...] = ()
    """runs whose evaluations while training are to be drawn"""

    @property
    def trainings(self) -> tuple[Training, ...]:
        """Every run, once."""
        return tuple(
            dict.fromkeys([*(judging.training for judging in self.judgings), *self.curves])
        )

    def __or__(self, other: Needs) -> Needs:
        """Both, with what they share asked for once."""
        return Needs(
            tuple(dict.fromkeys(self.datasets + other.datasets)),
            tuple(dict.fromkeys(self.judgings + other.judgings)),
            tuple(dict.fromkeys(self.curves + other.curves)),
        )


@dataclass(frozen=True)
class Setting:
    """What all runs of a command share."""

    scale: Scale
    seeds: tuple[int, ...] = (0,)
    source: str = "behaviours"
    """behaviours: made on this machine. d4rl: D4RL's own files. Else a folder of stores named like
    the datasets"""

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"name at least one seed, and each once, got {self.seeds}")
        if self.scale.horizon is not None and self.source != "behaviours":
            raise ValueError(
                f"scale {self.scale.name} makes its own data: leave {self.source!r} out"
            )
        if self.source not in {"behaviours", "d4rl"} and not Path(self.source).is_dir():
            raise ValueError(
                f"data is behaviours, d4rl or a folder of stores named {DATASETS[0]} and so on, "
                f"got {self.source!r}"
            )

    def task(self, dataset: str) -> str:
        """Where the data of a dataset is found."""
        if dataset.endswith(WITHOUT_CHEAPEST):
            whole = self.task(dataset.removesuffix(WITHOUT_CHEAPEST))
            return str(data_home() / (Path(whole).name.replace(":", "-") + WITHOUT_CHEAPEST))
        if self.scale.horizon is not None:
            return str(data_home() / f"{dataset}-cut-to-{self.scale.horizon}")
        if self.source == "behaviours":
            return dataset
        return f"d4rl:{dataset}-v2" if self.source == "d4rl" else str(Path(self.source) / dataset)

    def watched(self, dataset: str, cost_discount: float) -> Mapping[str, tuple[str, ...]]:
        """What a run is watched under while it trains: Figures 2 and 3 are of HalfCheetah alone."""
        if dataset not in CHEETAHS:
            return {}
        return {self.task(dataset): (table_1_limit(self.source, dataset, cost_discount),)}

    def each(
        self,
        *datasets: str,
        agent: str = "saformer",
        cost_discount: float = 1.0,
        criteria: tuple[str, ...] = (),
        updates: int | None = None,
    ) -> Iterator[Training]:
        """A run of every seed on each dataset, for Table 1's limit if the agent needs one."""
        for dataset in datasets:
            limit = (
                table_1_limit(self.source, dataset, cost_discount)
                if KINDS[agent].has_one_limit
                else None
            )
            for seed in self.seeds:
                yield Training(dataset, agent, limit, cost_discount, seed, criteria, updates)


def table_1_limit(source: str, dataset: str, cost_discount: float) -> str:
    """The paper's own on D4RL's files; elsewhere the percentile that it is there."""
    if source == "d4rl":
        return D4RL_LIMITS[dataset] if cost_discount == 1 else "400"
    return NEAREST_RANKS[dataset] if cost_discount == 1 else "p10"
