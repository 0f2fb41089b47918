"""What DT, CDT and BC-Safe share: one causal transformer over the steps of an episode, and how it
acts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn

from saformer.core.batch import Dimensions, WindowBatch
from saformer.core.budget import Budget
from saformer.core.gaussian import Gaussian
from saformer.core.history import History, Prompt
from saformer.core.normalizer import Normalizer
from saformer.core.policy import Decision, as_rows
from saformer.core.tokens import Layout, TokenEmbedding
from saformer.core.transformer import Trunk, TrunkConfig
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import dimensions_of, statistics_of

Noise = Literal["none", "normal", "two_point"]
"""How an action is drawn from a Gaussian: its mean, a sample, or one deviation above or below the
mean."""


class SequenceModel(nn.Module):
    """A causal transformer over the tokens of a layout; `action_head` reads it at every state
    token.

    `Normalizer` apart, it speaks model units. What the head answers is the agent's affair: an
    action, or a Gaussian.
    """

    def __init__(
        self,
        layout: Layout,
        dimensions: Dimensions,
        config: TrunkConfig,
        action_head: Callable[[int, int], nn.Module],
    ) -> None:
        super().__init__()
        self.dimensions = dimensions
        self.normalizer = Normalizer(dimensions)
        self.embedding = TokenEmbedding(layout, dimensions, config.width)
        self.trunk = Trunk(config)
        self.action_head = action_head(config.width, dimensions.action)
        self.register_buffer("action_low", torch.full((dimensions.action,), -torch.inf))
        self.register_buffer("action_high", torch.full((dimensions.action,), torch.inf))

    @property
    def layout(self) -> Layout:
        """The order of tokens within a step."""
        return self.embedding.layout

    def fix_units(self, data: RelabelledStore) -> None:
        """Set units and bounds from the data, once, before training."""
        self.normalizer.set_statistics(statistics_of(data))
        self.get_buffer("action_low").copy_(torch.tensor(data.store.environment.action_low))
        self.get_buffer("action_high").copy_(torch.tensor(data.store.environment.action_high))

    def answers(self, batch: WindowBatch, heads: Mapping[str, nn.Module]) -> list[Any]:
        """What heads read off whole windows, each at the tokens of one kind, for training: over [B,
        K]."""
        tokens = self.embedding.embed(batch.tokens(self.layout.kinds), batch.timestep)
        return self.trunk.head_outputs(tokens, self.layout, heads)

    def forward(self, batch: WindowBatch) -> Any:
        """What the head says of every step's action, each given all that came before it: over [B,
        K, A]."""
        return self.answers(batch, {"state": self.action_head})[0]

    def decide(self, prompt: Prompt, return_to_go: Tensor) -> Any:
        """What the head says of the present action, over [L, A]; prompt and return-to-go [L, 1] in
        raw units."""
        past = self.normalizer.window(prompt.past)
        known = {
            "return_to_go": return_to_go,
            "cost_to_go": prompt.cost_to_go,
            "state": prompt.state,
        }
        now = {
            kind: self.normalizer.normalize(kind, known[kind])[:, None]
            for kind in (*self.layout.before("state"), "state")
        }
        embed, kinds = self.embedding.embed, self.layout.kinds
        tokens = [embed(past.tokens(kinds), past.timestep), embed(now, prompt.timestep[:, None])]
        seen = past.valid.repeat_interleave(len(kinds), dim=1)
        valid = torch.cat([seen, seen.new_ones(len(seen), len(now))], dim=1)
        output, _ = self.trunk.prefill(torch.cat(tokens, dim=1), valid)
        return self.action_head(output)

    def raw_action(self, action: Tensor) -> Tensor:
        """An action [L, A] in model units, as the environment takes it: within its bounds."""
        raw = self.normalizer.restore("action", action)
        return raw.clamp(self.get_buffer("action_low"), self.get_buffer("action_high"))


@dataclass(frozen=True)
class Drawing:
    """How actions are drawn from what a head says."""

    noise: Noise = "none"
    temperature: float = 1.0
    """Spread of the noise, in deviations."""
    seed: int = 0

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
        return predicted.at(
            self.temperature * (noise.sign() if self.noise == "two_point" else noise)
        )


class SequencePolicy:
    """Drives L episodes by one reading of each lane's window per step.

    Each lane is begun with a target return (of its limit, if the agent heeds it); what was earned
    is taken off it.
    """

    def __init__(
        self,
        model: SequenceModel,
        *,
        window: int,
        cost_discount: float,
        target: Callable[[Tensor], Tensor],
        drawing: Drawing,
    ) -> None:
        self._model = model.eval()
        self._window, self._cost_discount = window, cost_discount
        self._target, self._drawing = target, drawing
        self._device = model.normalizer.centre("state").device
        self._generator = torch.Generator(self._device).manual_seed(drawing.seed)
        self._begin(torch.zeros(0, model.dimensions.constraints, device=self._device))

    def reset(self, state: object, limit: object, lanes: Tensor | None = None) -> None:
        """Begin episodes on all lanes, or on the named ones: states [L, S], limits [L, C]."""
        dimensions = self._model.dimensions
        num_lanes = len(as_rows(state, dimensions.state, self._device))
        limit = as_rows(limit, dimensions.constraints, self._device, least=0.0).expand(
            num_lanes, -1
        )
        if lanes is None:
            self._generator.manual_seed(self._drawing.seed)
            self._begin(limit)
        else:
            lanes = self._lanes(lanes)
            self.budget.renew(limit, lanes)
            self.history.forget(lanes)
            self.return_to_go[lanes] = self._target(limit)

    @torch.no_grad()
    def act(self, state: object, lanes: Tensor | None = None) -> Decision:
        """Choose one action per lane for states [L, S]."""
        lanes = self._lanes(lanes)
        state = as_rows(state, self._model.dimensions.state, self._device)
        if len(state) != len(lanes):
            raise ValueError(
                f"got {len(state)} states for {len(lanes)} lanes; call reset first, with one "
                "state a lane"
            )
        asked = self.return_to_go[lanes]
        predicted = self._model.decide(
            self.history.prompt(state, self.budget, lanes), asked[:, None]
        )
        action = self._model.raw_action(self._drawing.draw(predicted, self._generator))
        self.history.append(state, action, asked[:, None], self.budget, lanes)
        return Decision(
            action, return_to_go=asked if "return_to_go" in self._model.layout.kinds else None
        )

    def observe(
        self, reward: object, cost: object, lanes: Tensor | None = None, *, action: object = None
    ) -> None:
        """Book what the last action brought: rewards [L], costs [L, C]; `action` [L, A] if another
        was executed."""
        lanes = self._lanes(lanes)
        cost = as_rows(cost, self._model.dimensions.constraints, self._device, least=0.0)
        self.return_to_go[lanes] -= as_rows(reward, 1, self._device)[:, 0]
        self.budget.spend(cost, lanes)
        if action is not None:
            self.history.correct(
                as_rows(action, self._model.dimensions.action, self._device), lanes
            )

    def _begin(self, limit: Tensor) -> None:
        self.budget = Budget(limit, cost_discount=self._cost_discount)
        self.history = History(len(limit), self._window - 1, self._model.dimensions, self._device)
        self.return_to_go = self._target(limit)  # [L]

    def _lanes(self, lanes: Tensor | None) -> Tensor:
        return (
            torch.arange(len(self.budget.limit), device=self._device)
            if lanes is None
            else lanes.to(self._device)
        )


class SequenceConfig(Protocol):
    """What the configs of this family have in common."""

    @property
    def window(self) -> int:
        """K."""

    @property
    def cost_discount(self) -> float:
        """gamma_c."""


Made = TypeVar("Made")


def check_config(config: SequenceConfig) -> None:
    """Refuse what no agent of this family could be made of."""
    if config.window < 1:
        raise ValueError(f"window must be at least 1 step, got {config.window}")
    if not 0 < config.cost_discount <= 1:
        raise ValueError(f"cost_discount must lie in (0, 1], got {config.cost_discount}")


def seeded(
    make: Callable[[Dimensions, Any], Made],
    data: RelabelledStore,
    config: SequenceConfig,
    *,
    seed: int,
) -> Made:
    """A fresh agent for this data, its weights decided by the seed alone."""
    if data.cost_discount != config.cost_discount:
        raise ValueError(
            f"the data counts costs at {data.cost_discount}, the agent at {config.cost_discount}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(dimensions_of(data), config)
