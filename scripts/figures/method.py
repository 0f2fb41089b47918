"""The figures of docs/method.md, from a run on a plant.

saformer train plant-room --out runs/room
python -m scripts.figures.method runs/room --out docs/figures
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.plants import LIMITS, WAYS, judge

import saformer
from saformer.core.execution import SaFormerPolicy
from saformer.core.objectives import actor_nll
from saformer.core.rules import PaperOptions, PaperRule, Rule
from saformer.envs.plants import PLANTS, Plant
from saformer.evaluation.evaluate import FIRST_SEED
from saformer.kernels.recording import Recorder
from saformer.report.figure import Line, Panel, canvas, line_panels, styled, svg, write_plainly
from saformer.rules.feasible import FeasibleOptions, FeasibleRule
from saformer.trained import Trained

SHOWN = ("p10", "p30", "p50", "p90")
Day = dict[str, list[float]]


def watched(rule: type[Any]) -> type[Any]:
    """The rule, which also remembers what is forecast for the first candidate."""

    class Watched(rule):  # type: ignore[misc]
        def select(self, model: Any, prefix: Any, candidates: Any) -> Any:
            decision = super().select(model, prefix, candidates)
            usual = model.forecast(prefix, candidates.action[:, :1]).mean[0, 0, 0]
            self.usual, self.held = float(usual), decision.verification
            return decision

    return Watched


def play(trained: Trained, plant: Plant, rule: Rule, limit: float) -> Day:
    """The first judged day under a limit, step by step."""
    import gymnasium

    agent, config = trained.agent, trained.agent.config
    policy = SaFormerPolicy(agent.model, rule, Recorder, window=config.window)
    environment = gymnasium.make(plant.identifier)
    state, _ = environment.reset(seed=FIRST_SEED)
    policy.reset(state[None], limit)
    day: Day = {name: [] for name in ("level", "spent", "remaining", "usual", "least", "forced")}
    for _ in range(plant.horizon):
        decision = policy.act(state[None])
        spent, action = float(policy.budget.spent[0, 0]), decision.action[0].numpy()
        least, forced = float(rule.held.cost[0, 0, 0]), float(decision.fell_back[0])
        row = (float(state[0]), spent, limit - spent, rule.usual, least, forced)
        for column, value in zip(day.values(), row, strict=True):
            column.append(value)
        cost = float(plant.cost(state[0], state[1:], action[0]))
        state, reward, *_ = environment.step(action)
        policy.observe([reward], [[cost]])
    return day


def question(trained: Trained, plant: Plant, limit: float, name: str) -> str:
    """What each rule holds against what remains, on one day."""
    config, outlook = trained.agent.config, trained.agent.outlook
    feasible = FeasibleOptions(candidates=config.candidates)
    rules = {
        "the paper's rule": watched(PaperRule)(PaperOptions(candidates=config.candidates)),
        "ours": watched(FeasibleRule)(feasible, outlook, config.cost_discount),
    }
    panels = []
    for title, rule in rules.items():
        day = play(trained, plant, rule, limit)
        hours = np.arange(plant.horizon) * 24 / plant.horizon
        held = ("usual", "the usual course") if title != "ours" else ("least", "what must be spent")
        rejected = np.mean(day["forced"])
        lines = [
            Line("what remains", hours, day["remaining"]),
            Line(held[1], hours, day[held[0]]),
        ]
        heading = f"{title}: nothing passes in {rejected:.0%} of the steps"
        panels.append(Panel(heading, lines, "hour", f"euros, limit {name} = {limit:.3g}"))
    return line_panels(panels, columns=2)


def spending(trained: Trained, plant: Plant, limits: dict[str, float]) -> str:
    """One day under four limits."""
    config, outlook = trained.agent.config, trained.agent.outlook
    options = FeasibleOptions(candidates=config.candidates)
    hours, spent, level = np.arange(plant.horizon) * 24 / plant.horizon, [], []
    for name, limit in limits.items():
        day = play(
            trained, plant, watched(FeasibleRule)(options, outlook, config.cost_discount), limit
        )
        spent.append(Line(name, hours, day["spent"], level=limit))
        level.append(Line(name, hours, day["level"]))
    return line_panels(
        [
            Panel("spent (dashed: the limits)", spent, "hour", "euros"),
            Panel("room", level, "hour", "degrees Celsius"),
        ],
        columns=2,
    )


def frontier(rows: Sequence[dict[str, Any]]) -> str:
    """Return against the limit, and share of days within it, by way of acting."""
    earned, within = [], []
    for way in (*WAYS, "doing nothing"):
        own = [row for row in rows if row["way"] == way]
        limits = [row["limit"]["values"][0] for row in own]
        earned.append(Line(way, limits, [row["mean_return"] for row in own]))
        within.append(Line(way, limits, [row["within"] for row in own]))
    own = [row for row in rows if row["way"] == "ours"]
    limits = [row["limit"]["values"][0] for row in own]
    earned.append(Line("the day known in advance", limits, [row["optimum"] for row in own]))
    return line_panels(
        [
            Panel("return", earned, "limit (euros)", "hours of comfort"),
            Panel("days within the limit", within, "limit (euros)", "share"),
        ],
        columns=2,
    )


@styled
def balance(trained: Trained) -> str:
    """The gradient's norm of each of Eq. 5's terms, as published and as we weigh them."""
    agent, data = trained.agent, saformer.data_of(trained.run)
    batch = agent.sampler(data).sample(256, torch.Generator().manual_seed(0))
    batch = agent.model.normalizer.window(batch)
    parameters = [each for each in agent.model.actor.parameters() if each.requires_grad]
    norms = {}
    for name, term in actor_nll(agent.model.actor(batch), batch).items():
        gradients = torch.autograd.grad(
            term.mean(), parameters, retain_graph=True, allow_unused=True
        )
        squares = [float((each**2).sum()) for each in gradients if each is not None]
        norms[name] = sum(squares) ** 0.5
    figure, (axis,) = canvas(1)
    labels, places = [name.replace("_", "-") for name in norms], np.arange(len(norms))
    weighed = [n if name == "action" else 0.01 * n for name, n in norms.items()]
    axis.barh(places - 0.2, list(norms.values()), 0.38, label="as published", color="#8a93a0")
    axis.barh(places + 0.2, weighed, 0.38, label="to-go terms x 0.01", color="#2a7f4f")
    axis.set(xscale="log", yticks=places, yticklabels=labels, xlabel="norm of the gradient")
    write_plainly(axis.xaxis)
    axis.set_title("Eq. 5, term by term")
    axis.legend()
    return svg(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    parser.add_argument("--episodes", type=int, default=20)
    arguments = parser.parse_args()
    trained = saformer.load(arguments.run, device="cpu")
    plant = PLANTS[trained.run.spec.task]
    limits = {limit.name: limit.values[0] for limit in trained.parse_limits(LIMITS)}
    rows = judge(trained, plant, arguments.episodes)
    for name, drawing in (
        ("question", question(trained, plant, limits["p30"], "p30")),
        ("spending", spending(trained, plant, {name: limits[name] for name in SHOWN})),
        ("frontier", frontier(rows)),
        ("balance", balance(trained)),
    ):
        (arguments.out / f"method_{name}.svg").write_text(drawing)
        print(f"{arguments.out}/method_{name}.svg")


if __name__ == "__main__":
    main()
