"""The networks: an actor that proposes, a critic that forecasts, and both as one module."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Self

import torch
from torch import Tensor, nn

from saformer.core.batch import KINDS, Dimensions, WindowBatch
from saformer.core.gaussian import Gaussian, GaussianHead
from saformer.core.history import Prompt
from saformer.core.normalizer import Normalizer
from saformer.core.policy import over_tensors
from saformer.core.tokens import Layout, TokenEmbedding
from saformer.core.transformer import KVCache, Trunk, TrunkConfig

ACTOR_LAYOUT, CRITIC_LAYOUT = Layout(KINDS), Layout(("state", "action"))


@dataclass(frozen=True)
class Predictions:
    """The actor's predictions at every step of a window, each [B, K, _], in model units."""

    cost_to_go: Gaussian  # given the past and the limit
    return_to_go: Gaussian  # given the past, the limit and the cost-to-go: Eq. 3
    action: Gaussian  # given all that and the return-to-go and the state: Eq. 4


class Actor(nn.Module):
    """A causal model of the sequences of all kinds of tokens, in model units."""

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
        heads = (self.cost_to_go_head, self.return_to_go_head, self.action_head)
        at = dict(zip(("limit", "cost_to_go", "state"), heads, strict=True))
        return Predictions(*self.trunk.head_outputs(tokens, ACTOR_LAYOUT, at))

    def expect_return(self, tokens: Tensor, valid: Tensor) -> tuple[Gaussian, KVCache]:
        """The return-to-go, given a prefix that ends with the present cost-to-go: [L, P, E], [L, P]
        -> Gaussian over [L, 1] and the cache of the prefix.
        Implements: Eq. (3)"""
        output, cache = self.trunk.prefill(tokens, valid)
        return self.return_to_go_head(output), cache

    def propose_action(self, tokens: Tensor, cache: KVCache) -> Gaussian:
        """The action for each return-to-go, given branches (return-to-go, state) after the prefix:
        [L, N, 2, E] -> Gaussian over [L, N, A].
        Implements: Eq. (4)"""
        return self.action_head(self.trunk.branch(tokens, cache))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class CostForecast:
    """The cost of the rest of the episode, for each constraint: today a point, [..., C]."""

    mean: Tensor


Risk = Callable[[CostForecast], Tensor]  # -> [..., C], what is held against the budget
expected_cost: Risk = attrgetter("mean")  # the paper's


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

    def forecast(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """The cost-to-go of each candidate action after the prefix: [L, N, 1, E] -> [L, N, C]."""
        return self.head(self.trunk.branch(tokens, cache))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Prefix:
    """L prompts as both networks have read them; any number of candidates can follow."""

    actor: KVCache
    critic: Any  # a KVCache; None if the rule does not ask it
    return_to_go: Gaussian  # over [L, 1], model units
    state: Tensor  # [L, S], model units
    timestep: Tensor  # [L]
    remaining: Tensor  # [L, C] what forecasts are held against, raw units

    def of_lanes(self, lanes: Tensor) -> Self:
        others = self.return_to_go, self.state, self.timestep, self.remaining
        caches: Any = (each and each.of_lanes(lanes) for each in (self.actor, self.critic))
        return type(self)(*caches, *over_tensors(lambda part: part[lanes], others))


class SaFormer(nn.Module):
    """The two transformers of the paper's Figure 1. All but a `Prefix` is in raw units."""

    def __init__(self, dimensions: Dimensions, config: TrunkConfig) -> None:
        super().__init__()
        self.dimensions = dimensions
        self.normalizer = Normalizer(dimensions)
        self.actor = Actor(dimensions, config)
        self.critic = CostCritic(dimensions, config)
        self.register_buffer("action_low", torch.full((dimensions.action,), -torch.inf))
        self.register_buffer("action_high", torch.full((dimensions.action,), torch.inf))

    def prefill(self, prompt: Prompt, both: Callable[..., Any] | None = None) -> Prefix:
        """Read each lane's past once, by both networks, which a GPU may do at once."""
        both = both or (lambda first, second: (first(), second()))
        past = self.normalizer.window(prompt.past)
        state = self.normalizer.normalize("state", prompt.state)
        cost_to_go = self.normalizer.normalize("cost_to_go", prompt.cost_to_go)
        present = {"limit": past.limit, "cost_to_go": cost_to_go, "state": state}

        def tokens(network: Actor | CostCritic, until: str) -> tuple[Tensor, Tensor]:
            embed, layout = network.embedding.embed, network.embedding.layout
            now = {kind: present[kind][:, None] for kind in layout.before(until)}
            whole = embed(past.tokens(layout.kinds), past.timestep)
            steps = torch.cat([whole, embed(now, prompt.timestep[:, None])], dim=1)
            valid = past.valid.repeat_interleave(len(layout), dim=1)
            return steps, torch.cat([valid, valid.new_ones(len(valid), len(now))], dim=1)

        (_, critic), (return_to_go, actor) = both(
            lambda: self.critic.trunk.prefill(*tokens(self.critic, until="action")),
            lambda: self.actor.expect_return(*tokens(self.actor, until="return_to_go")),
        )
        remaining = prompt.cost_to_go if prompt.remaining is None else prompt.remaining
        return Prefix(actor, critic, return_to_go, state, prompt.timestep, remaining)

    def sample_returns(self, prefix: Prefix, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Returns `noise` [L, N] deviations off: [L, N, 1] and their log-density [L, N]."""
        mean, log_deviation = prefix.return_to_go.mean, prefix.return_to_go.log_deviation
        expected = Gaussian(mean[:, None], log_deviation[:, None])
        sampled = expected.at(noise[..., None])
        return self.normalizer.restore("return_to_go", sampled), expected.log_prob(sampled)

    def sample_actions(
        self, prefix: Prefix, return_to_go: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """An action for each return-to-go [L, N, 1], `noise` [L, N, A] deviations off, clamped to
        bounds: [L, N, A] and the log-density [L, N] of the action before the clamp."""
        wanted = self.normalizer.normalize("return_to_go", return_to_go)
        state = prefix.state[:, None].expand(-1, wanted.shape[1], -1)
        tokens = self._branches(self.actor, prefix, {"return_to_go": wanted, "state": state})
        proposal = self.actor.propose_action(tokens, prefix.actor)
        sampled = proposal.at(noise)
        action = self.normalizer.restore("action", sampled)
        action = action.clamp(self.get_buffer("action_low"), self.get_buffer("action_high"))
        return action, proposal.log_prob(sampled)

    def forecast(self, prefix: Prefix, action: Tensor) -> CostForecast:
        """What the rest of the episode will cost after each action [L, N, A]: [L, N, C]."""
        values = {"action": self.normalizer.normalize("action", action)}
        forecast = self.critic.forecast(self._branches(self.critic, prefix, values), prefix.critic)
        return CostForecast(self.normalizer.restore("cost_to_go", forecast))

    def _branches(self, network: Any, prefix: Prefix, values: dict[str, Tensor]) -> Tensor:
        """The tokens of N candidates per lane: {kind: [L, N, _]} -> [L, N, kinds, E]."""
        shape = next(iter(values.values())).shape[:2]
        tokens: Tensor = network.embedding.embed(values, prefix.timestep[:, None].expand(shape))
        return tokens.reshape(*shape, len(values), -1)
