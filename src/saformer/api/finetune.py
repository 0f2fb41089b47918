"""Fine-tune a run to limits that its data never showed."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from saformer.agents.finetuned import FineTunedAgent
from saformer.agents.registry import from_plain
from saformer.agents.saformer import SaFormerAgent
from saformer.api.run_data import store_of, training_data
from saformer.data.growing import GrowingSampler, Room
from saformer.data.limits import Limit, parse_limit
from saformer.data.relabel import RelabelledStore
from saformer.data.store import TrajectoryStore
from saformer.runs.lock import alone_in
from saformer.runs.run import Run
from saformer.runs.spec import RunSpec
from saformer.training.finetune.config import FinetuneConfig
from saformer.training.loop.config import FitConfig

if TYPE_CHECKING:  # exploration needs Gymnasium; training does not
    from saformer.trained import Trained
    from saformer.training.finetune.events import FinetuneOutcome, WeightsVerdict
    from saformer.training.finetune.experience import ExploredEpisode

LEARNING_RATE_SHARE = 1 / 3
"""Of the original run's peak."""


@dataclass(frozen=True)
class FineTuned:
    """A fine-tuned run, and how that ended."""

    run: Run
    outcome: FinetuneOutcome | None
    """None if the run had finished before"""


@dataclass(frozen=True)
class Finetuning:
    """A run to fine-tune, to which limits and how; what it cannot explore with is refused."""

    trained: Trained
    limit_names: Sequence[str | float]
    config: FinetuneConfig
    options: Any
    """how it is judged"""
    seed: int

    def __post_init__(self) -> None:
        from saformer.envs.stepping import pick_workers

        pick_workers(self.trained.context.workers, num_lanes=self.config.lanes, num_steps=0)
        self.trained.run.load(groups=())  # an export has no checkpoint, and says so
        if not getattr(self.options, "enforce", True):
            raise ValueError(
                "a reserve that is not enforced keeps no limit without a shield: fine-tune by the "
                "paper's rule, or enforce it"
            )

    @cached_property
    def store(self) -> TrajectoryStore:
        trained = self.trained
        return store_of(trained.run, trained.listener, trained.context.data, exact=True)

    @cached_property
    def original(self) -> RelabelledStore:
        """The data that the run was trained on."""
        from saformer.envs.costed import try_out
        from saformer.training.finetune.experience import check_explorable

        self.trained.check_environment(self.store.environment)
        data = training_data(self.trained.run, self.store, self.trained.listener)
        check_explorable(data, self.store)
        try_out(self.store.environment, data.criteria)
        return data

    def parse_limit(self, limit: str | float) -> Limit:
        """A limit that may lie outside the data: that is what fine-tuning is for."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="limit .* lies outside the data")
            name = limit if isinstance(limit, str) else f"{limit:g}"
            return parse_limit(name, self.original)

    @cached_property
    def limits(self) -> list[Limit]:
        limits = [self.parse_limit(name) for name in self.limit_names]
        if not limits:
            raise ValueError(
                "name at least one limit to fine-tune to, as a cost (3700) or a percentile of the "
                "data (p10)"
            )
        values = [limit.values for limit in limits]
        twice = sorted({limit.name for limit in limits if values.count(limit.values) > 1})
        if twice:
            names = ", ".join(twice)
            raise ValueError(
                f"limit {names} was named more than once, by name or value; name each once"
            )
        return limits

    @cached_property
    def fit_config(self) -> FitConfig:
        """As the run was trained, at a lower rate, for as long as the allowance lasts."""
        original, config = from_plain(FitConfig, self.trained.run.spec.fit_config), self.config
        return replace(
            original,
            updates=config.num_rounds * config.updates,
            learning_rate=config.learning_rate or LEARNING_RATE_SHARE * original.learning_rate,
            warmup_updates=config.warmup_updates,
            evaluate_every=0,
        )

    def spec(self, store: Path) -> RunSpec:
        """The new run's, whose data is the store at this path."""
        source = self.trained.run
        checkpoint = hashlib.sha256(source.checkpoint_path.read_bytes()).hexdigest()[:16]
        rule = self.trained.kind.rule_of(self.options)
        finetuning = {
            "from": {
                "run": str(source.path.resolve()),
                "spec": source.spec.digest,
                "update": source.load(groups=()).facts["update"],
                "checkpoint": checkpoint,
            },
            "limits": {limit.name: limit.values for limit in self.limits},
            **asdict(self.config),
            "execution": {"rule": rule, **asdict(self.options)},
        }
        return replace(
            source.spec,
            task=str(store),
            data_steps=None,
            seed=self.seed,
            fit_config=asdict(self.fit_config),
            finetuning=finetuning,
        )

    def run(self, out: str | Path | None, *, resume: bool) -> FineTuned:
        """Algorithm 3 in a folder of its own, with a store of its own."""
        source, say = self.trained.run, self.trained.listener.say
        name = f"{source.path.resolve().name}-finetuned-seed{self.seed}"
        path = Path(out) if out else Path("runs") / name
        store = path.resolve() / source.spec.task_name.replace("/", "-").replace(":", "-")
        run = Run.open_or_create(path, self.spec(store), resume=resume)
        if run.is_done:
            say(f"{run.path} has already finished; nothing to do")
            return FineTuned(run, None)
        with alone_in(run.path):
            if not store.exists():
                origin = {"finetuned_from": str(source.path.resolve()), **self.store.provenance}
                replace(self.store, provenance=origin).save(store)
            self._say_beginning(run)
            outcome = self._explore(run, store)
        ended = "every limit holds" if outcome.held else "the allowance is spent"
        say(
            f"{ended}: {outcome.num_episodes} new trajectories ({outcome.broke_ceiling:.0%} broke "
            f"the ceiling), {outcome.num_evaluation_episodes} episodes of evaluation; the run in "
            f"{run.path} has the weights of its best evaluation, after {outcome.kept_after} "
            "episodes"
        )
        return FineTuned(run, outcome)

    def _explore(self, run: Run, store: Path) -> FinetuneOutcome:
        from saformer.training.finetune.algorithm import run_algorithm_3
        from saformer.training.finetune.events import FinetuneObserver
        from saformer.training.finetune.experience import Experience

        trained, config, listener = self.trained, self.config, self.trained.listener
        agent = cast(SaFormerAgent, trained.agent)
        sampler = GrowingSampler(
            self.original,
            window=agent.config.window,
            room=Room(config.episodes, config.episodes * (self.store.environment.horizon + 1)),
            share=config.new_share,
            device=trained.device,
        )
        observer = FinetuneObserver(
            episode=lambda row, allowance: listener.say(episode_line(row, allowance)),
            progress=listener.training,
            judged=lambda num_episodes, verdicts: listener.say(judged_line(num_episodes, verdicts)),
            row=lambda row: listener.row(run.path, row),
        )
        return run_algorithm_3(
            FineTunedAgent(agent, config.entropy),
            Experience(run, self.original, TrajectoryStore.open(store), sampler),
            self.limits,
            config,
            self.fit_config,
            learnt=trained.run.load(),
            options=self.options,
            observer=observer,
            workers=trained.context.workers,
        )

    def _say_beginning(self, run: Run) -> None:
        say, ceiling = self.trained.listener.say, self.config.ceiling
        lowest = _joined(np.min(self.original.episode_cost, axis=0).tolist())
        limits = ", ".join(_joined(limit.values) for limit in self.limits)
        say(
            f"fine-tuning {self.trained.path} to {limits}; its data begins at {lowest}. The new "
            f"run is in {run.path}; cost! overruns the limit, cost? is within it but not surely"
        )
        if ceiling is None:
            return
        below = [limit.name for limit in self.limits if np.less(ceiling, limit.values).any()]
        if below:
            say(
                f"the ceiling {_joined(ceiling)} lies below the limit {', '.join(below)}: episodes "
                "that would keep it are ended and not learnt from; raise the ceiling unless that "
                "is what you want"
            )


def episode_line(row: ExploredEpisode, allowance: int) -> str:
    """One explored episode, for a person who watches."""
    within = "within" if row.within else "above"
    broke = ", ended at the ceiling" if row.broke_ceiling else ""
    return (
        f"episode {row.number + 1} of {allowance}: limit {_joined(row.limit)}, asked for "
        f"{_joined(row.prompt)}, cost {_joined(row.cost)} ({within}), return "
        f"{row.episode_return:.5g}, {row.num_steps} steps{broke}"
    )


def judged_line(num_episodes: int, verdicts: WeightsVerdict) -> str:
    """An evaluation of all limits, for a person who watches."""
    marks = ["" if v["holds"] else "?" if v["met"] else "!" for v in verdicts.values()]
    parts = [
        f"{_joined(verdict['limit'])}: {_joined(verdict['cost'])}{mark}"
        for verdict, mark in zip(verdicts.values(), marks, strict=True)
    ]
    held = f"{marks.count('')} of {len(verdicts)} limits hold"
    return f"after {num_episodes} episodes {held}; limit: cost  {'  '.join(parts)}"


def _joined(values: Sequence[float]) -> str:
    return ",".join(f"{value:.5g}" for value in values)
