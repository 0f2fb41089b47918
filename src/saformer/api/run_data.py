"""The data that a run was trained on: opened again as it was then, and split as it was."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from saformer.api.listener import Listener
from saformer.criteria import criterion
from saformer.data.limits import Totals, TotalsAlone
from saformer.data.relabel import RelabelledStore, relabel
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.envs.tasks import find_task, is_store, load_data
from saformer.runs.export import read_facts, read_groups
from saformer.runs.run import Run


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
    """What the data of a run earned and cost: an export holds that, for a run the data is opened
    or made."""
    own_discount = run.spec.agent_config["cost_discount"]
    if not run.is_export or data is not None or cost_discount not in {None, own_discount}:
        return data_of(run, listener, data=data, cost_discount=cost_discount)
    check_export_criteria(run)
    totals = read_groups(run, "totals")
    count = len(totals["episode_return"])
    listener.say(f"data: what {count} trajectories earned and cost, as the export holds it")
    return TotalsAlone(
        environment=_environment_of_export(run),
        criteria=tuple(criterion(name, trusted=False) for name in run.spec.criteria),
        cost_discount=own_discount,
        episode_cost=totals["episode_cost"].numpy(),
        episode_return=totals["episode_return"].numpy(),
    )


def store_of(
    run: Run, listener: Listener, data: str | None, *, exact: bool = False
) -> TrajectoryStore:
    """The whole store of a run as it was when the run was trained, if it has only grown since.

    Where it is another, that is an error if it must be `exact`, else a warning.
    """
    check_export_criteria(run)
    spec = run.spec
    store = task_data(data or spec.task, listener, spec.data_steps, spec.data_seed)
    store = store.as_of(spec.data_fingerprint) or store
    if store.fingerprint != spec.data_fingerprint:
        other = (
            f"the data of {spec.task} is not what {run.path} was trained on "
            f"({store.fingerprint} against {spec.data_fingerprint})"
        )
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
    return with_costs(training_part(store, spec.held_out), spec.criteria, discount, listener)


def training_part(store: TrajectoryStore, held_out: float) -> TrajectoryStore:
    return store.split(held_out)[0] if held_out else store


def with_costs(
    store: TrajectoryStore, criteria: Sequence[str], cost_discount: float, listener: Listener
) -> RelabelledStore:
    """The store with its costs; says how much of it there is."""
    data = relabelled(store, criteria, cost_discount)
    listener.say(f"data: {len(data.store)} trajectories, {data.store.num_steps} steps")
    if data.num_left_out:
        left_out = f"left out {data.num_left_out} unfinished trajectories"
        listener.say(f"{left_out}: what they would have cost is unknown")
    return data


def relabelled(
    store: TrajectoryStore, criteria: Sequence[str], cost_discount: float = 1.0
) -> RelabelledStore:
    """The store's finished trajectories with costs by these criteria, or by those that the store
    names."""
    # a store may come from elsewhere: code that it names is never imported
    names, trusted = (criteria, True) if criteria else (store.criteria, False)
    known = [criterion(name, trusted=trusted) for name in names]
    return relabel(store, known, cost_discount=cost_discount)


def check_export_criteria(run: Run) -> None:
    """An export may come from elsewhere: code that it names is never imported."""
    try:
        for name in run.spec.criteria if run.is_export else ():
            criterion(name, trusted=False)
    except ValueError as error:
        raise ValueError(
            f"{run.path} cannot be judged by what it names, only loaded and acted with: {error}. "
            "The run that it was made from can be judged"
        ) from None


def has_environment(run: Run, data: str | None = None) -> bool:
    """Whether the data of a run came from a simulator that a policy can be rolled out in."""
    if run.is_export and data is None:
        return _environment_of_export(run).identifier is not None
    store = find_task(data or run.spec.task).store
    return store is None or store.environment.identifier is not None


def _environment_of_export(run: Run) -> EnvironmentSpec:
    try:
        return EnvironmentSpec.from_plain(read_facts(run)["environment"])
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{run.export_path} is damaged ({error!r}); copy the export again"
        ) from None


def run_of_store(path: str | Path, *, runs: str | Path = "runs") -> Path:
    """The latest run that was trained on the store at this path; those without a checkpoint are
    passed over."""
    specs = [
        spec
        for spec in Path(runs).glob("*/run.json")
        if _was_trained_on(Run(spec.parent), str(path))
    ]
    if not specs:
        raise FileNotFoundError(
            f"no run under {runs} was trained on {path}: train first, or give the run's folder"
        )
    return max(specs, key=lambda spec: spec.stat().st_mtime).parent


def _was_trained_on(run: Run, path: str) -> bool:
    try:
        return run.checkpoint_path.exists() and run.spec.task == locator(path)
    except ValueError:  # another version's, or damaged: whose data it had cannot be said
        return False


def locator(task: str) -> str:
    """The task by a name that leads to its data from any folder."""
    return str(Path(task).resolve()) if is_store(task) else task
