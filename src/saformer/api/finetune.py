"""Fine-tune a run to limits that its data never showed."""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from saformer.agents.finetuned import FineTunedAgent
from saformer.agents.saformer import SaFormerAgent
from saformer.api.loaded import Loaded
from saformer.api.run_data import store_of, training_data
from saformer.data.growing import GrowingSampler, Room
from saformer.data.limits import Limit, parse_limit
from saformer.data.relabel import RelabelledStore
from saformer.data.remembered import remember
from saformer.data.store import TrajectoryStore
from saformer.files import validated
from saformer.runs.run import Run
from saformer.runs.spec import RunSpec
from saformer.training.finetune.config import FinetuneConfig
from saformer.training.loop.config import FitConfig

if TYPE_CHECKING:  # exploration needs Gymnasium; training does not
    from saformer.training.finetune.events import FinetuneOutcome


@dataclass(frozen=True)
class FineTuned:
    """A fine-tuned run, and how that ended."""

    run: Run
    outcome: "FinetuneOutcome | None"  # None if the run had finished before


@dataclass(frozen=True)
class Finetuning:
    """A run to fine-tune, to which limits and how; what it cannot explore with is refused."""

    loaded: Loaded
    limit_names: Sequence[str | float]
    config: FinetuneConfig
    options: Any  # how it is judged
    seed: int
    may_end: bool | None = None  # by default as the run's data says

    def __post_init__(self) -> None:
        from saformer.envs.stepping import pick_workers

        pick_workers(self.loaded.context.workers, num_lanes=self.config.lanes, num_steps=0)
        self.loaded.run.load(groups=())  # an export has no checkpoint, and says so

    @cached_property
    def store(self) -> TrajectoryStore:
        loaded = self.loaded
        store = store_of(loaded.run, loaded.listener, loaded.context.data, exact=True)
        store = loaded.attached(store)
        return store if self.may_end is None else store.with_environment(may_end=self.may_end)

    @cached_property
    def original(self) -> RelabelledStore:
        """The data that the run was trained on."""
        from saformer.envs.costed import try_out
        from saformer.training.finetune.experience import check_explorable

        self.loaded.check_environment(self.store.environment)
        data = training_data(self.loaded.run, self.store, self.loaded.listener)
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
            raise ValueError("name at least one limit: a cost (3700) or a percentile (p10)")
        values = [limit.values for limit in limits]
        twice = sorted({limit.name for limit in limits if values.count(limit.values) > 1})
        if twice:
            raise ValueError(f"limit {', '.join(twice)} was named more than once; name each once")
        return limits

    @cached_property
    def fit_config(self) -> FitConfig:
        run = self.loaded.run
        original = validated(FitConfig, run.spec.fit_config, run.spec_path, "train again")
        return self.config.fit_config(original)

    def spec(self, store: Path) -> RunSpec:
        """The new run's, whose data is the store at this path."""
        source = self.loaded.run
        origin = {
            "run": str(source.path.resolve()),
            "spec": source.spec.digest,
            "update": source.load(groups=()).facts["update"],
            "checkpoint": hashlib.sha256(source.checkpoint_path.read_bytes()).hexdigest()[:16],
        }
        finetuning = {
            "from": origin,
            "limits": {limit.name: limit.values for limit in self.limits},
            **asdict(self.config),
            "execution": self.loaded.described(self.options),
        }
        if self.may_end not in {None, self.loaded.may_end}:
            finetuning["may_end"] = self.may_end
        how: Any = {"fit_config": asdict(self.fit_config), "seed": self.seed, "data_steps": None}
        return replace(source.spec, task=str(store), finetuning=finetuning, **how)

    def run(self, out: str | Path | None, *, resume: bool) -> FineTuned:
        """Algorithm 3 in a folder of its own, with a store of its own."""
        source, say = self.loaded.run, self.loaded.listener.say
        names = "-".join(limit.name.replace("/", "-") for limit in self.limits)
        name = f"{source.path.resolve().name}-finetuned-{names}-seed{self.seed}"
        path = Path(out) if out else Path("runs") / name
        store = path.resolve() / source.spec.task_name.replace("/", "-").replace(":", "-")
        run = Run(path)
        with run.writing(self.spec(store), resume=resume):
            remember(run.path, run.spec.digest, run.spec.criteria)
            if run.is_done:
                say(f"{run.path} has already finished; nothing to do")
                return FineTuned(run, None)
            if not store.exists():
                origin = {"finetuned_from": str(source.path.resolve()), **self.store.provenance}
                replace(self.store, provenance=origin).save(store)
            outcome = self._explore(run, store)
        say(f"{outcome}; the run is in {run.path}")
        return FineTuned(run, outcome)

    def _explore(self, run: Run, store: Path) -> "FinetuneOutcome":
        from saformer.training.finetune.algorithm import run_algorithm_3
        from saformer.training.finetune.events import FinetuneObserver, opening_lines, verdict_line
        from saformer.training.finetune.experience import Experience

        loaded, config, listener = self.loaded, self.config, self.loaded.listener
        listener.say(f"fine-tuning {loaded.path}; the new run is in {run.path}")
        for line in opening_lines(self.limits, self.original, config.ceiling):
            listener.say(line)
        agent = cast(SaFormerAgent, loaded.agent)
        sampler = GrowingSampler(
            self.original,
            window=agent.config.window,
            room=Room(config.episodes, config.episodes * (self.store.environment.horizon + 1)),
            share=config.new_share,
            device=loaded.device,
        )
        observer = FinetuneObserver(
            episode=lambda row, allowance: listener.say(row.line(allowance)),
            progress=listener.training,
            judged=lambda num_episodes, verdict: listener.say(verdict_line(num_episodes, verdict)),
            row=lambda row: listener.row(run.path, row),
        )
        return run_algorithm_3(
            FineTunedAgent(agent, config.entropy),
            Experience(run, self.original, TrajectoryStore.open(store), sampler),
            self.limits,
            config,
            self.fit_config,
            learnt=loaded.run.load(),
            options=self.options,
            observer=observer,
            workers=loaded.context.workers,
        )
