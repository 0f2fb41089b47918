"""Ways to balance Eq. 5's terms, side by side: what a policy earns and keeps after each.

    python -m scripts.balance walker2d-effort --steps 100000 --updates 4000 --out build/balance

Everything else is preset small. Acting is by the mean of both heads and by the paper's rule, which
learn nothing after training. A row per balance and way of acting goes to OUT/TASK.jsonl; balances
that are there already are left out.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import tyro
from torch import Tensor

import saformer
from saformer.agents.saformer import SaFormerAgent, balanced
from saformer.core.batch import WindowBatch
from saformer.core.objectives import PerSample, actor_nll, over_valid_steps
from saformer.training.loop.presets import PRESETS, Preset

Terms = Callable[[SaFormerAgent, WindowBatch], dict[str, PerSample]]
TO_GO = ("cost_to_go", "return_to_go")
WAYS: dict[str, dict[str, Any]] = {
    "mean": {"rule": "none", "options": {"candidates": 1}},
    "paper": {"rule": "paper"},
}


def weight(to_go: float) -> Terms:
    """A constant weight on both to-go terms; 1 is the paper's."""

    def terms(agent: SaFormerAgent, batch: WindowBatch) -> dict[str, PerSample]:
        batch = agent.model.normalizer.window(batch)
        return balanced(actor_nll(agent.model.actor(batch), batch), to_go)

    return terms


def beta_nll(beta: float) -> Terms:
    """Each step's to-go likelihood times its own variance to the power of beta (Seitzer 2022)."""

    def terms(agent: SaFormerAgent, batch: WindowBatch) -> dict[str, PerSample]:
        batch = agent.model.normalizer.window(batch)
        predicted = agent.model.actor(batch)
        losses = actor_nll(predicted, batch)
        for name in TO_GO:
            gaussian = getattr(predicted, name)
            likelihood = -gaussian.log_prob(getattr(batch, name))
            variance = torch.exp(2 * beta * gaussian.log_deviation.detach()).mean(-1)
            losses[name] = over_valid_steps(variance * likelihood, batch.valid)
        return losses

    return terms


def detached(agent: SaFormerAgent, batch: WindowBatch) -> dict[str, PerSample]:
    """The heads of to-go terms read the trunk and do not steer it."""

    def cut(module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(each.detach() for each in inputs)

    actor = agent.model.actor
    hooks = [getattr(actor, f"{name}_head").register_forward_pre_hook(cut) for name in TO_GO]
    try:
        return weight(1.0)(agent, batch)
    finally:
        for hook in hooks:
            hook.remove()


BALANCES: dict[str, Terms] = {
    "1 (paper)": weight(1.0),
    "0.1": weight(0.1),
    "0.01 (default)": weight(0.01),
    "beta-NLL 0.5": beta_nll(0.5),
    "beta-NLL 1": beta_nll(1.0),
    "detached": detached,
}


@dataclass(frozen=True)
class Trial:
    """What to try."""

    task: tyro.conf.Positional[str]
    """A task with a simulator."""
    steps: int = 100_000
    """Of data."""
    updates: int = 4000
    """Of each training."""
    episodes: int = 5
    """Under each limit."""
    seed: int = 0
    """Of training."""
    balances: tuple[str, ...] = tuple(BALANCES)
    """Which to try."""
    out: Path = Path("build/balance")
    """Where rows and runs are written."""

    def rows(self, balance: str) -> Iterator[dict[str, Any]]:
        """Train and judge."""
        small = PRESETS["small"]("saformer")
        agent = replace(small.agent, rule="paper")  # type: ignore[call-arg]
        preset = Preset(agent, replace(small.fit, updates=self.updates))
        path = self.out / f"{self.task}-{balance.replace(' ', '-')}-{self.seed}"
        how: Any = {"seed": self.seed, "preset": preset, "data_steps": self.steps, "resume": True}
        with patched(BALANCES[balance]):
            trained = saformer.train(self.task, out=path, **how | {"resume": path.exists()})
        for way, acting in WAYS.items():
            judged = trained.evaluate(episodes=self.episodes, **acting).plain()
            names = ("limits_met", "safe_share", "frontier_share", "ended_early")
            within = sum(v["within"] for v in judged["verdicts"]) / len(judged["verdicts"])
            row = {"task": self.task, "balance": balance, "way": way, "within": within}
            yield row | {name: judged[name] for name in names}


@contextmanager
def patched(terms: Terms) -> Iterator[None]:
    """While it lasts, actors learn by these terms."""
    with patch.object(SaFormerAgent, "actor_terms", terms):
        yield


def main() -> None:
    """Try each balance in turn."""
    trial = tyro.cli(Trial, description=__doc__)
    trial.out.mkdir(parents=True, exist_ok=True)
    path = trial.out / f"{trial.task}.jsonl"
    known = {json.loads(line)["balance"] for line in path.open()} if path.exists() else set()
    for balance in trial.balances:
        if balance not in known:
            lines = "".join(f"{json.dumps(row)}\n" for row in trial.rows(balance))
            with path.open("a") as file:
                file.write(lines)
            print(lines, end="", flush=True)


if __name__ == "__main__":
    main()
