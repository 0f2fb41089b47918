"""The data that a run was trained on: found again, and split as it was."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from saformer.api.listener import Listener
from saformer.criteria import criterion
from saformer.data.relabel import RelabelledStore, relabel
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.totals import Totals, TotalsAlone
from saformer.envs.tasks import find_task, is_store, load_data
from saformer.runs.export import read_facts, read_groups
from saformer.runs.run import Run, find_run


def data_of(
    run: Run,
    listener: Listener | None = None,
    *,
    data: str | Path | None = None,
    cost_discount: float | None = None,
) -> RelabelledStore:
    """The data that a run was trained on, relabelled as it was, or with costs discounted
    otherwise."""
    spec, listener = run.spec, listener or Listener()
    check_criteria(run)
    store = as_trained(
        run, open_data(str(data or spec.task), listener, steps=spec.data_steps, seed=spec.data_seed)
    )
    _check_fingerprint(run, store)
    training = training_part(store, spec.held_out)
    discount = spec.agent_config["cost_discount"] if cost_discount is None else cost_discount
    return with_costs(training, spec.criteria, discount, listener)


def totals_of(
    run: Run,
    listener: Listener | None = None,
    *,
    data: str | Path | None = None,
    cost_discount: float | None = None,
) -> Totals:
    """What the data of a run earned and cost: an export has it with it, for another run the data is
    opened or made."""
    spec, listener = run.spec, listener or Listener()
    if (
        not run.is_export
        or data is not None
        or cost_discount not in {None, spec.agent_config["cost_discount"]}
    ):
        return data_of(run, listener, data=data, cost_discount=cost_discount)
    check_criteria(run)
    kept = read_groups(run, "totals")
    listener.say(
        f"data: what {len(kept['episode_return'])} trajectories earned and cost, as the export "
        "keeps it"
    )
    return TotalsAlone(
        environment=_kept_environment(run),
        criteria=tuple(criterion(name, trusted=False) for name in spec.criteria),
        cost_discount=spec.agent_config["cost_discount"],
        episode_cost=kept["episode_cost"].numpy(),
        episode_return=kept["episode_return"].numpy(),
    )


def check_criteria(run: Run) -> None:
    """An export may come from elsewhere: what it names is never imported as code."""
    for name in run.spec.criteria if run.is_export else ():
        try:
            criterion(name, trusted=False)
        except ValueError as error:
            raise ValueError(
                f"{run.path} cannot be judged by what it names, only loaded and acted with: "
                f"{error}. The run that it "
                "was made from can be judged"
            ) from None


def _kept_environment(run: Run) -> EnvironmentSpec:
    try:
        return EnvironmentSpec.from_plain(read_facts(run)["environment"])
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{run.export_path} is damaged ({error!r}); copy the export again"
        ) from None


def has_environment(path: str | Path, *, data: str | Path | None = None) -> bool:
    """Whether the data of a run came from a simulator that a policy can be rolled out in."""
    run = find_run(path)
    if run.is_export and data is None:
        return _kept_environment(run).identifier is not None
    store = find_task(str(data or run.spec.task)).store
    return store is None or store.environment.identifier is not None


def run_of_store(path: str | Path, *, runs: str | Path = "runs") -> Path:
    """The latest run that was trained on the store at this path; those without a checkpoint are
    passed over."""
    trained = [
        spec.parent
        for spec in Path(runs).glob("*/run.json")
        if _was_trained_on(Run(spec.parent), str(path))
    ]
    if not trained:
        raise FileNotFoundError(
            f"no run under {runs} was trained on {path}: train first, or give the run's folder"
        )
    return max(trained, key=lambda run: (run / "run.json").stat().st_mtime)


def _was_trained_on(run: Run, path: str) -> bool:
    try:
        return run.checkpoint_path.exists() and run.spec.task == locator(path)
    except ValueError:  # another version's, or damaged: whose data it had cannot be said
        return False


def relabelled(
    store: TrajectoryStore, criteria: Sequence[str], cost_discount: float = 1.0
) -> RelabelledStore:
    """The store's finished trajectories with costs by these criteria, or by those that the store
    names."""
    if criteria:
        return relabel(store, [criterion(name) for name in criteria], cost_discount=cost_discount)
    # a store may come from elsewhere: what it names is never imported as code
    return relabel(
        store,
        [criterion(name, trusted=False) for name in store.criteria],
        cost_discount=cost_discount,
    )


def open_data(task: str, listener: Listener, *, steps: int | None, seed: int) -> TrajectoryStore:
    """The data of a task, made on first use."""
    return load_data(find_task(task), steps=steps, seed=seed, progress=listener.building)


def locator(task: str) -> str:
    """How a run finds its data again, from whatever folder."""
    return str(Path(task).resolve()) if is_store(task) else task


def with_costs(
    store: TrajectoryStore, criteria: Sequence[str], cost_discount: float, listener: Listener
) -> RelabelledStore:
    """The store with its costs; says how much of it there is."""
    data = relabelled(store, criteria, cost_discount)
    listener.say(f"data: {len(data.store)} trajectories, {data.store.num_steps} steps")
    if data.num_left_out:
        listener.say(
            f"left out {data.num_left_out} unfinished trajectories: what they would have cost is "
            "unknown"
        )
    return data


def training_part(store: TrajectoryStore, held_out: float) -> TrajectoryStore:
    """What is learnt from when this share is held out."""
    return store.split(held_out)[0] if held_out else store


def held_out_part(store: TrajectoryStore, held_out: float) -> TrajectoryStore:
    """What is not."""
    return store.split(held_out)[1]


def as_trained(run: Run, store: TrajectoryStore) -> TrajectoryStore:
    """What the store held when the run was trained, if it has only grown since: else what was held
    out would change."""
    return store.as_of(run.spec.data_fingerprint) or store


def _check_fingerprint(run: Run, store: TrajectoryStore) -> None:
    if store.fingerprint != run.spec.data_fingerprint:
        warnings.warn(
            f"the data of {run.spec.task} is not what {run.path} was trained on "
            f"({store.fingerprint} against "
            f"{run.spec.data_fingerprint}): limits and frontier are those of the present data",
            stacklevel=3,
        )
