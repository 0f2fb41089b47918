"""The figures of docs/method.md: policies rolled out by the paper's rule and by reserve, as SVG.

    python -m scripts.figures.method --out docs/figures
    python -m scripts.figures.method --run runs/halfcheetah-medium-... --out docs/figures

By default of the policy that comes with the package, which needs no data. Of a run whose episodes
can end before their time, one episode's budget and the ways to stop it are drawn; where the actor
is told another limit than its own, what that spends and earns; else what the whole episode is
forecast to cost. The episode shown is the one whose cost by the paper's rule is the median. What is
drawn is printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from scripts.figures.method_diagram import rule
from scripts.figures.method_drawn import budgets, course, stopping, table, telling
from scripts.figures.method_episodes import Scene, watch


@dataclass(frozen=True)
class Settings:
    """What to draw."""

    run: tuple[str, ...] = ("pretrained:hopper-medium-expert",)
    """Runs, exports or pretrained policies: of SaFormer, with one constraint."""
    out: Path = Path("figures")
    limit: str = "p20"
    """A cost, or a percentile of the costs in the run's data."""
    episodes: int = 5
    """Rolled out in each way."""
    device: str = "auto"


def main(settings: Settings) -> None:
    """Draw all, and say what was seen."""
    drawn = {"reserve_rule": rule()}
    for path in settings.run:
        scene = watch(
            path, limit=settings.limit, episodes=settings.episodes, device=settings.device
        )
        print(table(scene))
        drawn |= figures_of(scene)
    settings.out.mkdir(parents=True, exist_ok=True)
    for name, text in drawn.items():
        (settings.out / f"{name}.svg").write_text(text)
        print(f"{settings.out / name}.svg: {len(text) / 1000:.0f} kB")


def figures_of(scene: Scene) -> dict[str, str]:
    """By name."""
    found = {}
    if scene.can_stop:
        found |= {
            f"reserve_budget_{scene.task}": budgets(scene),
            f"reserve_stop_{scene.task}": stopping(scene),
        }
    if scene.tells:
        found |= {f"reserve_told_{scene.task}": telling(scene)}
    return found or {f"reserve_course_{scene.task}": course(scene)}


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
