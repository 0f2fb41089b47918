"""Judge a trained agent from logs alone, in a world that is learnt from them once and kept."""

from collections.abc import Sequence
from typing import Any

from saformer.api.loaded import Loaded
from saformer.api.run_data import limits_of, store_of, training_data
from saformer.data.canonical import frontier_of
from saformer.data.limits import Limit
from saformer.data.relabel import RelabelledStore
from saformer.evaluation.evaluate import Terms
from saformer.evaluation.offline.dynamics import VERSION, Dynamics, fit_dynamics
from saformer.evaluation.offline.estimate import Estimate, estimate_policy
from saformer.evaluation.offline.world import World
from saformer.evaluation.settings import JudgeSettings
from saformer.runs.checkpoint import Checkpoint, load_checkpoint, save_checkpoint

FILE, GROUP = "world.safetensors", "dynamics"


def estimate_run(loaded: Loaded, settings: JudgeSettings) -> tuple[Estimate, dict[str, Any]]:
    """What the policy would cost and earn under each limit, and how it acted."""
    return estimate_in(world_of(loaded, settings.may_end), loaded, settings)


def estimate_in(
    world: World, loaded: Loaded, settings: JudgeSettings
) -> tuple[Estimate, dict[str, Any]]:
    """As `estimate_run`, in the world of its data."""
    limits = logged_limits(loaded, world, settings.limits)
    options = loaded.options(settings.rule, settings.options, may_end=settings.may_end)
    frontiers = [frontier_of(loaded.run.spec.task, world.data, limit) for limit in limits]
    estimate = estimate_policy(
        loaded.agent.policy(options),
        world,
        limits,
        episodes=settings.episodes,
        seed=settings.seed,
        terms=Terms(frontiers),
        progress=loaded.listener.evaluating,
    )
    return estimate, loaded.described(options)


def logged_limits(loaded: Loaded, world: World, names: Sequence[str]) -> list[Limit]:
    """Limits of these names in the logs; no simulator is needed."""
    return limits_of(loaded.run.spec, world.data, names)


def world_of(loaded: Loaded, may_end: bool | None = None) -> World:
    """The world of the run's data: learnt once, and read from the folder of findings since."""
    store = store_of(loaded.run, loaded.listener, loaded.context.data, exact=True)
    data: RelabelledStore = loaded.attached(training_data(loaded.run, store, loaded.listener))
    if may_end is not None:
        data = data.with_environment(may_end=may_end)
    facts: dict[str, Any] = {"version": VERSION, "data": data.store.fingerprint}
    facts["criteria"] = [criterion.name for criterion in data.criteria]
    path = loaded.findings.path / FILE
    try:
        kept = load_checkpoint(path, groups=(GROUP,))
        if kept.facts == facts and not any(w.isnan().any() for w in kept.groups[GROUP].values()):
            dynamics = Dynamics.of(data)
            dynamics.load_state_dict(kept.groups[GROUP])
            return World(dynamics.eval(), data)
    except (FileNotFoundError, ValueError, RuntimeError):
        pass  # not there, or damaged: it is learnt again
    loaded.listener.say(f"learning how the machine moves, from {data.store.num_steps} steps")
    dynamics = fit_dynamics(data, progress=loaded.listener.evaluating)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(path, Checkpoint({GROUP: dynamics.state_dict()}, facts))
    return World(dynamics, data)
