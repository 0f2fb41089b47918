"""From nothing to a report."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

from saformer.api.listener import Listener
from saformer.api.runs import evaluate
from saformer.api.training import train
from saformer.runs.run import Run
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

    listener = listener or Listener()
    preset, data_steps, episodes = PRESETS["small"](), None, 20
    if scale == "smoke":
        brief = replace(
            preset.fit, updates=30, warmup_updates=10, report_every=10, evaluate_every=15
        )
        preset, data_steps, episodes = replace(preset, fit=brief), 6_000, 2
    out = Path(out)
    run_path = out / f"run-{scale}-seed{seed}"
    run = train(
        DEMO_TASK,
        preset=preset,
        seed=seed,
        data_steps=data_steps,
        out=run_path,
        resume=Run(run_path).checkpoint_path.exists(),
        device=device,
        listener=listener,
    )
    evaluate(
        run.path, limits=DEMO_LIMITS, episodes=episodes, seed=seed, device=device, listener=listener
    )
    page = write_report(run, out / "report.html", command=" ".join(["saformer", *sys.argv[1:]]))
    listener.say(f"report written to {page}")
    return page
