"""SaFormer while it is fine-tuned: the same two networks, and an actor whose actions must keep some
entropy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from saformer.agents.agent import Agent, Phase
from saformer.agents.networks import EntropyWeight, entropy_terms
from saformer.agents.saformer import SaFormerAgent, SaFormerConfig
from saformer.core.batch import WindowBatch
from saformer.core.execution import SaFormerPolicy
from saformer.core.model import SaFormer
from saformer.core.objectives import PerSample, action_entropy, actor_nll, critic_loss
from saformer.core.rules import ProposalOptions
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import WindowSampler


@dataclass(frozen=True)
class EntropyConfig:
    """The constraint of Eq. 8."""

    target_entropy: float | None = None
    """beta: least entropy of the action, summed over its dimensions, in model units; by default
    minus their number."""
    initial_temperature: float = 0.1
    """Weight of the entropy at first; it rises while the entropy is too low and falls otherwise."""
    temperature_rate: float = 1e-4
    """Learning rate of that weight."""

    def __post_init__(self) -> None:
        for name in ("initial_temperature", "temperature_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")


class FineTunedModel(nn.Module):
    """SaFormer's networks and the temperature."""

    def __init__(self, saformer: SaFormer, initial_temperature: float) -> None:
        super().__init__()
        self.saformer = saformer
        self.temperature = EntropyWeight(initial_temperature)


class FineTunedAgent(Agent):
    """A trained SaFormer that goes on learning, under the entropy constraint. Acts as SaFormer
    does.

    Units are those of the agent it came from: the normaliser's statistics stay as they were.
    """

    name = "saformer"
    config: SaFormerConfig
    model: FineTunedModel

    def __init__(self, agent: SaFormerAgent, entropy: EntropyConfig) -> None:
        super().__init__(agent.dimensions, agent.config)
        self._agent, self._entropy = agent, entropy
        device = agent.model.get_buffer("action_low").device
        self.model = FineTunedModel(agent.model, entropy.initial_temperature).to(device)

    def fix_units(self, data: RelabelledStore) -> None:
        raise TypeError("a fine-tuned agent has the units of the agent that it came from")

    def sampler(self, data: RelabelledStore, device: torch.device | str = "cpu") -> WindowSampler:
        """Windows of K steps."""
        return self._agent.sampler(data, device)

    def options(self, *, shielded: bool = False) -> ProposalOptions:
        return self._agent.options(shielded=shielded)

    def mean_options(self, options: ProposalOptions | None = None) -> ProposalOptions:
        return self._agent.mean_options(options)

    def policy(self, options: ProposalOptions | None = None) -> SaFormerPolicy:
        """Algorithm 1 with what has been learnt so far."""
        return self._agent.policy(options)

    def finish(self, data: RelabelledStore) -> None:
        self._agent.finish(data)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Actor and critic as in training, and the temperature; none moves another's parameters."""
        model, rate = self.model, self._entropy.temperature_rate
        temperature = tuple(model.temperature.parameters())
        return (
            Phase("actor", tuple(model.saformer.actor.parameters()), self.actor_terms),
            Phase("critic", tuple(model.saformer.critic.parameters()), self.critic_terms),
            Phase(
                "temperature",
                temperature,
                self.temperature_terms,
                learning_rate=rate,
                weight_decay=0.0,
            ),
        )

    def actor_terms(self, batch: WindowBatch) -> dict[str, PerSample]:
        """Eq. 5 and the entropy at the present temperature: Eq. 8, in model units."""
        batch = self.model.saformer.normalizer.window(batch)
        predictions = self.model.saformer.actor(batch)
        entropy = action_entropy(predictions.action, batch.valid)
        bonus, _ = entropy_terms(self.model.temperature, entropy, self._target)
        return {
            **actor_nll(predictions, batch),
            "entropy_bonus": bonus,
            "entropy": replace(entropy, watched=True),
        }

    def critic_terms(self, batch: WindowBatch) -> dict[str, PerSample]:
        """Eq. 7, in model units."""
        batch = self.model.saformer.normalizer.window(batch)
        forecast = self.model.saformer.critic(batch)
        return critic_loss(forecast, batch.cost_to_go, batch.valid, penalty=self.config.penalty)

    def temperature_terms(self, batch: WindowBatch) -> dict[str, PerSample]:
        """The dual of Eq. 8: its minimisation raises the temperature while the entropy is too
        low."""
        batch = self.model.saformer.normalizer.window(batch)
        with torch.no_grad():
            entropy = action_entropy(self.model.saformer.actor(batch).action, batch.valid)
        temperature = self.model.temperature(entropy.sums).exp()
        return {
            "dual": entropy_terms(self.model.temperature, entropy, self._target)[1],
            "temperature": PerSample(temperature, torch.ones_like(temperature), watched=True),
        }

    @property
    def _target(self) -> float:
        wanted = self._entropy.target_entropy
        return -float(self.dimensions.action) if wanted is None else wanted


NETWORKS = "saformer."


def taken_apart(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """SaFormer's own weights, by the names that any run has them under, and the temperature."""
    networks = {
        name.removeprefix(NETWORKS): value
        for name, value in weights.items()
        if name.startswith(NETWORKS)
    }
    return networks, {
        name: value for name, value in weights.items() if not name.startswith(NETWORKS)
    }


def put_together(
    networks: Mapping[str, Tensor], temperature: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The weights of a `FineTunedModel`."""
    return {**{f"{NETWORKS}{name}": value for name, value in networks.items()}, **temperature}
