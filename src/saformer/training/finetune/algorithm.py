"""Algorithm 3: explore below a limit, relabel with the real cost, aggregate, train, repeat."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from saformer.agents.finetuned import FineTunedAgent, put_together, taken_apart
from saformer.core.rules import Fallback, NoCriticOptions, PaperOptions, ProposalOptions
from saformer.data.interrupt import Interrupt
from saformer.data.limits import Limit
from saformer.data.statistics import without_nan
from saformer.envs.episodes import Episode
from saformer.envs.stepping import Workers
from saformer.files import FullDiskError
from saformer.runs.checkpoint import Checkpoint
from saformer.training.finetune.config import FinetuneConfig
from saformer.training.finetune.events import (
    FinetuneObserver,
    FinetuneOutcome,
    best_of,
    judge_weights,
    settled,
)
from saformer.training.finetune.experience import Experience, Target, next_fallback, targets_for
from saformer.training.finetune.exploration import (
    EnvironmentFailedError,
    StoppedExploringError,
    explore,
    shared_workers,
)
from saformer.training.loop.config import FitConfig
from saformer.training.loop.fit import InterruptedTrainingError, in_mode
from saformer.training.loop.trainer import Member, NonFiniteLossError, PackTrainer

BEST = "best"  # group of a checkpoint: weights of the best evaluation, if they are not the model's


def run_algorithm_3(
    agent: FineTunedAgent,
    experience: Experience,
    limits: Sequence[Limit],
    config: FinetuneConfig,
    fit_config: FitConfig,
    *,
    learnt: Checkpoint,
    options: ProposalOptions | None = None,
    observer: FinetuneObserver | None = None,
    workers: Workers = "auto",
) -> FinetuneOutcome:
    """Explore, relabel, aggregate and train by turns, until every limit surely holds or the
    allowance is spent.

    Implements: Algorithm 3

    `learnt` is the checkpoint that the agent came from; a run that has a checkpoint of its own goes
    on from there. The agent and the run end with the weights of the best evaluation, which need not
    be the last. Every episode is on disk before the next thing happens; Ctrl-C raises
    `InterruptedTrainingError` after saving, environments that fail `EnvironmentFailedError`, a loss
    that is not finite `NonFiniteLossError`.
    """
    options, observer = options or agent.options(), observer or FinetuneObserver()
    loop = _Loop(agent, experience, limits, config, fit_config, options, observer, workers)
    loop.begin(learnt)
    saved = f"saved in {experience.run.path}"
    with Interrupt() as interrupt:
        try:
            while loop.go_on(interrupt):
                if interrupt.requested:
                    raise InterruptedTrainingError(f"stopped after {loop.progress}; {saved}")
        except KeyboardInterrupt:  # the second one, which nothing waits for
            message = (
                f"stopped at once after {loop.progress}; what was in flight is lost, all else "
            )
            raise InterruptedTrainingError(message + saved) from None
    return loop.finish()


def exploration_options(options: ProposalOptions) -> PaperOptions:
    """Algorithm 3 explores by Algorithm 1, whatever rule the policy is judged by."""
    shared = {field.name: getattr(options, field.name) for field in fields(ProposalOptions)}
    return options if isinstance(options, PaperOptions) else PaperOptions(**shared)


@dataclass
class _Loop:
    """Can stop anywhere: the numbers of episodes, updates and evaluations say what is due next."""

    agent: FineTunedAgent
    experience: Experience
    limits: Sequence[Limit]
    config: FinetuneConfig
    fit_config: FitConfig
    options: ProposalOptions
    observer: FinetuneObserver
    workers: Workers

    def __post_init__(self) -> None:
        config, options, self.run = self.config, self.options, self.experience.run
        self.seed = self.run.spec.seed
        lanes = (config.lanes, config.evaluation_episodes * len(self.limits))
        num_steps = config.episodes * self.experience.data.store.environment.horizon
        self.workers = shared_workers(self.workers, num_lanes=lanes, num_steps=num_steps)
        member = Member(self.agent, self.experience.sampler, self.seed, self.run)
        self.trainer = PackTrainer([member], self.fit_config)
        # policies for judging and exploring: each is recorded for its own number of lanes
        self.judging = self.agent.policy(options)
        explored = exploration_options(options)
        kinds: tuple[Fallback, ...] = (config.exploration_fallback, explored.fallback)
        rounds = min(config.exploration_rounds, explored.rounds)
        has_critic = not isinstance(options, NoCriticOptions)
        choices = {kind: replace(explored, fallback=kind, rounds=rounds) for kind in kinds}
        pairs = ((kind, choice if has_critic else options) for kind, choice in choices.items())
        self.exploring = {kind: self.agent.policy(choice) for kind, choice in pairs}
        self.evaluations: list[dict[str, Any]] = []  # rows of metrics
        self.best_weights: dict[str, Tensor] = {}

    def begin(self, learnt: Checkpoint) -> None:
        """From the run's own checkpoint, or else from the optimisers of the run before it."""
        if self.run.checkpoint_path.exists():
            saved = self.run.load()
            weights = put_together(saved.groups["model"], saved.groups["temperature"])
            self.trainer.restore([Checkpoint({**saved.groups, "model": weights}, saved.facts)])
            # without that group, the model itself is the best
            self.best_weights = saved.groups.get(BEST, weights)
        else:
            fresh = self.trainer.checkpoint({})
            optimizers = {n: g for n, g in learnt.groups.items() if n.startswith("optimizer.")}
            self.trainer.restore([Checkpoint({**fresh.groups, **optimizers}, fresh.facts)])
            self._save()
        self.run.rewind_metrics(self.trainer.update)
        self.evaluations = [row for row in self.run.metrics() if "evaluation" in row]
        self._remember_the_best()

    @property
    def progress(self) -> str:
        return f"{len(self.experience)} of {self.config.episodes} episodes"

    def go_on(self, interrupt: Interrupt) -> bool:
        """Do what is due next; False where nothing is."""
        if self._updates_due:
            self._train(interrupt)
        elif self._is_evaluation_due:
            self._evaluate()
        elif self._is_spent or not self._open_limits:
            return False
        else:
            self._explore(interrupt)
        return True

    def finish(self) -> FinetuneOutcome:
        """Mark the run as done, with the best weights."""
        self.agent.model.load_state_dict(self.best_weights)
        self.agent.finish(self.experience.data)
        self.best_weights = self._weights()
        self._save(finished=True)
        self.agent.model.load_state_dict(self.best_weights)  # a pack has just given it the latest
        outcome = FinetuneOutcome.of(self.experience.rows, self.evaluations)
        trained = {"updates": self.trainer.update, "seconds": round(self.trainer.seconds, 1)}
        self.run.mark_done({**trained, **outcome.facts()})
        return outcome

    @property
    def _is_spent(self) -> bool:
        return len(self.experience) >= self.config.episodes

    @property
    def _num_rounds(self) -> int:
        whole = len(self.experience) // self.config.lanes  # the last round may be short
        return self.config.num_rounds if self._is_spent else whole

    @property
    def _updates_due(self) -> int:
        if not self.experience.sampler.num_trajectories:
            return 0  # every episode was cut short: there is nothing new to learn from
        return max(0, self._num_rounds * self.config.updates - self.trainer.update)

    @property
    def _is_evaluation_due(self) -> bool:
        is_within_a_round = len(self.experience) % self.config.lanes > 0
        is_on_time = self._num_rounds % self.config.evaluate_every == 0 and not is_within_a_round
        return (is_on_time or self._is_spent) and not self._is_judged

    @property
    def _is_judged(self) -> bool:
        """Whether the present weights are."""
        return bool(self.evaluations) and self.evaluations[-1]["update"] == self.trainer.update

    @property
    def _open_limits(self) -> list[Limit]:
        """Those that did not hold when they were last judged, or had lost their return."""
        if not self.evaluations:
            return list(self.limits)
        first, latest = self.evaluations[0]["evaluation"], self.evaluations[-1]["evaluation"]
        closed = settled(latest, first)
        return [limit for limit in self.limits if limit.name not in closed]

    def _explore(self, interrupt: Interrupt) -> None:
        """The episodes that are missing from this round. Its lanes share their noise, so all act
        again, and what is stored already is not stored twice."""
        config, rows = self.config, self.experience.rows
        first = len(rows) // config.lanes * config.lanes
        count, stored = min(config.lanes, config.episodes - first), {r.seed for r in rows[first:]}
        reference = self.experience.reference
        fallback = next_fallback(rows, tuple(self.exploring), reference, lanes=config.lanes)
        policy = self.exploring[fallback]
        policy.seed = 1_000_003 * self.seed + first + 1

        def on_end(target: Target, episode: Episode, broke_ceiling: bool) -> None:
            if episode.seed not in stored:
                self._store_episode(fallback, target, episode, broke_ceiling)

        with self._acting(f"exploring episodes {first} to {first + count - 1}"):
            targets = targets_for(self._open_limits, rows[:first], config.factors, count=count)
            how: Any = {"seed": self.seed, "ceiling": config.ceiling, "workers": self.workers}
            what = (policy, self.experience.data, targets)
            explore(*what, first=first, on_end=on_end, interrupt=interrupt, **how)

    def _store_episode(
        self, fallback: Fallback, target: Target, episode: Episode, broke_ceiling: bool
    ) -> None:
        update, add = self.trainer.update, self.experience.add
        row = add(episode, target, update=update, fallback=fallback, broke=broke_ceiling)
        self.observer.episode(row, self.config.episodes)
        if row.end == "overlong":
            horizon = self.experience.data.store.environment.horizon
            raise ValueError(
                f"episode {row.number} did not end within {horizon} steps, as all stored ones do: "
                "does the environment never end?"
            )

    def _train(self, interrupt: Interrupt) -> None:
        total, due = self.config.num_rounds * self.config.updates, self._updates_due
        sums: dict[str, float] = {}
        began, before = time.perf_counter(), self.trainer.update
        try:
            with in_mode(self.trainer, training=True):
                while (done := self.trainer.update - before) < due and not interrupt.requested:
                    count, (metrics,) = self.trainer.advance(due - done)
                    for name, value in metrics.items():
                        sums[name] = sums.get(name, 0.0) + count * value
                    self.observer.progress(self.trainer.update, total, metrics)
        except NonFiniteLossError as error:
            self._save()
            saved = f"The state before it is saved in {self.run.path}"
            raise NonFiniteLossError(f"{error}. {saved}") from None
        self.trainer.seconds += time.perf_counter() - began
        if done:
            means = {name: value / done for name, value in sums.items()}
            seconds = round(self.trainer.seconds, 3)
            self._write({"update": self.trainer.update, "seconds": seconds, **means})
            self._save()

    def _evaluate(self) -> None:
        """All limits, not attenuated. Of many evaluations one will look good by chance; so where
        all limits hold, they must do so once more."""
        episodes, data = self.config.evaluation_episodes, self.experience.data
        how: dict[str, Any] = {"episodes": episodes, "workers": self.workers}
        for times in (1, 2):
            seed = 2 * self.seed + times - 1
            with self._acting(f"judging the limits after {len(self.experience)} episodes"):
                verdict = judge_weights(self.judging, data, self.limits, seed=seed, **how)
            if not all(each["holds"] for each in verdict.values()):
                break
        row: dict[str, Any] = {"update": self.trainer.update, "episodes": len(self.experience)}
        row |= {"evaluation_episodes": times * episodes * len(self.limits), "evaluation": verdict}
        self._write(row)
        self.evaluations.append(row)
        self._remember_the_best()
        self.observer.judged(len(self.experience), verdict)

    @contextmanager
    def _acting(self, doing: str) -> Iterator[None]:
        """Policies act with what was learnt last; what goes wrong is the environment's doing."""
        try:
            with in_mode(self.trainer, training=False):
                self.trainer.unpack()
                yield
        except StoppedExploringError:
            return
        except FullDiskError:
            raise
        except Exception as error:
            raise EnvironmentFailedError(
                f"the environment failed while {doing}: {type(error).__name__}: {error}. What came "
                f"before is saved in {self.run.path}; mend it and go on with resume (--resume)"
            ) from error

    def _write(self, row: dict[str, Any]) -> None:
        self.run.append_metrics(without_nan(row))
        self.observer.row(row)

    def _remember_the_best(self) -> None:
        """The present weights, if none were judged better; they are saved when they change."""
        if self._is_judged and best_of(self.evaluations) is self.evaluations[-1]:
            self.trainer.unpack()
            self.best_weights = self._weights()

    def _weights(self) -> dict[str, Tensor]:
        weights = self.agent.model.state_dict()
        return {name: value.detach().to("cpu", copy=True) for name, value in weights.items()}

    def _save(self, *, finished: bool = False) -> None:
        """SaFormer's weights as any run has them: the latest, with the best beside them; a finished
        run has the best alone."""
        facts = {"spec": self.run.spec.digest, "episodes": len(self.experience)}
        whole = self.trainer.checkpoint(facts)
        model = self.best_weights if finished else whole.groups["model"]
        networks, temperature = taken_apart(model)
        best = {} if finished else self.best_weights
        groups = {**whole.groups, "model": networks, "temperature": temperature, BEST: best}
        self.run.save(Checkpoint(groups, whole.facts))
