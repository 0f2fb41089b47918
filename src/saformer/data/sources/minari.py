"""Minari datasets: read from disk or from where they are hosted, and written from any store."""

import os
import re
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from saformer.data.sources.arrays import shapes_of
from saformer.data.sources.source import EnvironmentHints, Source
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import RESERVED, Trajectory
from saformer.files import publish, read_json, unfinished_folder, write_atomically

METADATA, NAMESPACE = "metadata.json", "namespace_metadata.json"
HOME, DATASETS = "MINARI_DATASETS_PATH", "datasets"


@dataclass(frozen=True)
class Metadata:
    """What is read of metadata.json. Without spaces, Minari would make the environment that the
    file names to see them, which runs whatever code it names."""

    observation_space: str
    action_space: str
    total_episodes: int
    total_steps: int
    data_format: Literal["hdf5", "arrow"]
    dataset_id: str
    minari_version: str
    env_spec: str | None = None
    jpeg_encoding: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.total_episodes <= self.total_steps:
            raise ValueError(f"{self.total_steps} steps of {self.total_episodes} episodes")


def is_minari_folder(name: str | Path) -> bool:
    return any((Path(name) / part / METADATA).exists() for part in (".", "data"))


def read_minari(
    name: str | Path, known: EnvironmentHints | None = None, *, download: bool = False
) -> Source:
    """A dataset by its id, if it is on this machine (or may be downloaded), or by its folder."""
    with _naming(name):
        datasets = _open(str(name), download=download)
        hints = (known or EnvironmentHints()).or_else(_hints(datasets[0]))
        num_steps = sum(int(dataset.total_steps) for dataset in datasets)
    left_out: set[str] = set()

    def trajectories() -> Iterator[Trajectory]:
        with _naming(name):
            for dataset in datasets:
                for episode in dataset.iterate_episodes():
                    yield _trajectory(episode, left_out)

    def notes() -> list[str]:
        names, kind = ", ".join(sorted(left_out)), "infos that are no numbers with a row per step"
        return [f"{kind} were left out: {names}"] if left_out else []

    return Source(
        trajectories,
        num_steps,
        hints,
        {
            "source": " and ".join(dataset.spec.dataset_id for dataset in datasets),
            "layout": "Minari",
            "minari_version": datasets[0].spec.minari_version,
        },
        notes=notes,
    )


def write_minari(store: TrajectoryStore, dataset_id: str) -> Path:
    """Export a store as a Minari dataset of this id, named columns as infos. Returns its folder."""
    minari = _minari()
    from gymnasium.spaces import Box
    from minari.data_collector import EpisodeBuffer
    from minari.storage import get_dataset_path

    if not re.search(r"-v\d+$", dataset_id):
        raise ValueError(f"Malformed dataset ID {dataset_id!r}: Minari's end in a version (-v0)")
    path, home = Path(get_dataset_path(dataset_id)), Path(get_dataset_path())
    low, high = store.environment.action_low, store.environment.action_high
    buffers = [
        EpisodeBuffer(
            id=index,
            observations=np.concatenate([part.state, part.final_state[None]]),
            actions=part.action,
            rewards=part.reward.tolist(),
            terminations=[False] * (len(part) - 1) + [part.terminated],
            truncations=[False] * (len(part) - 1) + [part.truncated],
            infos={name: _after_reset(values) for name, values in part.columns.items()},
        )
        for index, part in enumerate(store)
    ]
    with unfinished_folder(path, DATASETS) as folder, _datasets_in(folder):
        _find_room(folder, store)
        minari.create_dataset_from_buffers(
            dataset_id,
            buffers,
            env=_gymnasium_spec(store.environment),
            observation_space=Box(-np.inf, np.inf, store.steps["state"].shape[1:], np.float32),
            action_space=Box(np.array(low, np.float32), np.array(high, np.float32)),
            description=f"exported by SaFormer; {dict(store.provenance)}",
        )
        for part in folder.rglob(NAMESPACE):
            about = home / part.relative_to(folder)
            if not about.exists():
                write_atomically(about, part.read_bytes())
        publish(folder / dataset_id, path, DATASETS)
    return path


def _find_room(folder: Path, store: TrajectoryStore) -> None:
    """Take about as much as the dataset will, and give it back: where a disk is full, HDF5 brings
    the whole process down."""
    if not hasattr(os, "posix_fallocate"):
        return
    raw = sum(values.nbytes for values in store.steps.values())
    groups = 16_000 + 4_000 * (len(store.steps) - 3)  # measured: 15,000 an episode, and 3,000
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, 2 * raw + groups * len(store) + 20_000)


@contextmanager
def _datasets_in(folder: Path) -> Iterator[None]:
    """Have Minari write to this folder; it warns of every field that it is not given."""
    before = os.environ.get(HOME)
    os.environ[HOME] = str(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (OSError, RuntimeError) as error:
        number = re.search(r"errno = (\d+)", str(error))  # as HDF5 tells of a full disk
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from None
    finally:
        del os.environ[HOME]
        os.environ.update({HOME: before} if before else {})


def _minari() -> Any:
    try:
        import minari
    except ImportError:
        raise ValueError("Minari datasets need Minari: pip install 'saformer[minari]'") from None
    return minari


def _open(name: str, *, download: bool) -> list[Any]:
    """The datasets that make up this one: two where medium and expert must be merged."""
    minari = _minari()
    from minari.storage import get_dataset_path

    path = Path(get_dataset_path(name))
    for folder in (Path(name) / "data", Path(name)):
        if (folder / METADATA).exists():
            return [_read(folder, name)]
    if (path / "data").exists():
        return [_read(path / "data", name)]
    if name.startswith("mujoco/") and "medium-replay" in name:
        raise ValueError(
            f"Minari hosts simple, medium and expert for MuJoCo: there is no {name}. `saformer "
            "data build` makes one, and d4rl:hopper-medium-replay-v2 names D4RL's"
        )
    if name.startswith("mujoco/") and "medium-expert" in name:
        parts = [name.replace("medium-expert", part) for part in ("medium", "expert")]
        return [dataset for part in parts for dataset in _open(part, download=download)]
    if not download:
        raise FileNotFoundError(f"there is no Minari dataset {name} here; put it at {path}")
    try:
        return [minari.load_dataset(name, download=True)]
    except Exception as error:  # whatever the hosting library raises, the way out is the same
        raise FileNotFoundError(
            f"the Minari dataset {name} is not on this machine and could not be downloaded "
            f"({error}); download it elsewhere and put it at {path}"
        ) from None


def _read(path: Path, name: str) -> Any:
    import h5py

    read_json(path / METADATA, Metadata, "download or export it again")
    for part in path.glob("*.hdf5"):
        with h5py.File(part, "r") as file:
            shapes_of(part, file)
    with _naming(name):
        return _minari().MinariDataset(str(path))


@contextmanager
def _naming(name: str | Path) -> Iterator[None]:
    """Name the dataset where it cannot be read."""
    try:
        yield
    except (FileNotFoundError, ModuleNotFoundError):
        raise
    except Exception as error:  # h5py, json and Minari each have errors of their own
        reason = " ".join(str(error).split())
        if isinstance(error, ValueError) and str(name) in reason:
            raise
        problem = f"{name} is damaged or of another version: {reason}"
        raise ValueError(f"the Minari dataset {problem}") from None


def _hints(dataset: Any) -> EnvironmentHints:
    space, made_by = dataset.spec.action_space, dataset.spec.env_spec
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if low is None or high is None or low.ndim != 1:
        name = dataset.spec.dataset_id
        raise ValueError(f"{name} has actions {space}, expected a one-dimensional Box")
    horizon = made_by.max_episode_steps if made_by else None
    if not isinstance(horizon, int | None) or not isinstance(made_by.id if made_by else "", str):
        raise ValueError(f"max_episode_steps is {horizon!r}, expected a whole number")
    is_bounded = bool(np.isfinite(low).all() and np.isfinite(high).all())
    return EnvironmentHints(
        identifier=made_by.id if made_by else None,
        horizon=horizon,
        action_low=tuple(low.tolist()) if is_bounded else None,
        action_high=tuple(high.tolist()) if is_bounded else None,
        arguments=dict(made_by.kwargs) if made_by else {},
    )


def _trajectory(episode: Any, left_out: set[str]) -> Trajectory:
    observations, steps = episode.observations, len(episode.rewards)
    if not isinstance(observations, np.ndarray) or observations.ndim != 2:
        raise ValueError(
            f"episode {episode.id} has observations of type {type(observations).__name__}, "
            "expected a vector per step; flatten them (gymnasium.wrappers.FlattenObservation)"
        )
    if len(observations) != steps + 1:
        count = f"{len(observations)} observations, expected {steps + 1}"
        raise ValueError(f"episode {episode.id} has {count}")
    return Trajectory.of(
        observations[:-1],
        episode.actions,
        episode.rewards,
        observations[-1],
        terminated=bool(episode.terminations[-1]),
        truncated=bool(episode.truncations[-1]),
        columns=dict(_numeric(episode.infos or {}, steps, left_out)),
    )


def _numeric(
    infos: Mapping[str, Any], steps: int, left_out: set[str], prefix: str = ""
) -> Iterable[tuple[str, Any]]:
    """Infos that are numbers with a row per step; what `reset` said is not part of a step."""
    for key, values in infos.items():
        name = f"{prefix}{key}"
        if isinstance(values, Mapping):
            yield from _numeric(values, steps, left_out, f"{name}/")
            continue
        array = np.asarray(values)
        if array.dtype.kind in "fiub" and array.ndim in (1, 2) and len(array) in (steps, steps + 1):
            yield f"info/{name}" if name in RESERVED else name, array[-steps:]
        else:
            left_out.add(name)


def _after_reset(values: NDArray[Any]) -> NDArray[Any]:
    """Minari holds what `reset` said, too, where we have nothing."""
    return np.concatenate([np.full_like(values[:1], np.nan), values])


def _gymnasium_spec(environment: EnvironmentSpec) -> Any:
    """Gymnasium's own, with the arguments of this environment; None where the id is unknown."""
    import gymnasium

    if environment.identifier not in gymnasium.registry:
        return None
    spec = deepcopy(gymnasium.spec(environment.identifier))
    spec.kwargs.update(environment.arguments)
    return spec
