"""The data that a run was trained on: opened again as it was then, and split as it was."""

import warnings
from collections.abc import Sequence
from typing import Any

from saformer.api.listener import Listener
from saformer.criteria import CostCriterion
from saformer.data.limits import Limit, Totals, TotalsAlone, parse_limit
from saformer.data.relabel import RelabelledStore, relabelled
from saformer.data.remembered import criteria_of
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.envs.tasks import find_task, load_data, task_names
from saformer.files import validated
from saformer.runs.export import read_facts, read_groups
from saformer.runs.run import Run
from saformer.runs.spec import RunSpec

DEFAULT_LIMITS = ("p10", "p20", "p30", "p50")


def data_of(
    run: Run,
    listener: Listener | None = None,
    *,
    data: str | None = None,
    cost_discount: float | None = None,
) -> RelabelledStore:
    """The training data of a run, relabelled as it was, or with costs discounted otherwise."""
    listener = listener or Listener()
    return training_data(run, store_of(run, listener, data), listener, cost_discount)


def totals_of(
    run: Run, listener: Listener, data: str | None = None, cost_discount: float | None = None
) -> Totals:
    """What its data earned and cost: an export holds that, for a run data is opened or made."""
    own_discount = run.spec.agent_config["cost_discount"]
    if not run.is_export or data is not None or cost_discount not in {None, own_discount}:
        return data_of(run, listener, data=data, cost_discount=cost_discount)
    criteria = tuple(run_criteria(run))
    totals = read_groups(run, "totals")
    count = len(totals["episode_return"])
    listener.say(f"data: what {count} trajectories earned and cost, as the export holds it")
    return TotalsAlone(
        environment=_environment_of_export(run),
        criteria=criteria,
        cost_discount=own_discount,
        episode_cost=totals["episode_cost"].numpy(),
        episode_return=totals["episode_return"].numpy(),
        ended_early=totals["ended_early"].numpy() if "ended_early" in totals else None,
        idle=totals["idle"].numpy() if "idle" in totals else None,
    )


def limits_of(
    spec: RunSpec, data: Totals, names: Sequence[str] = (), usual: Sequence[str] = DEFAULT_LIMITS
) -> list[Limit]:
    """The limits of these names, else those that the run was made for, else the usual ones."""
    if not names and spec.limit is not None:
        return [Limit(spec.limit, tuple(spec.agent_config["limit"]))]
    finetuned = (spec.finetuning or {}).get("limits", {}).items()
    known = {name: Limit(name, tuple(values)) for name, values in finetuned}
    return [known.get(name) or parse_limit(name, data) for name in names or known or usual]


def store_of(
    run: Run, listener: Listener, data: str | None, *, exact: bool = False
) -> TrajectoryStore:
    """The whole store of a run as it was when the run was trained, if it has only grown since.

    Where it is another, that is an error if it must be `exact`, else a warning.
    """
    spec = run.spec
    store = task_data(data or spec.task, listener, spec.data_steps, spec.data_seed)
    store = store.as_of(spec.data_fingerprint) or store
    if store.fingerprint != spec.data_fingerprint:
        prints = f"{store.fingerprint} against {spec.data_fingerprint}"
        other = f"the data of {spec.task} is not what {run.path} was trained on ({prints})"
        if exact:
            raise ValueError(
                f"{other}, so nobody knows what it never saw: say where that data is now with "
                "data (--data), or train again"
            )
        warnings.warn(f"{other}: limits and frontier are of the present data", stacklevel=3)
    return store


def task_data(
    task: str, listener: Listener, steps: int | None = None, seed: int = 0
) -> TrajectoryStore:
    """The data of a task, made on first use."""
    return load_data(find_task(task), steps=steps, seed=seed, progress=listener.building)


def training_data(
    run: Run, store: TrajectoryStore, listener: Listener, cost_discount: float | None = None
) -> RelabelledStore:
    """The share of its store that a run learnt from, with its costs."""
    spec = run.spec
    discount = spec.agent_config["cost_discount"] if cost_discount is None else cost_discount
    return training_part(store, spec.held_out, run_criteria(run), discount, listener)


def training_part(
    store: TrajectoryStore,
    held_out: float,
    criteria: Sequence[Any],
    cost_discount: float,
    listener: Listener,
) -> RelabelledStore:
    """All but the share that is held out, with its costs; says how much that is."""
    part = store.split(held_out)[0] if held_out else store
    data = relabelled(part, criteria, cost_discount)
    listener.say(f"data: {data.store.size}")
    if data.num_left_out:
        left_out = f"{data.num_left_out} unfinished left out"
        listener.say(f"data: {left_out}, as what they would have cost is unknown")
    return data


def run_criteria(run: Run, typed: Sequence[Any] = ()) -> list[CostCriterion]:
    """Its criteria; `typed`: what those that are code are called here."""
    return criteria_of(run.path, run.spec.digest, run.spec.criteria, typed)


def has_environment(run: Run, data: str | None = None) -> bool:
    """Whether the data of a run came from a simulator that a policy can be rolled out in."""
    if run.is_export and data is None:
        return _environment_of_export(run).identifier is not None
    store = find_task(data or run.spec.task).store
    return store is None or store.environment.identifier is not None


def may_end_of(run: Run, data: str | None = None) -> bool:
    """Whether its episodes may end early, as its task or store says; no where neither is there."""
    if run.is_export and data is None:
        return _environment_of_export(run).may_end
    try:
        return find_task(data or run.spec.task).may_end
    except ValueError:
        return False


def _environment_of_export(run: Run) -> EnvironmentSpec:
    plain, task = read_facts(run)["environment"], run.spec.task
    if "may_end" not in plain and task in task_names():  # exported by an older version
        plain["may_end"] = find_task(task).may_end
    return validated(EnvironmentSpec, plain, run.export_path, "copy the export again")
