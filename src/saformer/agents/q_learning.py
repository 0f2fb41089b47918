"""What BCQ-L and CPQ share: a VAE of the data's actions, critics of reward and cost, targets."""

from dataclasses import dataclass

from saformer.agents.agent import MovingAverage
from saformer.agents.markov import (
    LimitedAgent,
    LimitedConfig,
    MarkovModel,
    mean_cost_to_go,
    steps_that_count,
)
from saformer.agents.networks import ConditionalVAE, EnsembleCritic, target_of
from saformer.core.batch import Dimensions
from saformer.core.objectives import PerSample
from saformer.data.relabel import RelabelledStore
from saformer.data.transitions import TransitionBatch


@dataclass(frozen=True)
class QConfig(LimitedConfig):
    """What is learnt by an agent of critics."""

    discount: float = 0.99
    """gamma, of rewards."""
    average_rate: float = 0.05
    """tau: how fast target networks follow."""
    kl_weight: float = 1.0
    """Weight of the code's divergence in the VAE."""
    vae_deviation: float = 0.1
    """Deviation of the VAE's decoder, in half ranges of the action."""


class QModel(MarkovModel):
    """The networks of both. The target of a network `x` is called `x_target`."""

    def __init__(self, dimensions: Dimensions, config: QConfig) -> None:
        super().__init__(dimensions, config)
        sizes = (dimensions.state, dimensions.action, config.hidden)
        self.vae = ConditionalVAE(*sizes, deviation=config.vae_deviation)

    def add_critics(self, dimensions: Dimensions, config: QConfig, cost_members: int = 2) -> None:
        """Two of reward, so many of cost, and their targets."""
        num_inputs, hidden = dimensions.state + dimensions.action, config.hidden
        scale = steps_that_count(config.discount, self.horizon)
        cost_scale = steps_that_count(config.cost_discount, self.horizon)
        self.critic = EnsembleCritic((num_inputs, hidden, 1), config.dropout, scale=scale)
        sizes = (self.timed_size + dimensions.action, hidden, dimensions.constraints)
        self.cost_critic = EnsembleCritic(
            sizes, config.dropout, scale=cost_scale, finite=self.finite, members=cost_members
        )
        self.critic_target = target_of(self.critic)
        self.cost_critic_target = target_of(self.cost_critic)


class QAgent(LimitedAgent):
    """Learns values by temporal differences, and a model of the behaviour."""

    config: QConfig
    model: QModel

    def fix_units(self, data: RelabelledStore) -> None:
        super().fix_units(data)
        cost_to_go = mean_cost_to_go(data) / self.model.units.get_buffer("cost")
        for critic in (self.model.cost_critic, self.model.cost_critic_target):
            critic.begin_at(cost_to_go)

    @property
    def averages(self) -> tuple[MovingAverage, ...]:
        model, rate = self.model, self.config.average_rate
        networks = dict(model.named_children())
        return tuple(
            MovingAverage(tuple(target.parameters()), tuple(networks[name].parameters()), rate)
            for name in networks
            if (target := networks.get(f"{name}_target"))
        )

    def vae_loss(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """The behaviour: reconstruction, and the weighted divergence of the code."""
        batch = self.model.units.transitions(batch)
        return self.model.vae.terms(batch.state, batch.action, self.config.kl_weight)
