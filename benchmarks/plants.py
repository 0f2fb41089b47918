"""The three plants by the default preset: limits kept, and what is earned beside the optimum.

python -m benchmarks.plants --out plants [--seeds 0 1] [--episodes 50] [--plants plant-room ...]

Trains what is not there yet, rolls out four ways of acting under six limits, and prints a table.
Beside them: doing nothing; the best recorded controller that keeps the limit on 95% of the same
days, and the best whose mean cost does; and the optimum with each day known in advance.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import saformer
from saformer.envs.plants import PLANTS, Plant, foresight
from saformer.envs.tasks import PLANT_EPISODES
from saformer.evaluation.evaluate import FIRST_SEED
from saformer.trained import Trained

LIMITS = ("p10", "p20", "p30", "p50", "p70", "p90")
WAYS: dict[str, dict[str, Any]] = {
    "ours": {},
    "the mean": {"rule": "none", "options": {"candidates": 1}},
    "the paper's rule": {"rule": "paper"},
    "the paper's rule, else the mean": {"rule": "paper", "options": {"fallback": "mean"}},
}
HEADINGS = ("limit", "way", "cost", "within", "return", "of the optimum", "of the best controller")


def bounds(plant: Plant, limits: Sequence[float], episodes: int) -> list[dict[str, float]]:
    """What is possible under each limit on the days that policies are judged on."""
    days = [plant.day(FIRST_SEED + index) for index in range(episodes)]
    recorded = plant.controllers(PLANT_EPISODES, np.random.default_rng(0))
    returns, costs = plant.replay(recorded, days)  # [controllers, days]
    optimum = np.mean([foresight(plant, day, limits)[0] for day in days], axis=0)
    rows = []
    for limit, best in zip(limits, optimum, strict=True):
        keeps = {"sure": (costs <= limit).mean(1) >= 0.95, "mean": costs.mean(1) <= limit}
        earned = {name: returns.mean(1)[own].max(initial=-np.inf) for name, own in keeps.items()}
        rows.append({"optimum": float(best), **{name: float(e) for name, e in earned.items()}})
    return rows


def judge(trained: Trained, plant: Plant, episodes: int) -> list[dict[str, Any]]:
    """A row for each limit and way."""
    limits = [limit.values[0] for limit in trained.parse_limits(LIMITS)]
    possible, rows = bounds(plant, limits, episodes), []
    for way, settings in WAYS.items():
        evaluation, _ = trained.judge(list(LIMITS), episodes=episodes, **settings)
        both = {way: evaluation} | ({"doing nothing": evaluation.nothing} if way == "ours" else {})
        for name, own in both.items():
            for verdict, bound in zip(own.verdicts, possible, strict=True):
                rows.append(verdict.plain() | {"way": name, **bound})
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown, a limit's rows together."""
    lines = [" | ".join(HEADINGS), " | ".join("---" for _ in HEADINGS)]
    for name in LIMITS:
        for row in (each for each in rows if each["limit"]["name"] == name):
            limit, cost, earned = row["limit"]["values"][0], row["mean_cost"][0], row["mean_return"]
            controllers = f"{earned / row['sure']:.2f} ({earned / row['mean']:.2f} by its mean)"
            cells = (f"{name} = {limit:.3g}", row["way"], f"{cost:.3g}", f"{row['within']:.0%}")
            shares = (f"{earned:.3g}", f"{earned / row['optimum']:.2f}", controllers)
            lines.append(" | ".join((*cells, *shares)))
    return "\n".join(f"| {line} |" for line in lines)


def summary(rows: Sequence[dict[str, Any]], way: str) -> str:
    own = [row for row in rows if row["way"] == way]
    shares = [row["mean_return"] / row["optimum"] for row in own]
    least = min(row["mean_return"] / row["sure"] for row in own if row["sure"] > 0)
    met, within = sum(row["met"] for row in own), np.mean([row["within"] for row in own])
    return (
        f"{way}: {met} of {len(own)} met, {within:.1%} within, of the optimum {min(shares):.2f} to "
        f"{max(shares):.2f} (median {np.median(shares):.2f}), of the best controller that keeps "
        f"the limit at least {least:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plants", nargs="+", default=list(PLANTS), choices=list(PLANTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("plants"))
    parser.add_argument("--train-only", action="store_true")
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        rows: list[dict[str, Any]] = []
        for name in arguments.plants:
            folder = arguments.out / f"{name}-seed{seed}"
            if not (folder / "done.json").exists():
                saformer.train(name, out=folder, seed=seed, resume=folder.exists())
            if arguments.train_only:
                continue
            own = judge(saformer.load(folder), PLANTS[name], arguments.episodes)
            (folder / "plants.json").write_text(json.dumps(own))
            print(f"\n{name}, seed {seed}, {arguments.episodes} days a limit\n\n{table(own)}")
            rows += own
        for way in (*WAYS, "doing nothing") if rows else ():
            print(f"seed {seed}, {summary(rows, way)}", flush=True)


if __name__ == "__main__":
    main()
