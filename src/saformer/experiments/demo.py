"""A first run from end to end: data, training, evaluation, report."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from saformer.api.listener import Listener
from saformer.runs.run import Run
from saformer.trained import train
from saformer.training.loop.presets import PRESETS

DEMO_TASK = "hopper-medium-replay"
DEMO_LIMITS = ("p10", "p30", "p50", "p70", "p90")


def demo(
    out: str | Path = "demo",
    *,
    scale: Literal["full", "smoke"] = "full",
    seed: int = 0,
    device: str = "auto",
    listener: Listener | None = None,
) -> Path:
    """Make data, train the small preset on it, evaluate under five limits, and write a report.
    Returns its path.

    `smoke` takes the same steps with next to no data and training, to show that they work.
    """
    from saformer.report.rollouts import write_report

    listener, run = listener or Listener(), demo_run(out, scale, seed)
    preset, data_steps, episodes = PRESETS["small"](), None, 20
    if scale == "smoke":
        fit = replace(preset.fit, updates=30, warmup_updates=10, report_every=10, evaluate_every=15)
        preset, data_steps, episodes = replace(preset, fit=fit), 6_000, 2
    how: dict[str, Any] = {"seed": seed, "device": device, "listener": listener}
    begun = run.checkpoint_path.exists()
    trained = train(
        DEMO_TASK, preset=preset, data_steps=data_steps, out=run.path, resume=begun, **how
    )
    trained.evaluate(DEMO_LIMITS, episodes=episodes, seed=seed)
    command = " ".join(["saformer", *sys.argv[1:]])
    page = write_report(trained.run, Path(out) / "report.html", command=command)
    listener.say(f"report written to {page}")
    return page


def demo_run(out: str | Path, scale: str, seed: int) -> Run:
    return Run(Path(out) / f"run-{scale}-seed{seed}")
