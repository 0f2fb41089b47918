"""How fast data is opened, relabelled and drawn from, and how little memory that takes.

    python -m benchmarks.data            about 10 minutes on two cores; 3 GB of disk, given back
    python -m benchmarks.data --brief    a tenth of it

Batches are drawn beside OSRL's loader where that is installed (benchmarks/requirements.txt), in the
same process on one core.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import apart, peak_memory, seconds
from saformer.criteria import torque
from saformer.data.folder import StoreWriter
from saformer.data.logs.logs import open_logs
from saformer.data.relabel import RelabelledStore, relabel
from saformer.data.sampling import WindowSampler
from saformer.data.sources.source import import_source
from saformer.data.store import TrajectoryStore
from saformer.envs.tasks import find_task, load_data

TASK, BATCH, WINDOW = "hopper-medium", 128, 20
Rows = list[tuple[str, str, str]]


def main() -> None:
    """Measure everything and print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--brief", action="store_true", help="a tenth of the sizes")
    scale = 10 if parser.parse_args().brief else 1
    torch.set_num_threads(1)
    store = load_data(find_task(TASK), steps=1_000_000 // scale)
    folder = Path(tempfile.mkdtemp(prefix="saformer-benchmark-"))
    try:
        rows = [*speeds(store), *large_store(store, folder), *logs(5_000_000 // scale, folder)]
    finally:
        shutil.rmtree(folder)
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores; torch "
        f"{torch.__version__}, one thread"
    )
    print("\n| what | measured | asked for |\n|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def speeds(store: TrajectoryStore) -> Rows:
    """Opening, relabelling, and batches beside OSRL's."""
    assert store.path is not None
    path, steps = store.path, store.num_steps
    data = relabel(store, [torque])
    ours = batch_seconds(data)
    rows = [
        (
            f"open a store of {steps:,} steps",
            f"{1e3 * seconds(lambda: TrajectoryStore.open(path)):.1f} ms",
            "50 ms",
        ),
        (f"relabel {steps:,} steps", f"{seconds(lambda: relabel(store, [torque])):.3f} s", "0.5 s"),
        (f"a batch of {BATCH} windows of {WINDOW} steps, one core", f"{1e3 * ours:.2f} ms", "2 ms"),
    ]
    theirs = osrl_batch_seconds(data)
    if theirs is None:
        return [*rows, ("the same by OSRL's loader", "not installed", "")]
    return [
        *rows,
        (
            "the same by OSRL's loader",
            f"{1e3 * theirs:.2f} ms ({theirs / ours:.0f} times ours)",
            "",
        ),
    ]


def batch_seconds(data: RelabelledStore) -> float:
    """Of one batch, drawn from the memory-mapped store."""
    sampler, generator = WindowSampler(data, window=WINDOW), torch.Generator().manual_seed(0)
    return seconds(lambda: sampler.sample(BATCH, generator), repeat=200)


def osrl_batch_seconds(data: RelabelledStore) -> float | None:
    """Of one batch from OSRL's SequenceDataset in PyTorch's DataLoader, as its training scripts use
    it."""
    try:
        from osrl.common.dataset import SequenceDataset
    except ImportError:
        return None
    store = data.store
    ends = np.zeros(store.num_steps, dtype=np.float32)
    ends[store.starts + store.lengths - 1] = 1
    recorded = {
        "observations": np.array(store.gather("state")),
        "actions": np.array(store.gather("action")),
        "rewards": np.array(store.gather("reward")),
        "costs": data.cost[:, 0].copy(),
        "terminals": ends,
        "timeouts": np.zeros_like(ends),
    }
    recorded["next_observations"] = recorded["observations"]
    dataset = SequenceDataset(recorded, seq_len=WINDOW)
    batches: Iterator[Any] = iter(torch.utils.data.DataLoader(dataset, batch_size=BATCH))
    return seconds(lambda: next(batches), repeat=100)


def large_store(store: TrajectoryStore, folder: Path) -> Rows:
    """Ten times the data, trained on without being read into memory."""
    path = folder / "large"
    with StoreWriter(path) as writer:
        for _ in range(10):
            for trajectory in store:
                writer.add(trajectory)
        writer.finish(
            store.environment, criteria=store.criteria, provenance={"source": "ten copies"}
        )
    found = apart("benchmarks.data", "train_on", str(path), str(folder / "run"))
    return [
        (
            f"train on {found['steps']:,} steps (CPU, preset small, 50 updates): anonymous "
            "memory at its peak",
            f"{found['anonymous']:.0f} MB ({found['resident']:.0f} MB with file pages); "
            f"{found['before']:.0f} MB before the data is opened",
            "1,500 MB",
        )
    ]


def train_on(path: str, out: str) -> dict[str, Any]:
    """In a process of its own."""
    from dataclasses import replace

    import saformer
    from saformer.training.loop.presets import PRESETS

    torch.set_num_threads(1)
    preset = PRESETS["small"]()
    brief = replace(
        preset, fit=replace(preset.fit, updates=50, warmup_updates=10, evaluate_every=1000)
    )
    with peak_memory() as before:
        time.sleep(0.1)
    with peak_memory() as peak:
        saformer.train(path, preset=brief, out=out, held_out=0.0)
    steps = TrajectoryStore.open(path).num_steps
    return {
        "steps": steps,
        "before": before.anonymous,
        "anonymous": peak.anonymous,
        "resident": peak.resident,
    }


def logs(num_rows: int, folder: Path) -> Rows:
    """A long CSV log and the same as Parquet."""
    write_logs(num_rows, folder)
    found = {
        kind: apart("benchmarks.data", "import_logs", str(folder / f"log.{kind}"))
        for kind in ("csv", "parquet")
    }
    same = (
        "the same"
        if found["csv"]["fingerprint"] == found["parquet"]["fingerprint"]
        else "NOT the same"
    )
    return [
        (
            f"import {num_rows:,} rows of 12 columns, {kind.upper()} ({fact['megabytes']:.0f} "
            "MB): memory at its peak",
            f"{fact['resident']:.0f} MB ({fact['anonymous']:.0f} MB anonymous); survey "
            f"{fact['survey']:.0f} s, "
            f"import {fact['import']:.0f} s",
            "1,000 MB" if kind == "csv" else f"{same} result as CSV",
        )
        for kind, fact in found.items()
    ]


def write_logs(num_rows: int, folder: Path, *, block: int = 100_000) -> None:
    """200 steps an episode."""
    import pyarrow
    from pyarrow import csv, parquet

    rng = np.random.default_rng(0)
    with (folder / "log.csv").open("wb") as plain:
        columnar = None
        for start in range(0, num_rows, block):
            number = np.arange(start, start + block)
            table = pyarrow.table(
                {
                    **{f"state_{i}": rng.standard_normal(block).round(6) for i in range(6)},
                    **{f"action_{i}": rng.uniform(-1, 1, block).round(6) for i in range(2)},
                    "reward": rng.standard_normal(block).round(6),
                    "cost": rng.uniform(0, 1, block).round(6),
                    "episode": number // 200,
                    "truncated": number % 200 == 199,
                }
            )
            csv.write_csv(table, plain, csv.WriteOptions(include_header=start == 0))
            columnar = columnar or parquet.ParquetWriter(folder / "log.parquet", table.schema)
            columnar.write_table(table)
        if columnar:
            columnar.close()


def import_logs(path: str) -> dict[str, Any]:
    """In a process of its own."""
    with tempfile.TemporaryDirectory(dir=Path(path).parent) as folder, peak_memory() as peak:
        began = time.perf_counter()
        found = open_logs([path])
        surveyed = time.perf_counter()
        store = import_source(found.source(), Path(folder) / "store").store
        imported = time.perf_counter()
        fingerprint = store.fingerprint
    return {
        "anonymous": peak.anonymous,
        "resident": peak.resident,
        "survey": surveyed - began,
        "import": imported - surveyed,
        "fingerprint": fingerprint,
        "megabytes": Path(path).stat().st_size / 1e6,
    }


if __name__ == "__main__":
    sys.exit(main())
