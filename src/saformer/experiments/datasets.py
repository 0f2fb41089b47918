"""Datasets: described, made where they are missing, and derived from others."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from saformer import Listener, build_data
from saformer.api.data import open_data
from saformer.data.inspection import inspect
from saformer.data.limits import thresholds
from saformer.data.relabel import relabelled
from saformer.data.sources.dsrl import PREFIX
from saformer.data.store import TrajectoryStore
from saformer.data.trajectory import Trajectory
from saformer.envs.tasks import PLANT_TASKS, data_path, find_task, is_store, make_data, mixture_of
from saformer.experiments.plan import FROM, DataJob, Gathered, whole_of

SHOWN_TRAJECTORIES = 300
CUT_STEPS = 2_000
"""Steps that scraps are cut from; every episode is run to its end, so it may be more."""
THRESHOLDS_BEFORE = "thresholds before"


def prepare(job: DataJob, listener: Listener | None = None) -> Gathered:
    """Make the dataset, and describe it. The data that it is derived from must be there."""
    make_data_of(job, listener)
    with open_data(job.setting.task(job.dataset), listener=listener) as store:
        inspection = inspect(relabelled(store, ())).plain()
        environment = store.environment.identifier
    constraint, sample = inspection["constraints"][0], inspection["sample"]
    shown = slice(None, None, -(-len(sample["episode_return"]) // SHOWN_TRAJECTORIES))
    row = {
        "dataset": job.dataset,
        "environment": environment,
        **{name: inspection[name] for name in ("fingerprint", "num_trajectories", "num_steps")},
        "thresholds": constraint["thresholds"],
        "correlation": constraint["correlation"],
        "mean_return": inspection["episode_return"]["mean"],
        "lowest_return": inspection["episode_return"]["percentiles"]["p0"],
        "frontier": {limit["name"]: limit["frontier"] for limit in inspection["limits"]},
        "cost": [cost[0] for cost in sample["episode_cost"][shown]],
        "return": sample["episode_return"][shown],
    }
    return Gathered({"data": [row]})


def make_data_of(job: DataJob, listener: Listener | None = None) -> None:
    """Make the dataset if it is not there. The data that it is derived from must be."""
    setting, horizon, task = job.setting, job.setting.scale.horizon, job.setting.task(job.dataset)
    if is_store(task):
        return
    if FROM in job.dataset:
        source = setting.task(whole_of(job.dataset))
        with open_data(source, listener=listener) as whole:
            make_upper(whole, Path(task), job.dataset.rpartition(FROM)[2])
    elif horizon is not None:
        _make_scraps(job.dataset, Path(task), horizon)
    elif setting.source == "behaviours" and not data_path(find_task(task)).exists():
        build_data(task, workers=job.workers, listener=listener)


def _make_scraps(dataset: str, path: Path, horizon: int) -> None:
    """A few of the bundled behaviours' trajectories, cut short: enough to run everything on. Plants
    and DSRL's tasks are short enough by themselves."""
    if dataset.startswith(PREFIX) or dataset in PLANT_TASKS:
        make_data(find_task(dataset), path, steps=CUT_STEPS)
        return
    from saformer.envs.behaviours import build  # needs a simulator, which pages made again do not

    whole = build(*mixture_of(dataset), steps=CUT_STEPS, workers=1)
    pieces = [piece for trajectory in whole for piece in _cut(trajectory, horizon)]
    environment = replace(whole.environment, horizon=horizon)
    scraps = TrajectoryStore.of(pieces, environment, {**whole.provenance, "cut to": horizon})
    with suppress(FileExistsError):  # somebody else was faster
        scraps.save(path)


def make_upper(whole: TrajectoryStore, path: Path, percentile: str = "p10") -> None:
    """All trajectories that cost at least so much, and the thresholds of the whole."""
    if is_store(path):
        return
    data = relabelled(whole, ())
    before = thresholds(data)[0]
    rest = data.store.filter(data.episode_cost[:, 0] >= before[percentile])
    with suppress(FileExistsError):  # somebody else was faster
        replace(rest, provenance={**whole.provenance, THRESHOLDS_BEFORE: before}).save(path)


def limits_in_costs(limits: Sequence[str], task: str) -> tuple[str, ...]:
    """Percentiles, or percents of p10, of the whole data as costs, where only a part is left."""
    if FROM not in Path(task).name:
        return tuple(limits)
    before = TrajectoryStore.open(task).provenance[THRESHOLDS_BEFORE]
    below = {name: before["p10"] * float(name) / 100 for name in limits if name not in before}
    return tuple(f"{(before | below)[name]:.6g}" for name in limits)


def _cut(trajectory: Trajectory, horizon: int) -> Iterator[Trajectory]:
    states = np.concatenate([trajectory.state, trajectory.final_state[None]])
    for begin in range(0, len(trajectory), horizon):
        end = min(begin + horizon, len(trajectory))
        terminated, piece = trajectory.terminated and end == len(trajectory), slice(begin, end)
        steps = (states[piece], trajectory.action[piece], trajectory.reward[piece], states[end])
        yield Trajectory.of(*steps, terminated=terminated, truncated=not terminated)
