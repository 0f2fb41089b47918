"""A first run from end to end: data, training, evaluation, report."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from saformer.api.listener import Listener
from saformer.runs.run import Run
from saformer.trained import train
from saformer.training.loop.presets import PRESETS

TASKS = {"plant": "plant-room", "robot": "halfcheetah-effort"}
SIZES: dict[str, dict[str, int]] = {"plant": {"updates": 1000, "steps": 28_800}, "robot": {}}
"""Enough for a room; by default the preset's and the task's."""
LIMITS = ("p10", "p30", "p50", "p70", "p90")


def demo(
    kind: Literal["plant", "robot"] = "plant",
    out: str | Path = "demo",
    *,
    scale: Literal["full", "smoke"] = "full",
    seed: int = 0,
    device: str = "auto",
    listener: Listener | None = None,
) -> Path:
    """Make data, train the small preset on it, evaluate under five limits, and write a report.
    Returns its path.

    A `plant` is a heated room: a minute or two, without MuJoCo. A `robot` runs, trots or stands:
    ten minutes. `smoke` takes the same steps with next to no data and training.
    """
    from saformer.report.rollouts import write_report

    listener, run = listener or Listener(), demo_run(kind, out, scale, seed)
    preset, size, episodes = PRESETS["small"](), SIZES[kind], 20
    fit = replace(preset.fit, updates=size.get("updates", preset.fit.updates))
    if scale == "smoke":
        fit = replace(fit, updates=30, warmup_updates=10, report_every=10, evaluate_every=15)
        size, episodes = {"steps": 6_000}, 2
    how: dict[str, Any] = {"seed": seed, "device": device, "listener": listener}
    how |= {"preset": replace(preset, fit=fit), "data_steps": size.get("steps"), "out": run.path}
    trained = train(TASKS[kind], resume=run.checkpoint_path.exists(), **how)
    trained.evaluate(LIMITS, episodes=episodes, seed=seed)
    command = " ".join(["saformer", *sys.argv[1:]])
    page = write_report(trained.run, Path(out) / "report.html", command=command)
    listener.say(f"report written to {page}")
    return page


def demo_run(kind: str, out: str | Path, scale: str, seed: int) -> Run:
    return Run(Path(out) / f"{kind}-{scale}-seed{seed}")
