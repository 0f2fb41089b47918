"""Write the golden values anew: `python -m tests.golden.refresh`. Do it on purpose only, and say
why."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from saformer.agents.saformer import SaFormerAgent
from saformer.core.policy import Decision
from saformer.data.relabel import relabel
from saformer.data.sampling import WindowSampler
from saformer.envs import allowance
from saformer.training.loop.config import FitConfig
from saformer.training.loop.presets import PUBLISHED
from tests.alone import Trainer
from tests.conftest import randomise, tiny_config

FILE = Path(__file__).parent / "saformer.json"


def measure() -> dict[str, Any]:
    """Losses of the first updates, and the decisions of a model with random weights."""
    data = relabel(allowance.dataset(episodes=50), allowance.criteria())
    agent = SaFormerAgent.create(data, tiny_config(**PUBLISHED["saformer"]), seed=0)
    trainer = Trainer(
        agent, WindowSampler(data, window=4), FitConfig(batch_size=16, warmup_updates=2), seed=0
    )
    losses = [trainer.step() for _ in range(5)]
    randomise(agent.model)
    return {"losses": losses, "decisions": [_plain(decision) for decision in _decide(agent)]}


def _decide(agent: SaFormerAgent) -> Iterator[Decision]:
    """Six steps under a limit that cannot be kept, one that hardly can, and one that can."""
    policy = agent.policy()
    states = torch.randn(6, 3, 2, generator=torch.Generator().manual_seed(0))
    policy.reset(states[0], [[0.5], [7.93], [30.0]])
    for state in states:
        yield policy.act(state)
        policy.observe(torch.zeros(3, 1), torch.full((3, 1), 0.5))


def _plain(decision: Decision) -> dict[str, Any]:
    assert decision.verification is not None
    return {
        "action": decision.action.flatten().tolist(),
        "return_to_go": decision.return_to_go.tolist(),
        "forecast": decision.verification.cost[:, 0, 0].tolist(),
        "chosen": decision.chosen.tolist(),
        "num_rounds": decision.num_rounds.tolist(),
        "num_safe": decision.num_safe.tolist(),
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(measure(), indent=1))
    print(f"written to {FILE}")
