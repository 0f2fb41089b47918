"""What DT, CDT and BC-Safe share: one causal transformer over an episode, and how it acts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from saformer.agents.agent import Agent, Phase
from saformer.agents.lanes import LanePolicy
from saformer.agents.networks import ActionUnits
from saformer.core.batch import Dimensions, WindowBatch
from saformer.core.gaussian import Gaussian
from saformer.core.history import History, Prompt
from saformer.core.objectives import PerSample, action_error, over_valid_steps
from saformer.core.policy import Decision, as_rows
from saformer.core.tokens import Layout, TokenEmbedding
from saformer.core.transformer import Trunk, TrunkConfig
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import WindowSampler

Head = Callable[[int, int], nn.Module]  # width and dimensions of the action
Target = Callable[[Tensor], Tensor]  # limits [L, C] -> returns to ask for [L]
LONGEST_WINDOW = 100_000


@dataclass(frozen=True)
class SequenceConfig:
    """What is learnt by an agent of windows."""

    window: int = 20
    """K: steps that networks look back over, the present one included."""
    cost_discount: float = 1.0
    """gamma_c: how much less a cost counts with every step of the episode; 1 counts all alike."""
    trunk: TrunkConfig = field(default_factory=TrunkConfig)
    """Size of the transformer, of each where there are two."""

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window must be at least 1 step, got {self.window}")
        if self.window > LONGEST_WINDOW:
            raise ValueError(f"window must be at most {LONGEST_WINDOW:,} steps")
        if not 0 < self.cost_discount <= 1:
            raise ValueError(f"cost_discount must lie in (0, 1], got {self.cost_discount}")


@dataclass(frozen=True)
class SequenceOptions:
    """How its policy acts."""

    noise: Literal["none", "normal", "two_point"] = "none"
    """none: the mean; normal: a sample; two_point: a deviation to either side of the mean."""
    temperature: float = 1.0
    """Spread of the noise, in deviations."""
    seed: int = 0
    """Seed of the noise."""

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")

    def draw(self, predicted: Tensor | Gaussian, generator: torch.Generator) -> Tensor:
        """One action per row: [L, A]."""
        if isinstance(predicted, Tensor):
            return predicted
        if self.noise == "none":
            return predicted.mean
        noise = torch.randn(predicted.mean.shape, generator=generator, device=predicted.mean.device)
        noise = noise.sign() if self.noise == "two_point" else noise
        return predicted.at(self.temperature * noise)


class SequenceModel(ActionUnits):
    """A causal transformer over the tokens of a layout; `action_head` reads it at every state token
    and gives an action or a Gaussian. All but `decide` is in model units."""

    def __init__(
        self, layout: Layout, dimensions: Dimensions, config: TrunkConfig, action_head: Head
    ) -> None:
        super().__init__(dimensions)
        self.dimensions, self.layout = dimensions, layout
        self.embedding = TokenEmbedding(layout, dimensions, config.width)
        self.trunk = Trunk(config)
        self.action_head = action_head(config.width, dimensions.action)

    def head_outputs(self, batch: WindowBatch, heads: dict[str, Any]) -> list[Any]:
        """What heads say of whole windows, each at the tokens of one kind: over [B, K]."""
        tokens = self.embedding.embed(batch.tokens(self.layout.kinds), batch.timestep)
        return self.trunk.head_outputs(tokens, self.layout, heads)

    def forward(self, batch: WindowBatch) -> Any:
        """Every step's action given all that came before it: over [B, K, A]."""
        return self.head_outputs(batch, {"state": self.action_head})[0]

    def decide(self, prompt: Prompt, return_to_go: Tensor) -> Any:
        """The present action, over [L, A]; prompt and return-to-go [L, 1] are in raw units."""
        past, kinds, normalize = prompt.past, self.layout.kinds, self.normalizer.normalize
        before = {kind: normalize(kind, value) for kind, value in past.tokens(kinds).items()}
        known = {"state": prompt.state, "cost_to_go": prompt.cost_to_go}
        known["return_to_go"] = return_to_go
        present = (*self.layout.before("state"), "state")
        now = {kind: normalize(kind, known[kind])[:, None] for kind in present}
        embed = self.embedding.embed
        tokens = [embed(before, past.timestep), embed(now, prompt.timestep[:, None])]
        seen = past.valid.repeat_interleave(len(kinds), dim=1)
        valid = torch.cat([seen, seen.new_ones(len(seen), len(now))], dim=1)
        output, _ = self.trunk.prefill(torch.cat(tokens, dim=1), valid)
        return self.action_head(output)


class SequencePolicy(LanePolicy):
    """One forward pass over each lane's window per step. Each lane begins with a target return,
    which may depend on its limit; rewards are taken off it."""

    def __init__(
        self, model: SequenceModel, config: SequenceConfig, target: Target, options: SequenceOptions
    ) -> None:
        device = model.normalizer.centre("state").device
        super().__init__(model.dimensions, config.cost_discount, options.seed, device)
        self._model, self._window = model.eval(), config.window
        self._target, self._options = target, options
        self._begin(self.budget.limit.to(device, torch.float32))

    def _begin(self, limit: Tensor, lanes: Tensor | None = None) -> None:
        if lanes is None:
            self.history = History(len(limit), self._window - 1, self._dimensions, self._device)
            self.return_to_go = self._target(limit)  # [L]
        else:
            self.history.forget(lanes)
            self.return_to_go[lanes] = self._target(limit)

    def _decide(self, state: Tensor, account: Tensor, lanes: Tensor) -> Decision:
        target = self.return_to_go[lanes]
        prompt = self.history.prompt(state, account, lanes)
        predicted = self._model.decide(prompt, target[:, None])
        action = self._model.raw_action(self._options.draw(predicted, self._generator))
        has_target = "return_to_go" in self._model.layout.kinds
        return Decision(action, return_to_go=target if has_target else None)

    def _remember_action(
        self, state: Tensor, decision: Decision, account: Tensor, lanes: Tensor
    ) -> None:
        asked = self.return_to_go[lanes][:, None]
        self.history.append(account, lanes, asked, state, decision.action)

    def _remember(self, reward: Tensor, action: object, lanes: Tensor) -> None:
        self.return_to_go.index_add_(0, lanes, reward, alpha=-1)
        if action is not None:
            executed = as_rows(action, self._dimensions.action, "action", self._device, lanes)
            self.history.correct(executed, lanes)


class SequenceAgent(Agent):
    """An agent of windows."""

    mean_settings: ClassVar[Mapping[str, Any]] = {"noise": "none"}
    config: SequenceConfig

    def sampler(self, data: RelabelledStore, device: torch.device | str = "cpu") -> WindowSampler:
        return WindowSampler(data, window=self.config.window, device=device)


class ImitatingAgent(SequenceAgent):
    """Learns an action for each state, and nothing else."""

    model: SequenceModel

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (Phase("actor", tuple(self.model.parameters()), self.actor_terms),)

    def actor_terms(self, batch: WindowBatch) -> dict[str, PerSample]:
        """Eq. 2, in model units; where a Gaussian is learnt, its negative log-likelihood."""
        batch = self.model.normalizer.window(batch)
        predicted = self.model(batch)
        if isinstance(predicted, Tensor):
            return {"action": action_error(predicted, batch.action, batch.valid)}
        return {"action": over_valid_steps(-predicted.log_prob(batch.action), batch.valid)}
