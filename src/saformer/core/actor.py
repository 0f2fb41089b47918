"""The actor: proposes returns-to-go, and actions that would earn them, within a budget."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from saformer.core.batch import KINDS, Dimensions, WindowBatch
from saformer.core.gaussian import Gaussian, GaussianHead
from saformer.core.tokens import Layout, TokenEmbedding
from saformer.core.transformer import KVCache, Trunk, TrunkConfig

ACTOR_LAYOUT = Layout(KINDS)


@dataclass(frozen=True)
class Predictions:
    """The actor's predictions at every step of a window, each [B, K, _], in model units."""

    cost_to_go: Gaussian
    """given the past and the limit"""
    return_to_go: Gaussian
    """given the past, the limit and the cost-to-go: Eq. 3"""
    action: Gaussian
    """given all that and the return-to-go and the state: Eq. 4"""


class Actor(nn.Module):
    """A causal model of (limit, cost-to-go, return-to-go, state, action) sequences, in model
    units."""

    def __init__(self, dimensions: Dimensions, config: TrunkConfig) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(ACTOR_LAYOUT, dimensions, config.width)
        self.trunk = Trunk(config)
        self.cost_to_go_head = GaussianHead(config.width, dimensions.constraints)
        self.return_to_go_head = GaussianHead(config.width, 1)
        self.action_head = GaussianHead(config.width, dimensions.action)

    def forward(self, batch: WindowBatch) -> Predictions:
        """All three predictions at every step, for training."""
        tokens = self.embedding.embed(batch.tokens(ACTOR_LAYOUT.kinds), batch.timestep)
        # Each head reads the token that stands before what it predicts.
        heads = {
            "limit": self.cost_to_go_head,
            "cost_to_go": self.return_to_go_head,
            "state": self.action_head,
        }
        return Predictions(*self.trunk.head_outputs(tokens, ACTOR_LAYOUT, heads))

    def expect_return(self, tokens: Tensor, valid: Tensor) -> tuple[Gaussian, KVCache]:
        """The return-to-go, given a prefix that ends with the present cost-to-go.

        Implements: Eq. (3)

        [L, P, E], [L, P] -> Gaussian over [L, 1] and the cache of the prefix.
        """
        output, cache = self.trunk.prefill(tokens, valid)
        return self.return_to_go_head(output), cache

    def propose_action(self, tokens: Tensor, cache: KVCache) -> Gaussian:
        """The action for each return-to-go, given branches (return-to-go, state) after the prefix.

        Implements: Eq. (4)

        [L, N, 2, E] -> Gaussian over [L, N, A].
        """
        proposal: Gaussian = self.action_head(self.trunk.branch(tokens, cache))
        return proposal
