"""CPQ: a cost critic that calls unfamiliar actions unsafe, and a reward critic that counts on safe
ones alone.

Xu et al. 2022, "Constraints Penalized Q-learning"; docs/agents/cpq.md says where we leave it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saformer.agents.actors import SquashedActor
from saformer.agents.agent import ActsOneWay, MovingAverage, Phase
from saformer.agents.costs import CountsCosts, StepCost, cost_critic, reward_critic
from saformer.agents.markov import MarkovOptions, MarkovPolicy
from saformer.agents.parts import ConditionalVAE, follow, of_each, target_of, watched
from saformer.agents.targets import limit_at, td_target
from saformer.agents.units import Timed, Units, check_limit, fresh
from saformer.core.batch import Dimensions
from saformer.core.objectives import PerSample
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import dimensions_of
from saformer.data.transitions import TransitionBatch, TransitionSampler

HUNDRED_STEPS = 100
"""As many count at gamma_c = 0.99, where alpha was chosen."""


@dataclass(frozen=True)
class CPQConfig:
    """What is learnt. The defaults are the paper's Table 6; what it leaves open is noted in
    docs/agents/cpq.md."""

    limit: tuple[float, ...] = ()
    """What an episode may cost, for each constraint: this agent is trained for one limit."""
    cost_discount: float = 1.0
    """gamma_c: how much less a cost counts with every step of the episode; 1 counts all alike, up
    to the horizon."""
    discount: float = 0.99
    """gamma, of rewards."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of every network's hidden layers."""
    dropout: float = 0.1
    """Share of activations that critics and actor drop while training."""
    average_rate: float = 0.05
    """tau: how fast target networks follow."""
    penalty: float = 5.0
    """alpha: weight of the penalty on unfamiliar actions that do not look costly, in units of a
    step's cost if a hundred steps count, and in proportion if more or fewer do."""
    kl_weight: float = 1.5
    """beta: weight of the code's divergence in the VAE."""
    vae_deviation: float = 0.1
    """Deviation of the VAE's decoder, in half ranges: finer differences between actions do not
    count."""
    familiar: float = 0.95
    """Share of the data's own actions that count as familiar: the rest sets the threshold for all
    others."""
    margin: float = 0.1
    """How much costlier than the limit an unfamiliar action is to look, in limits; the future of
    others that are above the limit by up to half of it still counts."""
    candidates: int = 10
    """Actions examined in each state: half of them the policy's, half drawn evenly."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit", tuple(self.limit))  # JSON has no tuples
        object.__setattr__(self, "hidden", tuple(self.hidden))
        for name in ("cost_discount", "discount"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in (0, 1], got {getattr(self, name)}")
        if not 0 < self.familiar < 1:
            raise ValueError(f"familiar must lie in (0, 1), got {self.familiar}")
        if self.candidates < 2:
            raise ValueError(
                f"candidates must be at least 2, one of each kind, got {self.candidates}"
            )


class CPQ(CountsCosts):
    """All networks of the agent. States and actions are in model units, values in units of a
    typical step.

    What follows a step costs as one of two critics says. `cost` is penalised where actions are
    unfamiliar. What it is taught follows from `honest`, which no penalty ever touched: what spills
    over from unfamiliar actions to their neighbours would add up over the horizon.
    """

    def __init__(self, dimensions: Dimensions, config: CPQConfig) -> None:
        super().__init__()
        state, action, hidden, dropout = (
            dimensions.state,
            dimensions.action,
            config.hidden,
            config.dropout,
        )
        self.config, self.horizon = config, dimensions.horizon
        self.units = Units(dimensions)
        self.timed = Timed(dimensions, finite=config.cost_discount == 1)
        self.vae = ConditionalVAE(state, action, hidden, deviation=config.vae_deviation)
        self.actor = SquashedActor(self.timed.size, action, hidden, dropout=dropout)
        self.reward = reward_critic(dimensions, config)
        self.step_cost = StepCost(dimensions, hidden)
        self.honest, self.cost = (cost_critic(dimensions, self.timed, config) for _ in range(2))
        self.reward_target = target_of(self.reward)
        self.honest_target, self.cost_target = target_of(self.honest), target_of(self.cost)

    def allowed(self, timestep: Tensor) -> Tensor:
        """[..., C] what the cost critic may say at these steps."""
        limit = self.units.get_buffer("limit")
        return limit_at(limit, timestep, discount=self.config.cost_discount, horizon=self.horizon)

    def drawn(self, timed: Tensor) -> Tensor:
        """Actions [..., A] of the present policy, in states with their time beside them."""
        return self.actor(timed).drawn()

    @torch.no_grad()
    def threshold(self, batch: TransitionBatch) -> Tensor:
        """[] how strange a familiar action is at most: as the data's own are, but for its strangest
        few."""
        strangeness = self.vae.strangeness(batch.state, batch.action, self.config.kl_weight)
        num_strange = max(1, round((1 - self.config.familiar) * len(strangeness)))
        return strangeness.topk(num_strange).values[-1]

    @torch.no_grad()
    def is_strange(self, state: Tensor, action: Tensor, threshold: Tensor) -> Tensor:
        """[...] whether actions [..., A] are stranger than this."""
        return self.vae.strangeness(state, action, self.config.kl_weight) > threshold

    @torch.no_grad()
    def foreseen(self, state: Tensor, timestep: Tensor, threshold: Tensor) -> Tensor:
        """[B, A] actions of the policy or, where those are stranger than this, of the data.

        What is said of strange ones is a guess: whoever counted on it would add its error up, step
        by step.
        """
        drawn = self.drawn(self.timed(state, timestep))
        usual = self.vae.decode(state, torch.randn_like(state[:, :1].expand(-1, self.vae.code)))
        return torch.where(self.is_strange(state, drawn, threshold)[:, None], usual, drawn)

    @torch.no_grad()
    def expected(self, state: Tensor, timestep: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
        """Of the foreseen action: reward to come [B, 1], the lower of two; and whether one may
        count on it [B, 1].

        One may if, by the higher of two costs, it is nearly safe: up to half of the margin by which
        unfamiliar actions look unsafe. A policy that is drawn to its limit is above it half of the
        time: to cut off its future there would leave its actor nothing to look forward to.
        """
        action = self.foreseen(state, timestep, threshold)
        nearly = self.allowed(timestep) + 0.5 * self.config.margin * self.units.get_buffer("limit")
        safe = (self.all_cost(self.cost_target, state, timestep, action).amax(0) <= nearly).all(-1)
        return self.reward_target(state, action).amin(0), safe[:, None]

    @torch.no_grad()
    def expected_cost(self, state: Tensor, timestep: Tensor, threshold: Tensor) -> Tensor:
        """[B, C] costs to come of the foreseen action."""
        action = self.foreseen(state, timestep, threshold)
        return self.all_cost(self.honest_target, state, timestep, action).mean(0).clamp(min=0)

    @torch.no_grad()
    def examined(
        self, batch: TransitionBatch, timed: Tensor, threshold: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Actions [B, N, A] of the policy and, as many, drawn evenly; which of them [B, N] are
        stranger than this."""
        half = self.config.candidates // 2
        state, timed = (
            batch.state[:, None].expand(-1, 2 * half, -1),
            timed[:, None].expand(-1, half, -1),
        )
        evenly = 2 * torch.rand_like(batch.action[:, None].expand(-1, half, -1)) - 1
        action = torch.cat([self.drawn(timed), evenly], dim=1)
        return action, self.is_strange(state, action, threshold)


class CPQAgent(ActsOneWay):
    """Constraints-penalised Q-learning for a limit on the cost of an episode."""

    name = "cpq"
    num_models = 1

    def __init__(self, dimensions: Dimensions, config: CPQConfig) -> None:
        check_limit(config.limit, dimensions.constraints)
        self.dimensions = dimensions
        self.config = config
        self.model = CPQ(dimensions, config)

    @classmethod
    def create(cls, data: RelabelledStore, config: CPQConfig, *, seed: int) -> CPQAgent:
        """A fresh agent for this data: initialised by the seed, its units fixed by the data's
        statistics."""
        agent = fresh(lambda: cls(dimensions_of(data), config), data, config, seed=seed)
        model = agent.model
        for critic in (model.honest, model.honest_target, model.cost, model.cost_target):
            critic.begin_at(model.units.mean_cost_to_go(data))
        return agent

    def sampler(
        self, data: RelabelledStore, device: torch.device | str = "cpu"
    ) -> TransitionSampler:
        """Single steps."""
        return TransitionSampler(data, device=device)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What the data does, what actions earn, what they cost, and which to take."""
        model = self.model
        costs = tuple(
            p for part in (model.step_cost, model.honest, model.cost) for p in part.parameters()
        )
        return (
            Phase("vae", tuple(model.vae.parameters()), self.vae_terms),
            Phase("reward_critic", tuple(model.reward.parameters()), self.reward_terms),
            Phase("cost_critic", costs, self.cost_terms),
            Phase("actor", tuple(model.actor.parameters()), self.actor_terms),
        )

    @property
    def averages(self) -> tuple[MovingAverage, ...]:
        """Target networks."""
        model, rate = self.model, self.config.average_rate
        return (
            follow(model.reward_target, model.reward, rate),
            follow(model.honest_target, model.honest, rate),
            follow(model.cost_target, model.cost, rate),
        )

    def vae_terms(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """The actions of the data."""
        batch = self.model.units.transitions(batch)
        return self.model.vae.terms(batch.state, batch.action, self.config.kl_weight)

    def reward_terms(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """Only what follows safely, or nearly so, counts."""
        model, batch = self.model, self.model.units.transitions(batch)
        reward, counts = model.expected(
            batch.next_state, batch.timestep + 1, model.threshold(batch)
        )
        following = torch.where(counts, reward, 0.0)
        discount, horizon = self.config.discount, self.dimensions.horizon
        target = td_target(batch.reward, following, batch, discount=discount, horizon=horizon)
        return {"error": model.reward.error(model.reward(batch.state, batch.action), target)}

    def cost_terms(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """What steps and the policy cost; unfamiliar actions are to look costlier than the limit
        and the data's."""
        model, batch = self.model, self.model.units.transitions(batch)
        threshold, after = model.threshold(batch), model.timed(batch.state, batch.timestep + 1)
        cost = model.expected_cost(batch.next_state, batch.timestep + 1, threshold)
        discount, horizon = self.config.cost_discount, self.dimensions.horizon
        follows = td_target(torch.zeros_like(cost), cost, batch, discount=discount, horizon=horizon)
        others, strange = model.examined(batch, model.timed(batch.state, batch.timestep), threshold)
        action = torch.cat([batch.action[:, None], others], dim=1)
        own = model.step_cost(
            batch.state[:, None].expand(-1, action.shape[1], -1), action
        )  # [B, 1 + N, C]
        said = model.cost(
            after[:, None].expand(-1, action.shape[1], -1), action
        )  # [2, B, 1 + N, C]
        familiar, looks = (own.detach() + said).split([1, action.shape[1] - 1], dim=2)
        unsafe = model.allowed(batch.timestep) + self.config.margin * model.units.get_buffer(
            "limit"
        )
        floor = torch.maximum(unsafe, familiar[:, :, 0].detach().mean(0))
        shortfall = ((floor[:, None] - looks).clamp(min=0) / model.cost.scale).sum(
            (0, -1)
        ) / HUNDRED_STEPS  # [B, N]
        penalty = torch.where(strange, shortfall, 0.0).mean(1)
        return {
            "step_error": of_each((own[:, 0] - batch.cost).square().sum(-1)),
            "honest_error": model.honest.error(model.honest(after, batch.action), follows),
            "error": model.cost.error(said[:, :, 0], follows),
            "penalty": of_each(self.config.penalty * penalty),
            "unfamiliar": watched(strange.float().mean()),
        }

    def actor_terms(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """The most reward where the action is safe; where it is not, back to safety.

        What familiar actions cost is asked of the honest critic: the other one's slope leads back
        from strange ones.
        """
        model, batch = self.model, self.model.units.transitions(batch)
        timed = model.timed(batch.state, batch.timestep)
        action = model.drawn(timed)
        strange = model.is_strange(batch.state, action, model.threshold(batch))
        after = model.timed(batch.state, batch.timestep + 1)
        follows = torch.where(
            strange[:, None], model.cost(after, action).amax(0), model.honest(after, action).amax(0)
        )
        cost = model.step_cost(batch.state, action) + follows  # [B, C]
        # in the reward's scale: a step's cost weighs as much as a step's reward, however many steps
        # a critic counts
        overrun = (cost - model.allowed(batch.timestep)).clamp(min=0).sum(-1) / model.reward.scale
        reward = model.reward(batch.state, action).amin(0)[:, 0] / model.reward.scale
        safe = overrun.detach() == 0
        return {
            "reward": of_each(torch.where(safe, -reward, 0.0)),
            "overrun": of_each(overrun),
            "safe": watched(safe.float()),
        } | self._expected(batch)

    def policy(self, options: MarkovOptions | None = None) -> MarkovPolicy:
        """The middle of the actor's distribution."""
        options = options or self.default_options
        model = self.model.eval()

        def choose(state: Tensor, timestep: Tensor, _: torch.Generator) -> Tensor:
            return model.units.raw_action(
                model.actor(model.timed(model.units.state(state), timestep)).middle
            )

        device = model.units.get_buffer("limit").device
        return MarkovPolicy(
            choose,
            self.dimensions,
            limit=self.config.limit,
            cost_discount=self.config.cost_discount,
            seed=options.seed,
            device=device,
        )

    @property
    def default_options(self) -> MarkovOptions:
        """How to act unless told otherwise."""
        return MarkovOptions()

    def _expected(self, batch: TransitionBatch) -> dict[str, PerSample]:
        """What whole episodes are expected to cost, in raw units, to be watched."""
        start, model = torch.zeros_like(batch.timestep), self.model
        raw = model.units.raw_cost(
            model.expected_cost(batch.initial_state, start, model.threshold(batch))
        )
        return {f"expected_cost_{i}": watched(raw[:, i]) for i in range(raw.shape[1])}
