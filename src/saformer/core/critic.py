"""The critic, zeta: forecasts what the rest of an episode will cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from saformer.core.batch import Dimensions, WindowBatch
from saformer.core.tokens import Layout, TokenEmbedding
from saformer.core.transformer import KVCache, Trunk, TrunkConfig

CRITIC_LAYOUT = Layout(("state", "action"))


@dataclass(frozen=True)
class CostForecast:
    """The cost of the rest of the episode, for each constraint: today a point, [..., C]."""

    mean: Tensor


Risk = Callable[[CostForecast], Tensor]
"""How a forecast becomes the number that is held against the budget: CostForecast -> [..., C]."""


def expected_cost(forecast: CostForecast) -> Tensor:
    """The paper's risk: take the forecast at its mean."""
    return forecast.mean


class CostCritic(nn.Module):
    """Forecasts the cost-to-go from states and actions alone, in model units."""

    def __init__(self, dimensions: Dimensions, config: TrunkConfig) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(CRITIC_LAYOUT, dimensions, config.width)
        self.trunk = Trunk(config)
        self.head = nn.Linear(config.width, dimensions.constraints)

    def forward(self, batch: WindowBatch) -> Tensor:
        """The cost-to-go once each step's action is chosen, for training: [B, K, C]."""
        tokens = self.embedding.embed(batch.tokens(CRITIC_LAYOUT.kinds), batch.timestep)
        forecast: Tensor = self.trunk.head_outputs(tokens, CRITIC_LAYOUT, {"action": self.head})[0]
        return forecast

    def prefill(self, tokens: Tensor, valid: Tensor) -> KVCache:
        """The cache of a prefix that ends with the present state: [L, P, E], [L, P]."""
        return self.trunk.prefill(tokens, valid)[1]

    def forecast(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """The cost-to-go of each candidate action after the prefix: [L, N, 1, E] -> [L, N, C]."""
        forecast: Tensor = self.head(self.trunk.branch(tokens, cache))
        return forecast
