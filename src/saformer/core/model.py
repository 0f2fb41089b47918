"""Actor, critic and the units they speak, as one module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from saformer.core.actor import ACTOR_LAYOUT, Actor
from saformer.core.batch import Dimensions
from saformer.core.critic import CRITIC_LAYOUT, CostCritic, CostForecast
from saformer.core.gaussian import Gaussian
from saformer.core.history import Prompt
from saformer.core.normalizer import Normalizer
from saformer.core.transformer import KVCache, TrunkConfig

Thunk = Callable[[], Any]


def in_turn(first: Thunk, second: Thunk) -> tuple[Any, Any]:
    """The results of two independent computations, which a GPU may do at once."""
    return first(), second()


@dataclass(frozen=True)
class Prefix:
    """L prompts as both networks have read them; any number of candidates can follow."""

    return_to_go: Gaussian
    """over [L, 1], model units"""
    actor: KVCache
    critic: KVCache
    state: Tensor
    """[L, S], model units"""
    timestep: Tensor
    """[L]"""
    remaining: Tensor
    """[L, C] what forecasts are held against, raw units"""

    def of_lanes(self, lanes: Tensor) -> Prefix:
        return_to_go = Gaussian(
            self.return_to_go.mean[lanes], self.return_to_go.log_deviation[lanes]
        )
        caches = self.actor.of_lanes(lanes), self.critic.of_lanes(lanes)
        return Prefix(
            return_to_go, *caches, self.state[lanes], self.timestep[lanes], self.remaining[lanes]
        )


class SaFormer(nn.Module):
    """The two transformers of the paper's Figure 1. Raw units in, raw units out, except inside a
    `Prefix`."""

    def __init__(self, dimensions: Dimensions, config: TrunkConfig) -> None:
        super().__init__()
        self.dimensions = dimensions
        self.normalizer = Normalizer(dimensions)
        self.actor = Actor(dimensions, config)
        self.critic = CostCritic(dimensions, config)
        self.register_buffer("action_low", torch.full((dimensions.action,), -torch.inf))
        self.register_buffer("action_high", torch.full((dimensions.action,), torch.inf))

    def prefill(self, prompt: Prompt, both: Callable[..., tuple[Any, Any]] = in_turn) -> Prefix:
        """Read each lane's past once, by both networks."""
        past = self.normalizer.window(prompt.past)
        state = self.normalizer.normalize("state", prompt.state)
        cost_to_go = self.normalizer.normalize("cost_to_go", prompt.cost_to_go)
        present = {"limit": past.limit, "cost_to_go": cost_to_go, "state": state}

        def tokens(network: Actor | CostCritic, until: tuple[str, ...]) -> tuple[Tensor, Tensor]:
            embed, kinds = network.embedding.embed, network.embedding.layout.kinds
            now = {kind: present[kind][:, None] for kind in until}
            steps = embed(past.tokens(kinds), past.timestep), embed(now, prompt.timestep[:, None])
            valid = past.valid.repeat_interleave(len(kinds), dim=1)
            valid = torch.cat([valid, valid.new_ones(len(valid), len(until))], dim=1)
            return torch.cat(steps, dim=1), valid

        critic, (return_to_go, actor) = both(
            lambda: self.critic.prefill(*tokens(self.critic, CRITIC_LAYOUT.before("action"))),
            lambda: self.actor.expect_return(
                *tokens(self.actor, ACTOR_LAYOUT.before("return_to_go"))
            ),
        )
        remaining = prompt.cost_to_go if prompt.remaining is None else prompt.remaining
        return Prefix(return_to_go, actor, critic, state, prompt.timestep, remaining)

    def sample_returns(self, prefix: Prefix, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Returns-to-go `noise` [L, N] deviations from the expected: [L, N, 1] and their
        log-density [L, N]."""
        mean, log_deviation = prefix.return_to_go.mean, prefix.return_to_go.log_deviation
        expected = Gaussian(mean[:, None], log_deviation[:, None])
        sampled = expected.at(noise[..., None])
        return self.normalizer.restore("return_to_go", sampled), expected.log_prob(sampled)

    def sample_actions(
        self, prefix: Prefix, return_to_go: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """An action for each return-to-go [L, N, 1], `noise` [L, N, A] deviations from its mean,
        clamped to bounds: [L, N, A] and the log-density [L, N] of the action before the clamp."""
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

    def _branches(
        self, network: Actor | CostCritic, prefix: Prefix, values: dict[str, Tensor]
    ) -> Tensor:
        """Embed the tokens of N candidates per lane: {kind: [L, N, _]} -> [L, N, len(values), E]."""
        num_candidates = next(iter(values.values())).shape[1]
        timestep = prefix.timestep[:, None].expand(-1, num_candidates)
        tokens = network.embedding.embed(values, timestep)
        return tokens.reshape(len(tokens), num_candidates, len(values), -1)
