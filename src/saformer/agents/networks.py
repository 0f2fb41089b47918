"""The networks that agents share."""

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saformer.agents.levels import fix_levels, make_room_for_levels
from saformer.core.batch import Dimensions
from saformer.core.gaussian import Gaussian, GaussianHead
from saformer.core.model import SaFormer
from saformer.core.normalizer import Normalizer
from saformer.core.objectives import PerSample, action_entropy, entropy_constrained
from saformer.data.levels import LEVELS, on_levels
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import statistics_of

Network = TypeVar("Network", bound=nn.Module)
Sizes = tuple[int, Sequence[int], int]  # inputs, hidden, outputs


class Perceptron(nn.Module):
    """Linear layers with ReLU and dropout between them."""

    def __init__(
        self, inputs: int, hidden: Sequence[int], outputs: int, *, dropout: float = 0.0
    ) -> None:
        super().__init__()
        sizes = (inputs, *hidden)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.output = nn.Linear(sizes[-1], outputs)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        for layer in self.layers:
            x = F.dropout(F.relu(layer(x)), self.dropout, self.training)
        return self.output(x)


class EnsembleLinear(nn.Module):
    """E linear maps, computed at once."""

    def __init__(self, members: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([member.weight.detach() for member in members]))
        self.bias = nn.Parameter(torch.stack([member.bias.detach() for member in members]))

    def forward(self, x: Tensor) -> Tensor:
        """[E, ..., inputs] -> [E, ..., outputs]."""
        mapped = torch.baddbmm(self.bias[:, None], x.flatten(1, -2), self.weight.mT)
        return mapped.unflatten(1, x.shape[1:-1])


class EnsembleCritic(nn.Module):
    """E estimates of what follows a state and an action. `scale` is how large values get: outputs
    of the layers are of order 1.

    If `finite`, the state's last column is t / T and values are in proportion to 1 - t / T: nothing
    follows the horizon, and a constant output is consistent with itself from step to step."""

    def __init__(
        self, sizes: Sizes, dropout: float, *, scale: float, finite: bool = False, members: int = 2
    ) -> None:
        super().__init__()
        self.scale, self.dropout, self.finite = scale, dropout, finite
        networks = [Perceptron(*sizes) for _ in range(members)]
        layers: Iterable[tuple[nn.Linear, ...]] = zip(*(n.layers for n in networks), strict=True)
        self.layers = nn.ModuleList(map(EnsembleLinear, layers))
        self.output = EnsembleLinear([network.output for network in networks])

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """[..., S], [..., A] -> [E, ..., values]."""
        both = torch.cat([state, action], dim=-1)
        x = both.expand(len(self.output.weight), *both.shape)
        for layer in self.layers:
            x = F.dropout(F.relu(layer(x)), self.dropout, self.training)
        value: Tensor = self.scale * self.output(x)
        return value * (1 - state[..., -1:]) if self.finite else value

    @torch.no_grad()
    def begin_at(self, value: Tensor) -> None:
        """Expect about this [values] until something is learnt; if finite, of a whole horizon."""
        self.output.bias.copy_((value / self.scale).expand_as(self.output.bias))

    def error(self, value: Tensor, target: Tensor) -> PerSample:
        """Squared difference of values [E, B, k] from the target [B, k], in the critic's scale."""
        return PerSample(((value - target) / self.scale).square().sum((0, -1)))


class ActionUnits(nn.Module):
    """Statistics of the data, and the bounds of actions."""

    def __init__(self, dimensions: Dimensions) -> None:
        super().__init__()
        self.normalizer = Normalizer(dimensions)
        self.register_buffer("action_low", torch.full((dimensions.action,), -torch.inf))
        self.register_buffer("action_high", torch.full((dimensions.action,), torch.inf))
        self.register_load_state_dict_pre_hook(make_room_for_levels)

    def raw_action(self, action: Tensor) -> Tensor:
        """Actions [..., A] as an environment wants them, within bounds, on levels if it has any."""
        raw = self.normalizer.restore("action", action)
        raw = raw.clamp(self._buffers["action_low"], self._buffers["action_high"])
        return on_levels(raw, self._buffers.get(LEVELS))


def fix_action_units(units: ActionUnits | SaFormer, data: RelabelledStore) -> None:
    units.normalizer.set_statistics(statistics_of(data))
    environment = data.store.environment
    units.get_buffer("action_low").copy_(torch.tensor(environment.action_low))
    units.get_buffer("action_high").copy_(torch.tensor(environment.action_high))
    fix_levels(units, environment)


class ConditionalVAE(nn.Module):
    """Actions as the data has them in a state. The code has twice the action's size; the decoder's
    likelihood is a Gaussian of a fixed `deviation`, in model units."""

    def __init__(self, state: int, action: int, hidden: Sequence[int], *, deviation: float) -> None:
        super().__init__()
        self.code, self.deviation = 2 * action, deviation
        self.encoder = Perceptron(state + action, hidden[:-1], hidden[-1])
        self.head = GaussianHead(hidden[-1], self.code)
        self.decoder = Perceptron(state + self.code, hidden, action)

    def encode(self, state: Tensor, action: Tensor) -> Gaussian:
        """Over the codes [..., 2 A] of actions [..., A]."""
        return self.head(F.relu(self.encoder(torch.cat([state, action], dim=-1))))

    def decode(self, state: Tensor, code: Tensor) -> Tensor:
        """The actions [..., A] of codes [..., 2 A]."""
        return torch.tanh(self.decoder(torch.cat([state, code], dim=-1)))

    def terms(self, state: Tensor, action: Tensor, kl_weight: float) -> dict[str, PerSample]:
        """The negative evidence bound of the data's actions [B, A]."""
        code = self.encode(state, action)
        decoded = self.decode(state, code.at(torch.randn_like(code.mean)))
        error = 0.5 * ((action - decoded) / self.deviation).square().sum(-1)
        divergence = kl_weight * kl_from_normal(code)
        return {"reconstruction": PerSample(error), "kl": PerSample(divergence)}


def kl_from_normal(code: Gaussian) -> Tensor:
    """Kullback-Leibler divergence from a standard normal, summed over the last axis."""
    variance = torch.exp(2 * code.log_deviation)
    return 0.5 * (variance + code.mean.square() - 1 - 2 * code.log_deviation).sum(-1)


class SquashedActor(nn.Module):
    """A Gaussian in a state, squashed to actions between -1 and 1."""

    def __init__(self, state: int, action: int, hidden: Sequence[int], *, dropout: float) -> None:
        super().__init__()
        self.trunk = Perceptron(state, hidden[:-1], hidden[-1], dropout=dropout)
        self.head = GaussianHead(hidden[-1], action)

    def forward(self, state: Tensor) -> Gaussian:
        """[..., S] -> over [..., A], before it is squashed."""
        return self.head(F.relu(self.trunk(state)))

    def mean(self, state: Tensor) -> Tensor:
        """The action [..., A] of the Gaussian's mean."""
        return torch.tanh(self(state).mean)

    def sample(self, state: Tensor) -> Tensor:
        """An action [..., A] at random, differentiable by the parameters."""
        gaussian = self(state)
        return torch.tanh(gaussian.at(torch.randn_like(gaussian.mean)))


@dataclass(frozen=True)
class Mixture:
    """Gaussians over actions [..., A], and the logarithms of their weights [..., K]."""

    components: Gaussian  # over [..., K, A]
    log_weight: Tensor

    @property
    def likeliest(self) -> Tensor:
        """The mean of the weightiest component."""
        return self._select(self.log_weight.argmax(-1), self.components.mean)

    def log_prob(self, action: Tensor) -> Tensor:
        """[..., A] -> [...]."""
        return (self.log_weight + self.components.log_prob(action[..., None, :])).logsumexp(-1)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Actions [l, A] at random."""
        index = torch.multinomial(self.log_weight.exp(), 1, generator=generator)[..., 0]
        mean = self.components.mean
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        return self._select(index, self.components.at(noise))

    def _select(self, index: Tensor, values: Tensor) -> Tensor:
        index = index[..., None, None].expand(*index.shape, 1, values.shape[-1])
        return values.gather(-2, index)[..., 0, :]


class MixtureActor(nn.Module):
    """A distribution of actions in a state, with as many modes as it has components."""

    def __init__(
        self, state: int, action: int, hidden: Sequence[int], *, components: int, dropout: float
    ) -> None:
        super().__init__()
        self.components = components
        self.trunk = Perceptron(state, hidden[:-1], hidden[-1], dropout=dropout)
        self.head = GaussianHead(hidden[-1], components * action)
        self.weight = nn.Linear(hidden[-1], components)
        if components > 1:  # alike, they would all learn the same
            nn.init.uniform_(self.head.linear.bias[: components * action], -1.0, 1.0)

    def forward(self, state: Tensor) -> Mixture:
        """[..., S] -> over [..., A]."""
        features = F.relu(self.trunk(state))
        flat, sizes = self.head(features), (self.components, -1)
        parts = (part.unflatten(-1, sizes) for part in (flat.mean, flat.log_deviation))
        return Mixture(Gaussian(*parts), F.log_softmax(self.weight(features), dim=-1))


class Multiplier(nn.Module):
    """Lagrangian multipliers, each raised while its constraint is broken: from 0 to `highest`."""

    def __init__(self, constraints: int, initial: float, *, highest: float = math.inf) -> None:
        super().__init__()
        self.highest = highest
        self.value = nn.Parameter(torch.full((constraints,), float(initial)))

    def forward(self) -> Tensor:
        """[C], detached: no loss but its own moves it."""
        return self.value.detach().clamp(0, self.highest)

    def loss(self, excess: Tensor) -> Tensor:
        """[B, C] by how much constraints are broken -> [B]. At a bound it waits."""
        excess, value = excess.detach(), self.value.detach()
        falls, rises = excess.mean(0) < 0, excess.mean(0) > 0
        waits = (falls & (value <= 0)) | (rises & (value >= self.highest))
        return -(self.value * torch.where(waits, 0.0, excess)).sum(-1)


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


class EntropyWeight(nn.Module):
    """One learnt number above 0: its logarithm, in a table of one row."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Embedding(1, 1)
        nn.init.constant_(self.log.weight, math.log(initial))

    def forward(self, rows: Tensor) -> Tensor:
        """The logarithm, once for each row [B]."""
        logarithm: Tensor = self.log(torch.zeros_like(rows, dtype=torch.int64))
        return logarithm[:, 0]


def entropy_terms(
    weight: nn.Module, action: Gaussian, valid: Tensor, target: float | None
) -> tuple[dict[str, PerSample], dict[str, PerSample]]:
    """What an entropy of at least `target` per step adds to the actor's loss, and the weight's own
    loss, the dual (Eq. 8): it raises the weight while the entropy is too low. The likelihood is a
    term of its own."""
    entropy = action_entropy(action, valid)
    sums, counts, logarithm = entropy.sums, entropy.counts, weight(entropy.sums)
    least = counts * (-action.mean.shape[-1] if target is None else target)
    bonus, dual = entropy_constrained(torch.zeros_like(sums), sums, logarithm, target=least)
    return (
        {"entropy_bonus": PerSample(bonus, counts), "entropy": replace(entropy, watched=True)},
        {"dual": PerSample(dual, counts), "temperature": watched(logarithm.exp())},
    )


def target_of(network: Network) -> Network:
    """A copy that follows by a moving average: without gradients, and without dropout."""
    target = copy.deepcopy(network).requires_grad_(False)
    for module in target.modules():
        if isinstance(module, Perceptron | EnsembleCritic):
            module.dropout = 0.0
    return target


def watched(values: Tensor) -> PerSample:
    """A figure to be shown beside the losses: [] for the whole batch, or [B]."""
    return PerSample(values.detach().reshape(-1), watched=True)


def watched_each(figures: dict[str, Tensor]) -> dict[str, PerSample]:
    """Figures [..., C], one for each constraint: `name_0`, `name_1`, ..."""
    return {
        f"{name}_{i}": watched(column)
        for name, values in figures.items()
        for i, column in enumerate(values.unbind(-1))
    }
