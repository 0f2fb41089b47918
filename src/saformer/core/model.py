"""Actor, critic and the units they speak, as one module: what a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saformer.core.actor import ACTOR_LAYOUT, Actor
from saformer.core.batch import Dimensions
from saformer.core.critic import CRITIC_LAYOUT, CostCritic, CostForecast
from saformer.core.gaussian import Gaussian
from saformer.core.history import Prompt
from saformer.core.normalizer import Normalizer
from saformer.core.recording import beside
from saformer.core.transformer import Memory, TrunkConfig


@dataclass(frozen=True)
class Reading:
    """What both networks keep of L prompts, so that any number of candidates can be read after
    them."""

    return_to_go: Gaussian
    """over [L, 1], model units"""
    actor: Memory
    critic: Memory
    state: Tensor
    """[L, S], model units"""
    timestep: Tensor
    """[L]"""
    remaining: Tensor
    """[L, C] what forecasts are held against, raw units"""

    def of_lanes(self, lanes: Tensor) -> Reading:
        """What was read on some of them."""
        return_to_go = Gaussian(
            self.return_to_go.mean[lanes], self.return_to_go.log_deviation[lanes]
        )
        memories = self.actor.of_lanes(lanes), self.critic.of_lanes(lanes)
        return Reading(
            return_to_go, *memories, self.state[lanes], self.timestep[lanes], self.remaining[lanes]
        )


class SaFormer(nn.Module):
    """The two transformers of the paper's Figure 1. Raw units in, raw units out, except inside a
    `Reading`."""

    def __init__(self, dimensions: Dimensions, config: TrunkConfig) -> None:
        super().__init__()
        self.dimensions = dimensions
        self.normalizer = Normalizer(dimensions)
        self.actor = Actor(dimensions, config)
        self.critic = CostCritic(dimensions, config)
        self.register_buffer("action_low", torch.full((dimensions.action,), -torch.inf))
        self.register_buffer("action_high", torch.full((dimensions.action,), torch.inf))

    def read(self, prompt: Prompt) -> Reading:
        """Read each lane's past once, for both networks."""
        past = self.normalizer.window(prompt.past)
        state = self.normalizer.normalize("state", prompt.state)
        cost_to_go = self.normalizer.normalize("cost_to_go", prompt.cost_to_go)
        present = {"limit": past.limit, "cost_to_go": cost_to_go, "state": state}

        def prefix(network: Actor | CostCritic, until: tuple[str, ...]) -> tuple[Tensor, Tensor]:
            embed, kinds = network.embedding.embed, network.embedding.layout.kinds
            now = {kind: present[kind][:, None] for kind in until}
            tokens = [
                embed(past.tokens(kinds), past.timestep),
                embed(now, prompt.timestep[:, None]),
            ]
            seen = past.valid.repeat_interleave(len(kinds), dim=1)
            return torch.cat(tokens, dim=1), torch.cat(
                [seen, seen.new_ones(len(seen), len(until))], dim=1
            )

        with beside(state.device) as wait_for_the_critic:
            critic = self.critic.read(*prefix(self.critic, CRITIC_LAYOUT.before("action")))
        return_to_go, actor = self.actor.expect_return(
            *prefix(self.actor, ACTOR_LAYOUT.before("return_to_go"))
        )
        wait_for_the_critic()
        return Reading(return_to_go, actor, critic, state, prompt.timestep, prompt.cost_to_go)

    def returns_to_go(self, reading: Reading, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Returns-to-go `noise` [L, N] deviations from the expected: [L, N, 1] and their
        log-density [L, N]."""
        expected = Gaussian(
            reading.return_to_go.mean[:, None], reading.return_to_go.log_deviation[:, None]
        )
        asked = expected.at(noise[..., None])
        return self.normalizer.restore("return_to_go", asked), expected.log_prob(asked)

    def actions(
        self, reading: Reading, return_to_go: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """An action for each return-to-go [L, N, 1], `noise` [L, N, A] deviations from its mean and
        within bounds.

        Returns [L, N, A] and the log-density [L, N] of the action before it was brought within
        bounds.
        """
        asked = self.normalizer.normalize("return_to_go", return_to_go)
        state = reading.state[:, None].expand(-1, asked.shape[1], -1)
        proposal = self.actor.propose_action(
            self._branches(self.actor, reading, {"return_to_go": asked, "state": state}),
            reading.actor,
        )
        chosen = proposal.at(noise)
        raw = self.normalizer.restore("action", chosen)
        return raw.clamp(
            self.get_buffer("action_low"), self.get_buffer("action_high")
        ), proposal.log_prob(chosen)

    def forecast(self, reading: Reading, action: Tensor) -> CostForecast:
        """What the rest of the episode will cost after each action [L, N, A]: [L, N, C]."""
        tokens = self._branches(
            self.critic, reading, {"action": self.normalizer.normalize("action", action)}
        )
        return CostForecast(
            self.normalizer.restore("cost_to_go", self.critic.forecast(tokens, reading.critic))
        )

    def _branches(
        self, network: Actor | CostCritic, reading: Reading, values: dict[str, Tensor]
    ) -> Tensor:
        """Embed the tokens of N candidates per lane: {kind: [L, N, _]} -> [L, N, len(values),
        E]."""
        num_candidates = next(iter(values.values())).shape[1]
        timestep = reading.timestep[:, None].expand(-1, num_candidates)
        tokens = network.embedding.embed(values, timestep)
        return tokens.reshape(len(tokens), num_candidates, len(values), -1)
