"""SaFormer: a budget-conditioned actor and a critic that forecasts cost, trained side by side."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from saformer.agents.agent import MovingAverage, Phase
from saformer.core.batch import Dimensions, WindowBatch
from saformer.core.execution import SaFormerPolicy
from saformer.core.model import SaFormer
from saformer.core.objectives import PerSample, actor_nll, critic_loss
from saformer.core.proposals import ActionNoise, ExecutionOptions, PastReturn
from saformer.core.transformer import TrunkConfig
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import WindowSampler, dimensions_of, statistics_of
from saformer.kernels.decisions import fastest
from saformer.reserve import Reserve


@dataclass(frozen=True)
class SaFormerConfig:
    """What is learnt. The defaults are the paper's Table 6: 1.46 M parameters for actor and critic
    together."""

    window: int = 20
    """K: steps that the networks look back over, the present one included."""
    penalty: float = 0.25
    """lambda: weight of the penalty on a forecast that rises (Eq. 7), in model units."""
    cost_discount: float = 1.0
    """gamma_c: how much less a cost counts with every step of the episode; 1 counts all alike."""
    candidates: int = 128
    """N: returns and actions proposed per decision, unless the policy is asked for another
    number."""
    temperature: float = 1.0
    """Spread of the proposals, in deviations, unless the policy is asked for another."""
    action_noise: ActionNoise = "normal"
    """normal: proposed actions are sampled as in the paper. two_point: one deviation above or below
    the mean."""
    past_return: PastReturn = "selected"
    """Which return-to-go enters the past when acting: the selected, the expected or the highest
    proposed one."""
    trunk: TrunkConfig = field(default_factory=TrunkConfig)
    """Size of each of the two transformers."""

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window must be at least 1 step, got {self.window}")
        if not 0 < self.cost_discount <= 1:
            raise ValueError(f"cost_discount must lie in (0, 1], got {self.cost_discount}")
        if self.penalty < 0:
            raise ValueError(f"penalty must be at least 0, got {self.penalty}")


class SaFormerAgent:
    """The paper's method.

    Its phases are the inner loop of Algorithm 2; `training.fit` owns the algorithm.
    """

    name = "saformer"
    num_models = 1
    averages: tuple[MovingAverage, ...] = ()

    def __init__(self, dimensions: Dimensions, config: SaFormerConfig) -> None:
        self.dimensions = dimensions
        self.config = config
        self.model = SaFormer(dimensions, config.trunk)
        self.reserve: Reserve | None = None

    @classmethod
    def create(cls, data: RelabelledStore, config: SaFormerConfig, *, seed: int) -> SaFormerAgent:
        """A fresh agent for this data: initialised by the seed, its units fixed by the data's
        statistics."""
        if data.cost_discount != config.cost_discount:
            raise ValueError(
                f"the data counts costs at {data.cost_discount}, the agent at "
                f"{config.cost_discount}"
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            agent = cls(dimensions_of(data), config)
        agent.model.normalizer.set_statistics(statistics_of(data))
        environment = data.store.environment
        agent.model.get_buffer("action_low").copy_(torch.tensor(environment.action_low))
        agent.model.get_buffer("action_high").copy_(torch.tensor(environment.action_high))
        return agent

    def sampler(self, data: RelabelledStore, device: torch.device | str = "cpu") -> WindowSampler:
        """Windows of K steps."""
        return WindowSampler(data, window=self.config.window, device=device)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Actor, then critic; neither sees the other's loss."""
        return (
            Phase("actor", tuple(self.model.actor.parameters()), self.actor_terms),
            Phase("critic", tuple(self.model.critic.parameters()), self.critic_terms),
        )

    def actor_terms(self, batch: WindowBatch) -> dict[str, PerSample]:
        """Eq. 5, in model units."""
        batch = self.model.normalizer.window(batch)
        return actor_nll(self.model.actor(batch), batch)

    def critic_terms(self, batch: WindowBatch) -> dict[str, PerSample]:
        """Eq. 7, in model units."""
        batch = self.model.normalizer.window(batch)
        forecast = self.model.critic(batch)
        return critic_loss(forecast, batch.cost_to_go, batch.valid, penalty=self.config.penalty)

    def policy(self, options: ExecutionOptions | None = None) -> SaFormerPolicy:
        """Algorithm 1 with what has been learnt so far; verification by reserve needs one
        (`prepare_reserve`)."""
        return SaFormerPolicy(
            fastest(self.model),
            window=self.config.window,
            cost_discount=self.config.cost_discount,
            options=options or self.default_options,
            reserve=self.reserve,
        )

    @property
    def default_options(self) -> ExecutionOptions:
        """How to act unless told otherwise."""
        config = self.config
        return ExecutionOptions(
            candidates=config.candidates,
            temperature=config.temperature,
            action_noise=config.action_noise,
            past_return=config.past_return,
        )
