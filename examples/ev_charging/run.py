"""One charging policy for any budget of CO2: logs, training, and days that it has not seen.

python run.py --out ev
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from matplotlib.figure import Figure

import saformer
from garage import STEPS, Autumn, Garage
from rules import RULES, Operator, Rule
from saformer.runs.run import Run

BUDGETS = (20.0, 40.0, 60.0, 80.0)
AWARE = "carbon-aware rule"
Day = tuple[float, float]
"""Dollars and kilograms."""
Outcomes = list[dict[str, Any]]
"""who, budget, days: of the policy without a budget of its own, each day's is what the carbon-aware
rule emitted on it"""


def main(out: Path = Path("ev"), episodes: int = 300, updates: int = 2000, days: int = 44) -> None:
    """Make logs, train on them, hold the policy against rules of today on days it has not seen.

    Args:
        out: where logs, policy, numbers and figure go; what is there is not made again.
        episodes: days of logs, each by another operator.
        updates: of the networks.
        days: of autumn to judge by, 44 at most.
    """
    logs, run, listener = out / "logs", out / "policy", saformer.Listener(say=print)
    if not logs.exists():
        saformer.collect(Garage, Operator, logs, episodes=episodes, listener=listener)
    if not Run(run).is_done:
        how: dict[str, Any] = {"resume": Run(run).checkpoint_path.exists(), "listener": listener}
        saformer.train(str(logs), updates=updates, evaluate_every=0, out=run, **how)
    policy = saformer.load(run, device="cpu").policy()
    outcomes = judged(policy, days)
    (out / "outcomes.json").write_text(json.dumps(outcomes, indent=1))
    print(table(outcomes))
    draw(outcomes, out / "profit_and_carbon.svg")
    print(f"figure written to {out / 'profit_and_carbon.svg'}")


def judged(policy: Any, days: int) -> Outcomes:
    """What rules and the policy bring on every day, without a budget and within each."""
    outcomes = {(name, None): by_rule(days, settings) for name, settings in RULES.items()}
    for budget in BUDGETS:
        print(f"judging within {budget:g} kg a day")
        capped = {**RULES[AWARE], "budget": budget}
        outcomes[AWARE, budget] = by_rule(days, capped)
        outcomes["policy", budget] = by_policy(policy, [budget] * days)
    spent = [kilograms for _, kilograms in outcomes[AWARE, None]]
    outcomes["policy", None] = by_policy(policy, spent)
    return [
        {"who": who, "budget": budget, "days": rows} for (who, budget), rows in outcomes.items()
    ]


def by_rule(days: int, settings: dict[str, float]) -> list[Day]:
    """What a rule brings on each day."""
    rules = [Rule(**settings) for _ in range(days)]
    return drive(days, lambda states: [rule(s) for rule, s in zip(rules, states, strict=True)])


def by_policy(policy: Any, budgets: list[float]) -> list[Day]:
    """What the policy brings on each day, within the day's budget. It decides for all at once."""

    def begin(states: Any) -> None:
        policy.reset(states, limit=np.array(budgets)[:, None])

    def observe(dollars: Any, kilograms: Any) -> None:
        policy.observe(dollars, kilograms[:, None])

    return drive(len(budgets), lambda states: policy.act(states).action.numpy(), begin, observe)


def drive(
    days: int,
    decide: Callable[[Any], Any],
    begin: Callable[[Any], None] = lambda states: None,
    observe: Callable[[Any, Any], None] = lambda dollars, kilograms: None,
) -> list[Day]:
    """Days of autumn side by side, from midnight to midnight."""
    garages, totals = [Autumn() for _ in range(days)], np.zeros((days, 2))
    states = np.stack([garage.reset(seed=day)[0] for day, garage in enumerate(garages)])
    begin(states)
    for _ in range(STEPS):
        steps = [garage.step(rates) for garage, rates in zip(garages, decide(states), strict=True)]
        outcome = np.array([(reward, info["cost"]) for _, reward, _, _, info in steps])
        observe(*outcome.T)
        totals, states = totals + outcome, np.stack([state for state, *_ in steps])
    return [(dollars, kilograms) for dollars, kilograms in totals.tolist()]


def table(outcomes: Outcomes) -> str:
    """Means over days, and the share of days within the budget."""
    lines = [f"{'':34}{'dollars':>9}{'kg CO2':>9}{'within':>9}"]
    for each in outcomes:
        dollars, kilograms = np.transpose(each["days"])
        limit = each["budget"] or np.inf
        within = f"{(kilograms <= limit).mean():.0%}" if each["budget"] else ""
        name = f"{each['who']} within {limit:g} kg" if each["budget"] else each["who"]
        name += ", the rule's kg" if name == "policy" else ""
        lines.append(f"{name:34}{dollars.mean():9.2f}{kilograms.mean():9.1f}{within:>9}")
    return "\n".join(lines)


def draw(outcomes: Outcomes, path: Path) -> None:
    """Profit against carbon: the policy at every budget, and the rules."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    groups: dict[str, list[Any]] = {}
    for each in outcomes:
        within = " within a budget" if each["budget"] and each["who"] == AWARE else ""
        groups.setdefault(each["who"] + within, []).append((each["budget"], each["days"]))
    for name, rows in groups.items():
        points = sorted(tuple(np.mean(days, axis=0)[::-1]) for _, days in rows)
        axes.plot(*np.transpose(points), "o-" if len(points) > 1 else "s", label=name)
        for budget, days in rows if name == "policy" else ():
            dollars, kilograms = np.mean(days, axis=0)
            label = f"{budget:g} kg" if budget else "as the rule"
            axes.annotate(label, (kilograms, dollars), (4, -12), textcoords="offset points")
    axes.set(xlabel="kg of CO2 a day (mean)", ylabel="dollars of profit a day (mean)")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


if __name__ == "__main__":
    tyro.cli(main)
