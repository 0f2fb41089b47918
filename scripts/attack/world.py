"""Tiny data, runs, exports and findings to attack, made once by the commands that people type."""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np

from saformer.files import CHECKSUM
from saformer.report import rollouts
from scripts.attack.process import run

TINY = "--preset paper --updates 4 --batch-size 8 --warmup-updates 1 --width 16 --layers 1 "
TINY += "--window 4 --checkpoint-every 1 --report-every 1 --device cpu"
TINIER = TINY.replace("paper", "small")
HERE = "--workers 0 --device cpu"
JUDGED = f"--limits p50 --episodes 2 {HERE}"
TUNED = "--limit 0.2 --episodes 4 --lanes 2 --updates 2 --warmup-updates 1 --evaluation-episodes 2"
COLUMNS = "--state s w --action a --reward reward --episode ep"
HOPPER, SMOKE = "data build hopper-effort --steps 60", "experiment thresholds --processes 1"
MACHINE = "--environment saformer/Allowance-v0 --horizon 20 --action-low=-1 --action-high 1"
COLLECTED = "saformer/Allowance-v0 --policy ./act.py:act --criteria torque --episodes 4"
CALIBRATED = f"--rate 0.9 --limits 50 --episodes 2 --margins 0 0.5 --confidence 0.5 {HERE}"


@dataclass(frozen=True)
class Verb:
    """A command that writes, and what it writes."""

    words: str
    result: str
    resumes: bool = False  # repeated with --resume once it has begun
    weight: float = 1.0
    """how often it is tried, against the others"""


VERBS = {
    "build": Verb("data build plant-room --steps 200 --workers 1 --out new", "new"),
    "build in processes": Verb(f"{HOPPER} --workers 2 --out new", "new", weight=0.05),
    "import CSV": Verb(f"data import log.csv {COLUMNS} {MACHINE} --out new", "new"),
    "import Parquet": Verb(f"data import log.parquet {COLUMNS} --out new", "new"),
    "import NPZ": Verb("data import log.npz --out new", "new"),
    "import HDF5": Verb("data import log.hdf5 --out new", "new"),
    "import Minari": Verb("data import minari/test/log-v0 --out new", "new"),
    "import as mapped": Verb("data import log.csv --mapping mapping.toml --out new", "new"),
    "collect": Verb(f"data collect {COLLECTED} --out new", "new"),
    "inspect": Verb("data inspect store --report page.html", "page.html"),
    "data export": Verb("data export store new/log-v0", "minari/new"),
    "train": Verb(f"train store {TINY} --out new", "new", resumes=True),
    "train two": Verb(f"train store {TINY} --seed 0 1 --out new", "new"),
    "train cdt": Verb(f"train store --agent cdt {TINIER} --out new", "new", resumes=True),
    "evaluate": Verb(f"evaluate run {JUDGED}", "run"),
    "evaluate elsewhere": Verb(f"evaluate exported {JUDGED} --out new", "new"),
    "evaluate in workers": Verb(f"evaluate run {JUDGED} --workers 2", "run", weight=0.3),
    "compare": Verb("compare run --out new", "new", weight=0.3),
    "evaluate offline": Verb("evaluate run --offline --device cpu", "run"),
    "calibrate": Verb(f"calibrate run {CALIBRATED}", "run"),
    "sweep": Verb(f"sweep run --option candidates --values 2 4 {JUDGED}", "run"),
    "export": Verb("export run new --dtype float32", "new"),
    "finetune": Verb(f"finetune run {TUNED} {HERE} --out new", "new", True, 0.3),
    "experiment": Verb(f"{SMOKE} --out new", "new", weight=0.05),
}
TIME = re.compile(r"\d{8}-\d{6}-\d{6}")
VOLATILE = {"seconds", "commit", "sha256", "decisions_per_second", "made", CHECKSUM}


def command(words: str | Sequence[str]) -> int:
    """What the shell would run, in this process."""
    from saformer.cli.main import main

    return main(words.split() if isinstance(words, str) else words)


@functools.cache
def world() -> Path:
    """A folder with data of every kind, a run, an export and all findings. It is never changed."""
    import_everything()
    folder = Path(tempfile.mkdtemp(prefix="attack-"))
    owner = os.getpid()
    atexit.register(lambda: os.getpid() == owner and shutil.rmtree(folder, ignore_errors=True))
    made = folder / "world"
    made.mkdir()
    ended = run(_make, made, 600)
    if ended.code:
        raise RuntimeError(f"the world could not be made: {ended.said[-2000:]}")
    return made


def copy(name: str, words: str) -> Path:
    """A new folder with a copy of all of the world that a command names."""
    there, here = world(), world().parent / name
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    for part in {name for word in words.split() if (there / (name := word.split(":")[0])).exists()}:
        (here / part).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (there / part).is_dir() else shutil.copy)(there / part, here / part)
    use(here)
    return here


def use(folder: Path) -> None:
    """Let commands keep all that they keep in this folder."""
    os.environ["SAFORMER_HOME"] = str(folder / "home")
    os.environ["XDG_CONFIG_HOME"] = str(folder / "configuration")
    os.environ["MINARI_DATASETS_PATH"] = str(folder / "minari")


def import_everything() -> None:
    """So that forks need not."""
    import importlib

    names = "cli.data cli.train cli.judge cli.experiment cli.doctor evaluation.evaluate "
    names += "evaluation.sweep evaluation.trace training.finetune.algorithm envs.bundle"
    for name in names.split():
        importlib.import_module(f"saformer.{name}")
    others = "pyarrow.csv pyarrow.parquet h5py minari mujoco scipy.stats torch._dynamo "
    others += "matplotlib.pyplot matplotlib.backends.backend_svg minari.data_collector"
    for name in others.split():
        importlib.import_module(name)
    # most of a report's time, and nothing is written meanwhile
    matplotlib.figure.Figure.savefig = lambda figure, text, **_: text.write("<svg></svg>")
    rollouts.with_hints = lambda drawing, *_: drawing


def _make() -> int:
    use(Path())
    os.environ["MINARI_DATASETS_PATH"] = str(Path("minari").resolve())
    _write_logs()
    words = (
        f"data import log.csv {COLUMNS} {MACHINE} --out store",
        "data export store test/log-v0",
        f"train store {TINY} --held-out 0.2 --out run",
        f"evaluate run {JUDGED}",
        "evaluate run --offline --device cpu",
        f"calibrate run {CALIBRATED}",
        f"sweep run --option candidates --values 2 4 {JUDGED}",
        "export run exported --dtype float32",
        f"finetune run {TUNED} {HERE} --out tuned",
        "experiment hyper-parameters --out rows",
    )
    code = next((code for code in map(command, words) if code), 0)
    next(Path("run/evaluations").glob("*.json")).rename("run/evaluations/kept.json")
    return code


MAPPING = """state = ["s", "w"]
action = ["a"]
reward = "reward"
episode = "ep"
action_low = [-1.0]
na = ["ERR"]
fill = "forward"
horizon = 20
"""


def _write_logs() -> None:
    import h5py
    import pyarrow.csv
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    steps = [(ep, t, level) for ep, level in enumerate(rng.random(30)) for t in range(20)]
    actions = np.array([level * rng.uniform(0.2, 1) for _, _, level in steps])
    flat = {"ep": np.array([ep for ep, _, _ in steps]), "a": actions, "reward": np.abs(actions)}
    flat |= {"s": rng.random(len(steps)), "w": np.array([t / 20 for _, t, _ in steps])}
    Path("mapping.toml").write_text(MAPPING)
    Path("act.py").write_text("def act(observation):\n    return 0.5 * observation[:1]\n")
    table = pyarrow.table(flat)
    pyarrow.csv.write_csv(table, "log.csv")
    pyarrow.parquet.write_table(table, "log.parquet")
    ends = np.array([t == 19 for _, t, _ in steps])
    state = np.stack([flat["s"], flat["w"]], axis=1).astype(np.float32)
    arrays = {"observations": state, "actions": actions[:, None].astype(np.float32)}
    arrays |= {"rewards": flat["reward"], "terminals": 0 * ends, "timeouts": ends}
    np.savez("log.npz", **arrays)
    with h5py.File("log.hdf5", "w") as file:
        for name, values in arrays.items():
            file[name] = values


def content(path: Path) -> dict[str, str]:
    """{file: digest of what it says}: without times, also in names (what is there several times
    counts once if it says the same), and without the order of tensors in a file."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    digests: dict[str, set[str]] = {}
    for file in files:
        if file.is_file() and not file.name.endswith("lock"):
            name = TIME.sub("TIME", str(file.relative_to(path)))
            digests.setdefault(name, set()).add(_digest(file))
    return {name: " or ".join(sorted(said)) for name, said in digests.items()}


def _digest(file: Path) -> str:
    if file.suffix in {".html", ".md"}:
        return "a page"
    if file.suffix == ".safetensors":
        from saformer.runs.checkpoint import load_checkpoint

        checkpoint = load_checkpoint(file)
        groups = checkpoint.groups.items()
        rows = [(group, n, t.numpy().tobytes()) for group, part in groups for n, t in part.items()]
        return hashlib.sha256(repr((sorted(rows), plain(checkpoint.facts))).encode()).hexdigest()
    if file.suffix in {".json", ".jsonl"}:
        return repr([plain(json.loads(row)) for row in _rows(file)])
    if file.suffix == ".hdf5":
        return "HDF5"
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _rows(file: Path) -> Iterator[str]:
    text = file.read_text()
    yield from text.splitlines() if file.suffix == ".jsonl" else [text]


def plain(content: Any) -> Any:
    """Without what differs from one run of a command to the next."""
    if isinstance(content, dict):
        return {key: plain(content[key]) for key in sorted(content) if key not in VOLATILE}
    return [plain(each) for each in content] if isinstance(content, list) else content
