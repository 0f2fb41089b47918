"""Untrained policies whose weights all matter, and how they are driven beside their graphs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saformer.core.batch import KINDS, Dimensions
from saformer.core.execution import SaFormerPolicy
from saformer.core.model import SaFormer
from saformer.core.rules import Rule
from saformer.core.transformer import TrunkConfig
from saformer.kernels.recording import Recorder
from saformer.onnx.driver import Arrays, GraphDriver
from saformer.onnx.export import SameNoise
from saformer.rules.outlook import Outlook

SIZES = Dimensions(state=3, action=2, constraints=2, horizon=12)
DISCOUNT = 0.9


def untrained(seed: int = 0) -> tuple[SaFormer, Outlook]:
    """Weights so large that every input shows in the action."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, outlook = SaFormer(SIZES, TrunkConfig(layers=1, width=16, heads=2)), Outlook(SIZES)
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.5)
        torch.nn.init.normal_(model.critic.head.weight, std=4.0)  # actions decide what is safe
        rows = {kind: torch.rand(2, SIZES.of(kind)) + 0.5 for kind in KINDS}
    model.normalizer.set_statistics({kind: tuple(row) for kind, row in rows.items()})
    model.get_buffer("action_low").fill_(-9.0)
    model.get_buffer("action_high").fill_(9.0)
    outlook.get_buffer("left").copy_(torch.linspace(3.0, 0.0, SIZES.horizon + 1))
    return model, outlook


def policy_of(model: Any, rule: Rule) -> SaFormerPolicy:
    return SaFormerPolicy(model, rule, Recorder, window=4, cost_discount=DISCOUNT)


@dataclass
class Beside:
    """A policy of one lane and its graph, given the same states, costs and noise."""

    policy: SaFormerPolicy
    driver: GraphDriver
    decisions: list[tuple[Any, Arrays]] = field(default_factory=list)

    def reset(self, state: Tensor, limit: Any) -> None:
        self.policy.reset(state[None], torch.as_tensor(limit, dtype=torch.float64)[None])
        self.driver.reset(limit)
        self._noise = SameNoise(self.policy)

    def act(self, state: Tensor) -> Any:
        own = self.policy.act(state[None])
        self.decisions.append(
            (own, self.driver.act(state.numpy(), self._noise.draw(own.num_rounds)))
        )
        return own

    def observe(self, cost: Any, action: Any = None) -> None:
        self.policy.observe(0.0, cost, action=action)
        self.driver.observe(np.asarray(cost), action)

    def largest_difference(self) -> float:
        """Of actions, after all that is told with them was found to be the same."""
        for own, found in self.decisions:
            for name in ("num_safe", "num_rounds", "fell_back"):
                assert getattr(own, name).item() == found[name].item(), name
        pairs = [(own.action.numpy(), found["action"]) for own, found in self.decisions]
        return max(float(np.abs(own - other).max()) for own, other in pairs)
