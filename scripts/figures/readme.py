"""The picture of the README: what one policy spends under four limits, on a robot and in a room.

python -m scripts.figures.readme pretrained:halfcheetah-effort demo/plant-full-seed0
"""

import argparse
from pathlib import Path

import numpy as np

import saformer
from saformer.envs.lanes import Maker
from saformer.envs.rollout import rollout
from saformer.evaluation.evaluate import FIRST_SEED
from saformer.report.figure import Line, Panel, line_panels

TITLES = {"halfcheetah-effort": "a robot for 50 seconds", "plant-room": "a heated room for a day"}
LIMITS, POINTS = ("p10", "p30", "p50", "p90"), 24  # of each line
UNITS = {"halfcheetah-effort": "torque", "plant-room": "euros"}


def spending(path: str) -> Panel:
    """One episode under each limit, all from the same start."""
    trained = saformer.load(path)
    task = trained.run.spec.task_name
    limits, totals = trained.parse_limits(LIMITS), trained.totals
    maker = Maker(totals.environment, tuple(totals.criteria))
    values = [np.array(limit.values) for limit in limits]
    horizon = totals.environment.horizon
    seeds = [FIRST_SEED] * len(values)
    episodes = rollout(trained.policy(), maker, values, seeds, horizon=horizon, workers=0)
    steps = np.linspace(1, horizon, POINTS).round().astype(int)
    lines = [
        Line(limit.name, steps, np.cumsum(episode.cost[:, 0])[steps - 1], level=limit.values[0])
        for limit, episode in zip(limits, episodes, strict=True)
    ]
    return Panel(TITLES[task], lines, "step", f"{UNITS[task]} spent (dashed: the limits)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--out", type=Path, default=Path("docs/figures/readme.svg"))
    settings = parser.parse_args()
    panels = [spending(path) for path in settings.paths]
    settings.out.write_text(line_panels(panels, columns=2))


if __name__ == "__main__":
    main()
