"""What CAPS and BCRL share: values learnt in-sample as in IQL, the least cost among them, and a
policy that is told what remains of its budget.

Kostrikov, Nair, Levine 2022, "Offline Reinforcement Learning with Implicit Q-Learning": V is an
expectile of Q over the data's own actions, Q is regressed on V of where they led, and no action is
asked about that nobody took. Of rewards the expectile is high, of costs low.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from saformer.agents.agent import MovingAverage, Phase
from saformer.agents.lanes import LanePolicy
from saformer.agents.markov import (
    MarkovAgent,
    MarkovConfig,
    MarkovModel,
    MarkovOptions,
    steps_that_count,
    td_target,
)
from saformer.agents.networks import EnsembleCritic, target_of, watched_each
from saformer.core.batch import Dimensions
from saformer.core.objectives import PerSample
from saformer.core.policy import Decision
from saformer.data.transitions import TransitionBatch

HIGHEST_WEIGHT = 100.0  # of a step of the data in what actors imitate, as in IQL


@dataclass(frozen=True)
class IQLConfig(MarkovConfig):
    """What is learnt by an agent of in-sample values."""

    discount: float = 0.99
    """gamma, of rewards."""
    average_rate: float = 0.005
    """tau: how fast target networks follow."""
    expectile: float = 0.7
    """Of what the data earned from a state, which is taken for the best; of what it cost, the least
    lies as far from the other end."""
    sharpness: float = 3.0
    """beta: how much more an action is imitated for each typical step's worth it is better."""
    components: int = 1
    """Gaussians in an actor's mixture."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.5 <= self.expectile < 1 or not self.sharpness > 0 or self.components < 1:
            given = f"{self.expectile}, {self.sharpness}, {self.components}"
            rule = "expectile lies in [0.5, 1), sharpness above 0, components are at least 1"
            raise ValueError(f"{rule}; got {given}")


class IQLModel(MarkovModel):
    """Values of rewards, which may see more than state and time, and of the least costs."""

    def __init__(self, dimensions: Dimensions, config: IQLConfig, more_inputs: int = 0) -> None:
        super().__init__(dimensions, config)
        state, action, costs = self.timed_size, dimensions.action, dimensions.constraints
        self.reward_scale = steps_that_count(config.discount, dimensions.horizon)
        self.cost_scale = steps_that_count(config.cost_discount, dimensions.horizon)
        of_reward, of_cost = (
            partial(EnsembleCritic, dropout=config.dropout, scale=scale, finite=self.finite)
            for scale in (self.reward_scale, self.cost_scale)
        )
        hidden, seen = config.hidden, state + more_inputs
        self.critic = of_reward((seen + action, hidden, 1))
        self.value = of_reward((seen, hidden, 1), members=1)
        self.cost_critic = of_cost((state + action, hidden, costs))
        self.cost_value = of_cost((state, hidden, costs), members=1)
        self.critic_target = target_of(self.critic)
        self.cost_critic_target = target_of(self.cost_critic)

    def least_cost(self, timed: Tensor, action: Tensor) -> Tensor:
        """[..., C] of the rest of an episode after an action, at least nothing: the dearer of two
        estimates, from the present step on."""
        return self.cost_critic_target(timed, action).amax(0).clamp(min=0)


class IQLAgent(MarkovAgent):
    """Takes any budget as it acts."""

    config: IQLConfig
    model: IQLModel

    @property
    def averages(self) -> tuple[MovingAverage, ...]:
        model, rate = self.model, self.config.average_rate
        pairs = (model.critic_target, model.critic), (model.cost_critic_target, model.cost_critic)
        return tuple(
            MovingAverage(tuple(target.parameters()), tuple(own.parameters()), rate)
            for target, own in pairs
        )

    @property
    def cost_phase(self) -> Phase:
        """Of the least cost: both values at once."""
        parameters = (*self.model.cost_critic.parameters(), *self.model.cost_value.parameters())
        return Phase("least_cost", parameters, self.cost_loss)

    def cost_loss(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """(Q_c(s, a) - c - gamma_c V_c(s'))^2, and the low expectile of Q_c for V_c."""
        model, batch = self.model, self.model.units.transitions(batch)
        timed, following = self.timed_pair(batch)
        with torch.no_grad():
            next_cost = model.cost_value(following, nothing(following))[0].clamp(min=0)
            least = model.cost_critic_target(timed, batch.action).amax(0)
            initial = model.timed(batch.initial_state, torch.zeros_like(batch.timestep))
            whole = model.units.raw_cost(model.cost_value(initial, nothing(initial))[0])
        discount, horizon = self.config.cost_discount, self.dimensions.horizon
        target = td_target(batch.cost, next_cost, batch, discount, horizon)
        value = model.cost_value(timed, nothing(timed))[0]
        low = expectile_loss((least - value) / model.cost_scale, 1 - self.config.expectile)
        return {
            "error": model.cost_critic.error(model.cost_critic(timed, batch.action), target),
            "expectile": PerSample(low.sum(-1)),
        } | watched_each({"expected_cost": whole})

    def timed_pair(self, batch: TransitionBatch) -> tuple[Tensor, Tensor]:
        """States of a batch and where they led, as networks see them."""
        model = self.model
        now = model.timed(batch.state, batch.timestep)
        return now, model.timed(batch.next_state, batch.timestep + 1)

    def imitation(self, log_prob: Tensor, advantage: Tensor) -> Tensor:
        """[...] -exp(beta A) log pi: actions of the data, the better the more."""
        weight = torch.exp(self.config.sharpness * advantage.detach()).clamp(max=HIGHEST_WEIGHT)
        return -weight * log_prob

    @abstractmethod
    def choose_within(self, state: Tensor, timestep: Tensor, remaining: Tensor) -> Tensor:
        """States [l, S], timesteps [l], what remains of budgets [l, C], counted from now on ->
        actions [l, A], all in model units."""

    def policy(self, options: MarkovOptions | None = None) -> BudgetPolicy:
        return BudgetPolicy(self, options or self.options())


class BudgetPolicy(LanePolicy):
    """Acts as the agent chooses within what remains."""

    def __init__(self, agent: IQLAgent, options: MarkovOptions) -> None:
        self._agent, self._units = agent, agent.model.eval().units
        device = self._units.get_buffer("cost").device
        super().__init__(agent.dimensions, agent.config.cost_discount, options.seed, device)

    def _decide(self, state: Tensor, account: Tensor, lanes: Tensor) -> Decision:
        constraints, timestep = self._dimensions.constraints, account[:, -1].long()
        remaining = account[:, :constraints] - account[:, constraints:-1]
        since = self.budget.cost_discount ** account[:, -1:]  # both count from the start
        remaining = remaining / since.clamp(min=1e-6) / self._units.get_buffer("cost")
        action = self._agent.choose_within(self._units.state(state), timestep, remaining)
        return Decision(self._units.raw_action(action))


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    """Squared differences, those above nothing weighed by the expectile, others by the rest."""
    return torch.where(difference > 0, expectile, 1 - expectile) * difference.square()


def nothing(timed: Tensor) -> Tensor:
    """No action, for values of states: [..., S] -> [..., 0]."""
    return timed[..., :0]
