"""SaFormer while it is fine-tuned: the same networks, with a least entropy of the actions."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from saformer.agents.agent import Agent, Phase
from saformer.agents.networks import EntropyConfig, EntropyWeight, entropy_terms
from saformer.agents.saformer import SaFormerAgent, SaFormerConfig, balanced
from saformer.core.batch import WindowBatch
from saformer.core.execution import SaFormerPolicy
from saformer.core.model import SaFormer
from saformer.core.objectives import PerSample, actor_nll
from saformer.core.rules import ProposalOptions
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import WindowSampler
from saformer.data.sources.source import Progress


class FineTunedModel(nn.Module):
    """SaFormer's networks and the temperature."""

    def __init__(self, saformer: SaFormer, initial_temperature: float) -> None:
        super().__init__()
        self.saformer = saformer
        self.temperature = EntropyWeight(initial_temperature)


class FineTunedAgent(Agent):
    """A trained SaFormer that goes on learning, under the entropy constraint. It acts as SaFormer
    does, in the units of the agent it came from."""

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
        return self._agent.sampler(data, device)

    def options(self, *, shielded: bool = False) -> ProposalOptions:
        return self._agent.options(shielded=shielded)

    def mean_options(self, options: ProposalOptions | None = None) -> ProposalOptions:
        return self._agent.mean_options(options)

    def policy(self, options: ProposalOptions | None = None) -> SaFormerPolicy:
        """Algorithm 1 with what has been learnt so far."""
        return self._agent.policy(options)

    def finish(self, data: RelabelledStore, progress: Progress | None = None) -> None:
        self._agent.finish(data, progress)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Actor and critic as in training, and the temperature; none moves another's parameters."""
        model, rate = self.model, self._entropy.temperature_rate
        temperature = tuple(model.temperature.parameters())
        return (
            Phase("actor", tuple(model.saformer.actor.parameters()), self.actor_terms),
            Phase("critic", tuple(model.saformer.critic.parameters()), self.critic_terms),
            Phase("temperature", temperature, self.temperature_terms, rate, weight_decay=0.0),
        )

    def actor_terms(self, batch: WindowBatch) -> dict[str, PerSample]:
        """Eq. 5 and the entropy at the present temperature: Eq. 8, in model units."""
        batch = self.model.saformer.normalizer.window(batch)
        predictions = self.model.saformer.actor(batch)
        weight, target = self.model.temperature, self._entropy.target_entropy
        bonus, _ = entropy_terms(weight, predictions.action, batch.valid, target)
        return balanced(actor_nll(predictions, batch), self.config.to_go_weight) | bonus

    def critic_terms(self, batch: WindowBatch) -> dict[str, PerSample]:
        """Eq. 7, in model units."""
        return self._agent.with_model(self.model.saformer).critic_terms(batch)

    def temperature_terms(self, batch: WindowBatch) -> dict[str, PerSample]:
        """The dual of Eq. 8: raises the temperature while the entropy is too low."""
        batch = self.model.saformer.normalizer.window(batch)
        with torch.no_grad():
            action = self.model.saformer.actor(batch).action
        weight, target = self.model.temperature, self._entropy.target_entropy
        return entropy_terms(weight, action, batch.valid, target)[1]


NETWORKS = "saformer."


def taken_apart(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """SaFormer's own weights, by the names that any run has them under, and the temperature."""
    networks = {name for name in weights if name.startswith(NETWORKS)}
    own = {name.removeprefix(NETWORKS): weights[name] for name in weights if name in networks}
    return own, {name: value for name, value in weights.items() if name not in networks}


def put_together(
    networks: Mapping[str, Tensor], temperature: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The weights of a `FineTunedModel`."""
    return {**{f"{NETWORKS}{name}": value for name, value in networks.items()}, **temperature}
