"""Fine-tune a run to limits that its data never showed."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from saformer.agents.finetuned import FineTunedAgent
from saformer.agents.registry import from_plain, restore_agent
from saformer.agents.saformer import SaFormerAgent
from saformer.api.listener import Listener
from saformer.api.run_data import as_trained, open_data, training_part, with_costs
from saformer.api.settings import options_of, plain_options
from saformer.data.growing import GrowingSampler, Room
from saformer.data.limits import Limit, parse_limit
from saformer.data.relabel import RelabelledStore
from saformer.data.store import TrajectoryStore
from saformer.engine.device import pick_device
from saformer.rules.reserve import ReserveOptions
from saformer.runs.lock import alone_in
from saformer.runs.run import Run, find_run
from saformer.runs.spec import RunSpec
from saformer.training.finetune.config import FinetuneConfig
from saformer.training.loop.config import FitConfig

if TYPE_CHECKING:  # exploration needs Gymnasium; training does not
    from saformer.training.finetune.events import FinetuneObserver, FinetuneOutcome, WeightsVerdict
    from saformer.training.finetune.experience import ExploredEpisode

LEARNING_RATE_SHARE = 1 / 3
"""Of the original run's peak."""


@dataclass(frozen=True)
class FineTuned:
    """A fine-tuned run, and how that ended."""

    run: Run
    outcome: FinetuneOutcome | None
    """None if the run had finished before"""


def finetune(
    path: str | Path,
    limits: Sequence[str | float],
    *,
    episodes: int | None = None,
    ceiling: str | float | None = None,
    attenuation: float | None = None,
    config: FinetuneConfig | None = None,
    execution: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    resume: bool = False,
    device: str = "auto",
    workers: int | Literal["auto"] = "auto",
    listener: Listener | None = None,
) -> FineTuned:
    """Let a trained SaFormer explore its environment until it keeps these limits, and keep that as
    a run of its own.

    `limits` are costs or percentiles of the run's data, and may lie below all of it. `episodes` is
    the allowance, `ceiling` the cost at which an episode is ended; these and `attenuation` take the
    place of what `config` says. `execution` changes how the policy acts, by the names of its
    options, while it explores and is judged: by the paper's rule unless `rule` says "reserve", by
    which it is then judged, not explored. The original run is not touched. The new
    one has a store of its own, in its folder: the original data and every episode since. An
    interrupted call is continued by the same call with `resume=True`.
    """
    from saformer.envs.stepping import pick_workers
    from saformer.training.finetune.algorithm import run_algorithm_3
    from saformer.training.finetune.experience import Experience

    listener, processor, source = listener or Listener(), pick_device(device), find_run(path)
    given = _given(config or FinetuneConfig(), {"episodes": episodes, "attenuation": attenuation})
    pick_workers(
        workers, num_lanes=given.lanes, num_steps=0
    )  # says what is wrong before anything is kept
    spec, checkpoint = source.spec, source.load()
    if spec.agent != SaFormerAgent.name:
        raise ValueError(f"only saformer can be fine-tuned to a limit; {path} is {spec.agent}")
    store = as_trained(
        source,
        open_data(str(data or spec.task), listener, steps=spec.data_steps, seed=spec.data_seed),
    )
    original = _checked(source, store, listener)
    parsed = _limits(limits, original)
    given = replace(
        given, ceiling=_ceiling(ceiling, original) if ceiling is not None else given.ceiling
    )
    target = (
        Path(out) if out else Path("runs") / f"{source.path.resolve().name}-finetuned-seed{seed}"
    )
    fit_config = _fit_config(from_plain(FitConfig, spec.fit_config), given)
    kept = target.resolve() / spec.task_name.replace("/", "-").replace(":", "-")
    agent = restore_agent(
        spec.agent, spec.dimensions, spec.agent_config, checkpoint.groups["model"]
    )
    assert isinstance(agent, SaFormerAgent)
    options = options_of(agent, {"rule": "paper", **(execution or {})})
    by_reserve = isinstance(options, ReserveOptions)
    if by_reserve and not options.enforce:
        raise ValueError(
            "a reserve that is not enforced keeps no limit without a shield: fine-tune by the "
            "paper's rule, or enforce it"
        )
    settings = {
        "limits": {limit.name: limit.values for limit in parsed},
        **asdict(given),
        "execution": plain_options(agent, options),
    }
    fresh = replace(
        spec,
        task=str(kept),
        data_steps=None,
        seed=seed,
        fit_config=asdict(fit_config),
        finetuning={"from": _origin(source, checkpoint.facts), **settings},
    )
    run = _open_run(target, fresh, resume=resume)
    if run.is_done:
        listener.say(f"{run.path} has already finished; nothing to do")
        return FineTuned(run, None)
    with alone_in(run.path):
        if not kept.exists():
            origin = {"finetuned_from": str(source.path.resolve()), **store.provenance}
            replace(store, provenance=origin).save(kept)
        agent.model.to(processor)
        if by_reserve and agent.reserve is None:  # the original run is of an older version
            agent.finish(original)
        sampler = GrowingSampler(
            original,
            window=agent.config.window,
            room=Room(given.episodes, given.episodes * (store.environment.horizon + 1)),
            share=given.new_share,
            device=processor,
        )
        _say_beginning(run, source, parsed, original, listener)
        _remark_on_ceiling(given.ceiling, parsed, listener)
        outcome = run_algorithm_3(
            FineTunedAgent(agent, given.entropy),
            Experience(run, original, TrajectoryStore.open(kept), sampler),
            parsed,
            given,
            fit_config,
            learnt=checkpoint,
            options=options,
            observer=_observer(run, listener),
            workers=workers,
        )
    _say_end(run, outcome, listener)
    return FineTuned(run, outcome)


def _given(config: FinetuneConfig, changes: dict[str, Any]) -> FinetuneConfig:
    return replace(config, **{name: value for name, value in changes.items() if value is not None})


def _checked(source: Run, store: TrajectoryStore, listener: Listener) -> RelabelledStore:
    """The data that the run was trained on; whatever would keep it from being explored further is
    said here."""
    from saformer.envs.costed import try_out
    from saformer.training.finetune.experience import check_explorable

    spec = source.spec
    if store.environment.identifier is None:
        raise ValueError(f"the data of {source.path} has no environment to explore in")
    if store.fingerprint != spec.data_fingerprint:
        raise ValueError(
            f"the data of {spec.task} is not what {source.path} was trained on "
            f"({store.fingerprint} against "
            f"{spec.data_fingerprint}): say where that data is now with data (--data)"
        )
    data = with_costs(
        training_part(store, spec.held_out),
        spec.criteria,
        spec.agent_config["cost_discount"],
        listener,
    )
    check_explorable(data, store)
    try_out(store.environment, data.criteria)
    return data


def _limits(names: Sequence[str | float], data: RelabelledStore) -> list[Limit]:
    if not names:
        raise ValueError(
            "name at least one limit to fine-tune to, as a cost (3700) or a percentile of the "
            "data (p10)"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="limit .* lies outside the data"
        )  # which is what this is for
        limits = [parse_limit(_named(name), data) for name in names]
    twice = sorted(
        {
            limit.name
            for limit in limits
            if sum(limit.values == other.values for other in limits) > 1
        }
    )
    if twice:
        raise ValueError(
            f"limit {', '.join(twice)} was named more than once, by name or value; name each once"
        )
    return limits


def _ceiling(given: str | float, data: RelabelledStore) -> tuple[float, ...]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="limit .* lies outside the data")
        return parse_limit(_named(given), data).values


def _named(limit: str | float) -> str:
    return limit if isinstance(limit, str) else f"{limit:g}"


def _fit_config(original: FitConfig, config: FinetuneConfig) -> FitConfig:
    """As the run was trained, at a lower rate, for as long as the allowance lasts."""
    return replace(
        original,
        updates=config.num_rounds * config.updates,
        learning_rate=config.learning_rate or LEARNING_RATE_SHARE * original.learning_rate,
        warmup_updates=config.warmup_updates,
        evaluate_every=0,
    )


def _origin(source: Run, facts: dict[str, Any]) -> dict[str, Any]:
    """Which run and checkpoint a fine-tuned run came from."""
    return {
        "run": str(source.path.resolve()),
        "spec": source.spec.digest,
        "update": facts["update"],
        "checkpoint": hashlib.sha256(source.checkpoint_path.read_bytes()).hexdigest()[:16],
    }


def _open_run(path: Path, spec: RunSpec, *, resume: bool) -> Run:
    run = Run(path)
    if not resume or not run.spec_path.exists():
        if resume:
            raise FileNotFoundError(
                f"there is no run to resume in {path}; leave --resume out to begin one"
            )
        return Run.create(path, spec)
    differences = run.spec.differences(spec)
    if differences:
        raise ValueError(
            f"{path} was begun with other settings, so it cannot be resumed: "
            f"{'; '.join(differences)}"
        )
    return run


def _observer(run: Run, listener: Listener) -> FinetuneObserver:
    from saformer.training.finetune.events import FinetuneObserver

    return FinetuneObserver(
        episode=lambda row, allowance: listener.say(episode_line(row, allowance)),
        progress=listener.training,
        judged=lambda num_episodes, found: listener.say(judged_line(num_episodes, found)),
        row=lambda row: listener.row(run.path, row),
    )


def episode_line(row: ExploredEpisode, allowance: int) -> str:
    """One explored episode, for a person who watches."""
    kept = "within" if row.within else "above"
    broke = ", ended at the ceiling" if row.broke_ceiling else ""
    return (
        f"episode {row.number + 1} of {allowance}: limit {_joined(row.limit)}, asked for "
        f"{_joined(row.prompt)}, "
        f"cost {_joined(row.cost)} ({kept}), return {row.episode_return:.5g}, {row.num_steps} "
        f"steps{broke}"
    )


def judged_line(num_episodes: int, found: WeightsVerdict) -> str:
    """One evaluation of all limits."""
    parts = [
        f"{_joined(one['limit'])}: "
        f"{_joined(one['cost'])}{'' if one['holds'] else '?' if one['met'] else '!'}"
        for one in found.values()
    ]
    held = sum(one["holds"] for one in found.values())
    return f"after {num_episodes} episodes {held} of {len(found)} limits hold; limit: cost  {'  '.join(parts)}"


def _joined(values: Sequence[float]) -> str:
    return ",".join(f"{value:.5g}" for value in values)


def _say_beginning(
    run: Run, source: Run, limits: Sequence[Limit], data: RelabelledStore, listener: Listener
) -> None:
    lowest = _joined(np.min(data.episode_cost, axis=0).tolist())
    listener.say(
        f"fine-tuning {source.path} to {', '.join(_joined(limit.values) for limit in limits)}; "
        "its data begins at "
        f"{lowest}. The new run is in {run.path}; cost! overruns the limit, cost? is within it "
        "but not surely"
    )


def _remark_on_ceiling(
    ceiling: tuple[float, ...] | None, limits: Sequence[Limit], listener: Listener
) -> None:
    below = (
        []
        if ceiling is None
        else [limit.name for limit in limits if np.less(ceiling, limit.values).any()]
    )
    if ceiling is not None and below:
        listener.say(
            f"the ceiling {_joined(ceiling)} lies below the limit {', '.join(below)}: episodes "
            "that would keep it are "
            "ended and not learnt from; raise the ceiling unless that is what you want"
        )


def _say_end(run: Run, outcome: FinetuneOutcome, listener: Listener) -> None:
    ended = "every limit holds" if outcome.held else "the allowance is spent"
    listener.say(
        f"{ended}: {outcome.num_episodes} new trajectories ({outcome.broke_ceiling:.0%} broke "
        "the ceiling), "
        f"{outcome.num_evaluation_episodes} episodes of evaluation; the run in {run.path} has "
        "the weights of its best "
        f"evaluation, after {outcome.kept_after} episodes"
    )
