"""Tables and a figure of what `benchmarks.agents` and `benchmarks.osrl_agents` measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

Row = dict[str, Any]


def show(rows: Iterable[Row], folder: Path) -> None:
    """Print Markdown, and draw bcq_lag.svg."""
    rows = list(rows)
    by_kind = {
        kind: [row for row in rows if row["kind"] == kind]
        for kind in ("cell", "critic", "sweep", "curve")
    }
    print(cells(by_kind["cell"]))
    if by_kind["critic"]:
        print(critics(by_kind["critic"]))
    for row in by_kind["sweep"]:
        print(swept(row))
    if by_kind["curve"]:
        draw_multipliers(by_kind["curve"], folder / "bcq_lag.svg")


def cells(rows: list[Row]) -> str:
    """Means over seeds, and how many of them met the limit."""
    lines = [
        "| task | limit | agent | updates | cost | return | share | within | met |",
        "|" + "---|" * 9,
    ]
    for (task, limit, agent), own in _grouped(rows, "task", "limit", "agent"):
        mean = {
            name: float(np.mean([row[name] for row in own]))
            for name in ("cost", "return", "share", "within")
        }
        spread = [np.ptp([row[name] for row in own]) / 2 for name in ("cost", "return")]
        cost = f"{mean['cost']:.0f} ± {spread[0]:.0f}"
        figures = f"{cost} | {mean['return']:.0f} ± {spread[1]:.0f} | {mean['share']:.2f}"
        met = f"{sum(row['met'] for row in own)} of {len(own)}"
        at = f"{limit} = {own[0]['at_most']:.0f}"
        lines.append(
            f"| {task} | {at} | {agent} | {own[0]['updates']} | {figures} | {mean['within']:.0%} "
            f"| {met} |"
        )
    return (
        "\n".join(lines)
        + "\n\n± is half of the range over seeds; met: seeds whose mean cost is within the limit.\n"
    )


def critics(rows: list[Row]) -> str:
    """CPQ's cost critic on states that it never saw."""
    lines = [
        "| task | limit | cost-Q of uniform actions | of the data's | seeds where higher |",
        "|" + "---|" * 5,
    ]
    for (task, limit), own in _grouped(rows, "task", "limit"):
        uniform, data = (
            ", ".join(f"{row[name]:.0f}" for row in own) for name in ("uniform", "data")
        )
        higher = sum(row["uniform"] > row["data"] for row in own)
        lines.append(f"| {task} | {limit} | {uniform} | {data} | {higher} of {len(own)} |")
    return "\n".join(lines) + "\n"


def swept(row: Row) -> str:
    """What DT earned for each return that it was asked for."""
    columns = list(zip(*row["tried"], strict=True))
    names = (f"{row['task']}, seed {row['seed']}: asked for", "return", "cost")
    lines = [
        f"| {name} | " + " | ".join(f"{x:.0f}" for x in own) + " |"
        for name, own in zip(names, columns, strict=True)
    ]
    lines.insert(1, "|" + "---|" * (len(columns[0]) + 1))
    return "\n".join(lines) + f"\n\nBehaviour: mean return {row['behaviour']:.0f}.\n"


def draw_multipliers(rows: list[Row], path: Path) -> None:
    """Expected cost beside the limit above, the multiplier below: a column for each task, a line
    for each seed."""
    groups = list(_grouped(rows, "task", "limit"))
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "saformer", "font.size": 8}):
        figure = Figure(figsize=(2.4 * len(groups), 3.6), layout="constrained")
        axes = figure.subplots(2, len(groups), sharex="col", squeeze=False)
        for (above, below), ((task, limit), own) in zip(axes.T, groups, strict=True):
            for row in own:
                update, multiplier, cost = row["curve"]
                above.plot(update, cost, linewidth=0.9)
                below.plot(update, multiplier, linewidth=0.9)
            above.axhline(own[0]["at_most"], color="black", linestyle="--", linewidth=0.8)
            above.set_title(f"{task}, {limit}")
            below.set_xlabel("updates")
        axes[0][0].set_ylabel("expected cost (dashed: limit)")
        axes[1][0].set_ylabel("multiplier")
        figure.savefig(path, format="svg", metadata={"Date": None})
    print(
        f"figure: {path}; share of the curve's steps on which the multiplier follows the sign of "
        "the excess:"
    )
    for row in rows:
        print(f"  {row['task']}, {row['limit']}, seed {row['seed']}: {follows(row):.0%}")


def follows(row: Row) -> float:
    """How often the multiplier rose while the expected cost was above the limit and fell (or stayed
    at 0) below it."""
    _, multiplier, cost = (np.array(part) for part in row["curve"])
    moved, excess = np.diff(multiplier), (cost[1:] + cost[:-1]) / 2 - row["at_most"]
    return float(np.mean(np.where(excess > 0, moved > 0, (moved < 0) | (multiplier[1:] <= 0))))


def _grouped(rows: list[Row], *names: str) -> list[tuple[tuple[str, ...], list[Row]]]:
    key: Callable[[Row], tuple[str, ...]] = lambda row: tuple(row[name] for name in names)  # noqa: E731
    return [
        (found, [row for row in rows if key(row) == found])
        for found in dict.fromkeys(sorted(map(key, rows)))
    ]
