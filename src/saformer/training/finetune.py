"""Algorithm 3: explore below a limit, relabel with what really happened, aggregate, train; until
the limit holds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from torch import Tensor

from saformer.agents.finetuned import FineTunedAgent, put_together, taken_apart
from saformer.core.rules import Fallback, NoCriticOptions, PaperOptions, ProposalOptions
from saformer.data.limits import Limit
from saformer.data.statistics import without_nan
from saformer.envs.rollout import Episode
from saformer.envs.stepping import Workers
from saformer.runs.checkpoint import Checkpoint
from saformer.runs.run import Run
from saformer.training.best import best_of, settled
from saformer.training.config import FitConfig
from saformer.training.experience import Experience, Target, next_fallback, targets_for
from saformer.training.exploration import (
    StoppedExploringError,
    blamed_on_the_environment,
    explore,
    shared_workers,
)
from saformer.training.finetune_config import FinetuneConfig
from saformer.training.finetune_events import FinetuneObserver, Outcome
from saformer.training.fit import InterruptedTrainingError, in_mode
from saformer.training.interrupt import Interrupt
from saformer.training.judging import Judged, judge
from saformer.training.trainer import Member, NonFiniteLossError, PackTrainer

BEST = "best"
"""The group of a checkpoint with the weights of the best evaluation, if they are not the
model's."""


def finetune(
    agent: FineTunedAgent,
    experience: Experience,
    limits: Sequence[Limit],
    config: FinetuneConfig,
    fit_config: FitConfig,
    *,
    seed: int,
    run: Run,
    learnt: Checkpoint,
    options: ProposalOptions | None = None,
    observer: FinetuneObserver | None = None,
    workers: Workers = "auto",
) -> Outcome:
    """Explore, relabel, aggregate and train by turns, until every limit surely holds or the
    allowance is spent.

    Implements: Algorithm 3

    `learnt` is the checkpoint that the agent came from; a run that has a checkpoint of its own goes
    on from there. What the agent and the run end with are the weights of the best evaluation, which
    need not be the last. Every episode is on disk before the next thing happens; Ctrl-C raises
    `InterruptedTrainingError` after saving, environments that fail `EnvironmentFailedError`, a loss
    that is not finite `NonFiniteLossError`.
    """
    loop = _Loop(
        agent=agent,
        experience=experience,
        limits=limits,
        config=config,
        fit_config=fit_config,
        seed=seed,
        run=run,
        options=options or agent.default_options,
        observer=observer or FinetuneObserver(),
        workers=workers,
    )
    loop.begin(learnt)
    with Interrupt() as interrupt:
        try:
            while not loop.is_over:
                loop.go_on(interrupt)
                if interrupt.requested:
                    raise InterruptedTrainingError(
                        f"stopped after {len(experience)} of {config.episodes} episodes; saved "
                        f"in {run.path}"
                    )
        except KeyboardInterrupt:  # the second one, which nothing waits for
            raise InterruptedTrainingError(
                f"stopped at once after {len(experience)} of {config.episodes} episodes; what "
                "was in flight is lost, "
                f"all else saved in {run.path}"
            ) from None
    return loop.finish()


def exploration_options(options: ProposalOptions) -> PaperOptions:
    """Algorithm 3 explores by Algorithm 1, whatever rule the policy is judged by."""
    shared = {field.name: getattr(options, field.name) for field in fields(ProposalOptions)}
    return options if isinstance(options, PaperOptions) else PaperOptions(**shared)


class _Loop:
    """What is due next follows from how many episodes, updates and evaluations there are, so it can
    stop anywhere."""

    def __init__(
        self,
        *,
        agent: FineTunedAgent,
        experience: Experience,
        limits: Sequence[Limit],
        config: FinetuneConfig,
        fit_config: FitConfig,
        seed: int,
        run: Run,
        options: ProposalOptions,
        observer: FinetuneObserver,
        workers: Workers,
    ) -> None:
        self._agent, self._experience, self._limits, self._config = (
            agent,
            experience,
            tuple(limits),
            config,
        )
        self._seed, self._run, self._observer = seed, run, observer
        self._workers = shared_workers(
            workers,
            num_lanes=(config.lanes, config.evaluation_episodes * len(limits)),
            num_steps=config.episodes * experience.data.store.environment.horizon,
        )
        self._trainer = PackTrainer([Member(agent, experience.sampler, seed, run)], fit_config)
        # two, as each is recorded for its own number of lanes
        self._judging = agent.policy(options)
        explored = exploration_options(options)
        kinds: tuple[Fallback, ...] = (explored.fallback, config.exploration_fallback)
        rounds = min(config.exploration_rounds, explored.rounds)
        has_critic = not isinstance(options, NoCriticOptions)
        self._exploring = {
            kind: agent.policy(
                replace(explored, fallback=kind, rounds=rounds) if has_critic else options
            )
            for kind in kinds
        }
        self._evaluations: list[dict[str, Any]] = []  # rows of metrics
        self._kept: dict[str, Tensor] = {}  # weights of the best evaluation

    def begin(self, learnt: Checkpoint) -> None:
        """From the run's own checkpoint, or else from weights and optimisers of the run that was
        trained before."""
        if self._run.checkpoint_path.exists():
            saved = self._run.load()
            weights = put_together(saved.groups["model"], saved.groups["temperature"])
            self._trainer.restore([Checkpoint({**saved.groups, "model": weights}, saved.facts)])
            self._kept = saved.groups.get(
                BEST, weights
            )  # without that group, the model itself is the best
        else:
            fresh = self._trainer.checkpoint({})
            optimizers = {
                name: part for name, part in learnt.groups.items() if name.startswith("optimizer.")
            }
            self._trainer.restore([Checkpoint({**fresh.groups, **optimizers}, fresh.facts)])
            self._save()
        self._run.rewind_metrics(self._trainer.update)
        self._evaluations = [row for row in self._run.metrics() if "evaluation" in row]
        self._keep_the_best()

    @property
    def is_over(self) -> bool:
        """Nothing is to be learnt or judged any more, and nothing to be explored."""
        return (
            not self._updates_due
            and not self._is_evaluation_due
            and (self._is_spent or not self._open_limits)
        )

    def go_on(self, interrupt: Interrupt) -> None:
        """Do what is due next."""
        if self._updates_due:
            self._train(interrupt)
        elif self._is_evaluation_due:
            self._evaluate()
        else:
            self._explore(interrupt)

    def finish(self) -> Outcome:
        """Say how it went, and mark the run as done."""
        self._agent.model.load_state_dict(self._kept)
        self._agent.finish(self._experience.data)
        self._kept = self._weights()
        self._save(finished=True)
        self._agent.model.load_state_dict(self._kept)  # a pack has just given it the latest
        outcome = Outcome.of(self._experience.rows, self._evaluations)
        facts = {
            "updates": self._trainer.update,
            "seconds": round(self._trainer.seconds, 1),
            **outcome.facts(),
        }
        self._run.mark_done(facts)
        return outcome

    @property
    def _is_spent(self) -> bool:
        return len(self._experience) >= self._config.episodes

    @property
    def _num_rounds(self) -> int:
        """Whole ones; the last may be short."""
        return (
            self._config.num_rounds
            if self._is_spent
            else len(self._experience) // self._config.lanes
        )

    @property
    def _updates_due(self) -> int:
        if not self._experience.sampler.num_trajectories:
            return 0  # every episode was cut short: there is nothing new to learn from
        return max(0, self._num_rounds * self._config.updates - self._trainer.update)

    @property
    def _is_evaluation_due(self) -> bool:
        on_time = (
            self._num_rounds % self._config.evaluate_every == 0 and not self._is_within_a_round
        )
        return (on_time or self._is_spent) and not self._is_judged

    @property
    def _is_judged(self) -> bool:
        """As it is now."""
        return bool(self._evaluations) and self._evaluations[-1]["update"] == self._trainer.update

    @property
    def _is_within_a_round(self) -> bool:
        return not self._is_spent and len(self._experience) % self._config.lanes > 0

    @property
    def _open_limits(self) -> list[Limit]:
        """Those that did not hold when they were last judged, or had lost their return."""
        if not self._evaluations:
            return list(self._limits)
        first, latest = (self._evaluations[number]["evaluation"] for number in (0, -1))
        return [limit for limit in self._limits if limit.name not in settled(latest, first)]

    def _explore(self, interrupt: Interrupt) -> None:
        """The episodes that are missing from this round."""
        first, config = len(self._experience), self._config
        wanted = min(config.lanes - first % config.lanes, config.episodes - first)
        rows, reference = self._experience.rows, self._experience.reference
        fallback = next_fallback(rows, tuple(self._exploring), reference, lanes=config.lanes)
        policy = self._exploring[fallback]
        policy.seed = 1_000_003 * self._seed + first + 1
        doing = f"exploring episodes {first} to {first + wanted - 1}"
        with (
            in_mode(self._trainer, training=False),
            blamed_on_the_environment(doing, str(self._run.path)),
        ):
            self._trainer.unpack()
            try:
                explore(
                    policy,
                    self._experience.data,
                    targets_for(self._open_limits, rows, config.factors, count=wanted),
                    first=first,
                    seed=self._seed,
                    ceiling=config.ceiling,
                    keep=partial(self._keep, fallback),
                    interrupt=interrupt,
                    workers=self._workers,
                )
            except StoppedExploringError:
                return

    def _keep(
        self, fallback: Fallback, target: Target, episode: Episode, broke_ceiling: bool
    ) -> None:
        update = self._trainer.update
        row = self._experience.add(
            episode, target, update=update, fallback=fallback, broke_ceiling=broke_ceiling
        )
        self._observer.episode(row, self._config.episodes)
        if row.end == "overlong":
            horizon = self._experience.data.store.environment.horizon
            raise ValueError(
                f"episode {row.number} did not end within {horizon} steps, which is the longest "
                "that its data knows, "
                "and none of that was cut off there: does the environment never end?"
            )

    def _train(self, interrupt: Interrupt) -> None:
        total, due = self._config.num_rounds * self._config.updates, self._updates_due
        sums: dict[str, float] = {}
        began, before = time.perf_counter(), self._trainer.update
        try:
            with in_mode(self._trainer, training=True):
                while (done := self._trainer.update - before) < due and not interrupt.requested:
                    count, (metrics,) = self._trainer.advance(due - done)
                    sums = {
                        name: sums.get(name, 0.0) + count * value for name, value in metrics.items()
                    }
                    self._observer.progress(self._trainer.update, total, metrics)
        except NonFiniteLossError as error:
            self._save()
            raise NonFiniteLossError(
                f"{error}. The state before it is saved in {self._run.path}"
            ) from None
        self._trainer.seconds += time.perf_counter() - began
        if done:
            means = {name: value / done for name, value in sums.items()}
            self._write(
                {
                    "update": self._trainer.update,
                    "seconds": round(self._trainer.seconds, 3),
                    **means,
                }
            )
            self._save()

    def _evaluate(self) -> None:
        """All limits, as they are: nothing is attenuated, and what is seen is not learnt from.

        Of many evaluations one will look good by chance; so where all limits hold, they must do so
        once more.
        """
        judged = self._judge(again=False)
        num_episodes = self._config.evaluation_episodes * len(self._limits)
        if all(found["holds"] for found in judged.values()):
            judged = self._judge(again=True)
            num_episodes *= 2
        row = {
            "update": self._trainer.update,
            "episodes": len(self._experience),
            "evaluation_episodes": num_episodes,
        }
        self._write({**row, "evaluation": judged})
        self._evaluations.append({**row, "evaluation": judged})
        self._keep_the_best()
        self._observer.judged(len(self._experience), judged)

    def _judge(self, *, again: bool) -> Judged:
        doing = f"judging the limits after {len(self._experience)} episodes"
        with (
            in_mode(self._trainer, training=False),
            blamed_on_the_environment(doing, str(self._run.path)),
        ):
            self._trainer.unpack()
            return judge(
                self._judging,
                self._experience.data,
                self._limits,
                episodes=self._config.evaluation_episodes,
                seed=2 * self._seed + again,
                workers=self._workers,
            )

    def _write(self, row: dict[str, Any]) -> None:
        self._run.append_metrics(without_nan(row))
        self._observer.row(row)

    def _keep_the_best(self) -> None:
        """The weights as they are, if nothing was judged better than they; they are saved when they
        next change."""
        if self._is_judged and best_of(self._evaluations) is self._evaluations[-1]:
            self._trainer.unpack()
            self._kept = self._weights()

    def _weights(self) -> dict[str, Tensor]:
        weights = self._agent.model.state_dict()
        return {name: value.detach().to("cpu", copy=True) for name, value in weights.items()}

    def _save(self, *, finished: bool = False) -> None:
        """SaFormer's weights as any run has them, so that any reader of runs can read this one.

        While it goes on they are the latest, and the best lie beside them; a finished run has the
        best alone.
        """
        whole = self._trainer.checkpoint(
            {"spec": self._run.spec.digest, "episodes": len(self._experience)}
        )
        networks, temperature = taken_apart(self._kept if finished else whole.groups["model"])
        best = {} if finished else self._kept
        groups = {**whole.groups, "model": networks, "temperature": temperature, BEST: best}
        self._run.save(Checkpoint(groups, whole.facts))
