"""Write the golden values anew: `python -m tests.golden.refresh`. Do it on purpose only, and say why."""

import json
from pathlib import Path
from typing import Any

import torch

from saformer.agents.saformer import SaFormerAgent
from saformer.data.limits import Limit
from saformer.data.relabel import relabel
from saformer.data.sampling import WindowSampler
from saformer.envs import allowance
from saformer.evaluation.evaluate import evaluate
from saformer.training.config import FitConfig
from saformer.training.fit import Trainer
from tests.conftest import tiny_config

FILE = Path(__file__).parent / "saformer.json"


def measure() -> dict[str, Any]:
    """Losses of the first updates, and one short evaluation."""
    torch.set_num_threads(1)
    data = relabel(allowance.dataset(episodes=50), allowance.criteria())
    agent = SaFormerAgent.create(data, tiny_config(), seed=0)
    trainer = Trainer(agent, WindowSampler(data, window=4), FitConfig(batch_size=16, warmup_updates=2), seed=0)
    losses = [trainer.step() for _ in range(5)]
    for _ in range(45):
        trainer.step()
    found = evaluate(agent.policy(), data, [Limit("4", (4.0,)), Limit("12", (12.0,))], episodes=2)
    rows = [[row.episode_return, row.cost[0], row.resampled, row.fell_back] for row in found.rows]
    return {"losses": losses, "episodes": rows}


if __name__ == "__main__":
    FILE.write_text(json.dumps(measure(), indent=1))
    print(f"written to {FILE}")
