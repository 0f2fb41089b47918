"""Changes of every file that is read: bytes, lengths, and values of JSON.

What reads the file must either give just what it gave before, or refuse in one line that names the
file (or its folder). Files without a checksum of their own (logs, rows of metrics) may be read as
something else, but not end in a traceback, in a crash or without end.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import resource
import shutil
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scripts.attack.campaign import Campaign
from scripts.attack.process import Server
from scripts.attack.world import use, world

MEMORY = 4 << 30  # bytes that a reader may take beside what it has
VALUES = (None, "x", "", -1, 0, 0.5, 1e300, 10**400, [], {}, True, [[]], "NaN", 2**63, "../x")
Reader = Callable[[Path], Any]


@dataclass(frozen=True)
class Target:
    """A file within the world, and what reads it."""

    file: str
    read: Reader
    is_signed: bool = True  # whether it has a checksum, so that no other content is read


def read_run(path: Path) -> Any:
    """How its policy acts, and all else that its checkpoint holds."""
    import saformer
    from saformer.runs.export import check_whole

    loaded = saformer.load(path, device="cpu")
    policy = loaded.policy()
    policy.reset([[0.5, 0.1], [0.2, 0.9]], [1.0, 3.0])
    actions = policy.act([[0.5, 0.1], [0.2, 0.9]]).action.tolist()
    told = [str(loaded.totals.environment), loaded.totals.episode_cost.tolist(), loaded.may_end]
    limits = [limit.values for limit in loaded.parse_limits(["p10", "p50"])]
    return loaded.run.spec.plain(), actions, told, limits, check_whole(loaded.run)


def read_calibration(path: Path) -> Any:
    import saformer
    from saformer.api.calibrate import as_calibrated, find_calibration
    from saformer.api.judge import EvaluateSettings

    loaded = saformer.load(path, device="cpu")
    calibration = find_calibration(loaded, 0.9)
    return calibration.plain(), repr(as_calibrated(loaded, calibration, EvaluateSettings()))


def read_report(path: Path) -> Any:
    from saformer.report.rollouts import write_report
    from saformer.report.table import verdict_table
    from saformer.runs.run import Run

    assert verdict_table(Run(path).read_json("evaluation.json")) is not None
    return write_report(Run(path), path.parent / "report.html").read_text()


def read_offline(path: Path) -> Any:
    from saformer.report.offline import write_offline_report
    from saformer.runs.run import Run

    return write_offline_report(Run(path), path.parent / "report.html").read_text()


def read_rows(path: Path) -> Any:
    from saformer.runs.run import Run
    from saformer.training.finetune.experience import ExploredEpisode

    rows = Run(path).read_rows("episodes.jsonl", ExploredEpisode)
    return list(Run(path).metrics()), list(rows)


def read_store(path: Path) -> Any:
    from saformer.data.relabel import relabelled
    from saformer.data.store import TrajectoryStore

    store = TrajectoryStore.open(path)
    data = relabelled(store, (), 1.0)
    about = [store.environment, store.criteria, dict(store.provenance), store.fingerprint]
    return store.check(), repr(about), data.episode_cost.tolist(), data.episode_return.tolist()


def read_log(path: Path) -> Any:
    """What `saformer data import` makes of it."""
    from saformer.api.data import import_data
    from saformer.data.logs.mapping import LogMapping

    mapping = LogMapping(state=("s", "w"), action=("a",), reward="reward", episode="ep")
    out = path.parent / "imported"
    shutil.rmtree(out, ignore_errors=True)
    return read_store(Path(import_data([path], out, mapping=mapping).store.path or ""))


def read_mapped(path: Path) -> Any:
    """What `saformer data import log.csv --mapping` makes of it."""
    from saformer.api.data import import_data

    out = path.parent / "imported"
    shutil.rmtree(out, ignore_errors=True)
    store = import_data([path.parent / "log.csv"], out, mapping=path).store
    return read_store(Path(store.path or ""))


def read_comparison(path: Path) -> Any:
    import saformer

    return repr(saformer.compare([path / "kept.json"]))


def read_experiment(path: Path) -> Any:
    from saformer.experiments.catalogue import render

    return render(path, "hyper-parameters").read_text()


TARGETS = [
    *(Target(f"run/{name}", read_run) for name in ("run.json", "checkpoint.safetensors")),
    *(Target(f"exported/{name}", read_run) for name in ("run.json", "export.json")),
    Target("exported/weights.safetensors", read_run),
    *(Target(f"{run}/calibration.json", read_calibration) for run in ("run", "exported")),
    *(Target(f"run/{name}.json", read_report) for name in ("evaluation", "trace", "done")),
    Target("run/evaluations/kept.json", read_comparison),
    Target("run/offline.json", read_offline),
    Target("run/metrics.jsonl", read_report, is_signed=False),
    *(
        Target(f"tuned/{name}.jsonl", read_rows, is_signed=False)
        for name in ("episodes", "metrics")
    ),
    Target("store/manifest.json", read_store),
    *(Target(f"store/steps/{name}.bin", read_store) for name in ("state", "reward")),
    *(Target(f"store/episodes/{name}.bin", read_store) for name in ("length", "digest")),
    *(Target(f"store/episodes/{name}.bin", read_store) for name in ("terminated", "final_state")),
    *(
        Target(f"log.{kind}", read_log, is_signed=False)
        for kind in ("csv", "parquet", "npz", "hdf5")
    ),
    Target("mapping.toml", read_mapped, is_signed=False),
    *(
        Target(f"minari/test/log-v0/data/{name}", read_log, is_signed=False)
        for name in ("metadata.json", "main_data.hdf5")
    ),
    Target("rows/hyper-parameters.json", read_experiment),
]


def attempt(seed: int) -> str | None:
    """One change of one file, which is read in another process."""
    return _server().ask(seed, seconds=60)


@functools.cache
def _server() -> Server:
    world()
    return Server(_try, _scene)


def _scene() -> Path:
    folder = world().parent / "scene"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(world(), folder)
    use(folder)
    return folder


def _try(seed: int) -> str | None:
    rng = np.random.default_rng(seed)
    target = TARGETS[seed % len(TARGETS)]
    known, file = _unchanged(target), Path.cwd() / target.file
    original = file.read_bytes()
    what, content = mutated(original, rng, file.suffix)
    try:
        file.write_bytes(content)
        problem = _read(target, file, known)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {error}"
    finally:
        file.write_bytes(original)
    return f"{target.file}, {what}: {problem}" if problem else None


@functools.cache
def _unchanged(target: Target) -> str:
    """Digest of what is read of the file as it is. The first time, the process is prepared."""
    warnings.simplefilter("ignore")
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    return _digest(target.read(_subject(Path.cwd() / target.file)))


def _subject(file: Path) -> Path:
    """What the user would name: the run, store, dataset or log that a file belongs to."""
    if file.parent.name in {"steps", "episodes", "data"}:
        return file.parent.parent
    return file if file.name.startswith(("log.", "mapping.")) else file.parent


def _digest(content: Any) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _read(target: Target, file: Path, known: str) -> str | None:
    """What is wrong with how a changed file is read."""
    subject = _subject(file)
    try:
        content = target.read(subject)
    except (ValueError, OSError, RuntimeError) as error:  # what the command says in one line
        said = str(error)
        is_named = any(name in said for name in (file.name, str(subject), "log.csv"))
        return None if is_named and "\n" not in said else f"{type(error).__name__}: {said}"
    is_other = target.is_signed and _digest(content) != known
    return "accepted, and read as something else" if is_other else None


def mutated(content: bytes, rng: np.random.Generator, suffix: str) -> tuple[str, bytes]:
    """What was done, and the result."""
    if suffix in {".json", ".jsonl"} and rng.random() < 0.6:
        return _other_value(content, rng, suffix)
    kind = str(rng.choice(["flip", "set", "truncate", "append", "cut", "zero", "repeat"]))
    data, size = bytearray(content), len(content)
    at = int(rng.integers(size))
    length = int(rng.integers(1, 1 + min(64, size - at)))
    if kind == "flip":
        data[at] ^= 1 << int(rng.integers(8))
    elif kind == "set":
        data[at] = int(rng.integers(256))
    elif kind == "truncate":
        del data[at:]
    elif kind == "append":
        data += bytes(rng.integers(0, 256, length, dtype=np.uint8))
    elif kind == "cut":
        del data[at : at + length]
    elif kind == "zero":
        data[at : at + length] = bytes(length)
    else:
        data[at:at] = data[at : at + length]
    return f"{kind} at {at}", bytes(data)


def _other_value(content: bytes, rng: np.random.Generator, suffix: str) -> tuple[str, bytes]:
    lines = content.decode().splitlines() if suffix == ".jsonl" else [content.decode()]
    row = int(rng.integers(len(lines)))
    plain = json.loads(lines[row])
    entries = list(_entries(plain))
    path = entries[int(rng.integers(len(entries)))]
    inner = plain
    for key in path[:-1]:
        inner = inner[key]
    value = VALUES[int(rng.integers(len(VALUES)))]
    if rng.random() < 0.2 and isinstance(inner, dict):
        del inner[path[-1]]
        value = "nothing"
    elif rng.random() < 0.3 and isinstance(inner[path[-1]], int | float):
        value = inner[path[-1]] = inner[path[-1]] * 2 + 1
    else:
        inner[path[-1]] = value
    lines[row] = json.dumps(plain)
    end = "\n" if suffix == ".jsonl" else ""
    return f"{path} = {value!r}", ("\n".join(lines) + end).encode()


def _entries(content: Any, within: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        yield (*within, key)
        if isinstance(value, dict | list):
            yield from _entries(value, (*within, key))


CAMPAIGN = Campaign("mutations", 20_000, attempt)
