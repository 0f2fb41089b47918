"""The paper's objectives: one pure function per equation. Each returns `PerSample` values, so that
the mean over valid steps is the same whether a batch is whole, packed with those of other runs, or
spread over several machines."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saformer.core.batch import WindowBatch
from saformer.core.gaussian import Gaussian
from saformer.core.model import Predictions


@dataclass(frozen=True)
class PerSample:
    """Sums over the valid steps of each sample [B], and counts: [B], or one number for all."""

    sums: Tensor
    counts: Tensor | int = 1
    watched: bool = False  # only measured: no part of the loss

    def mean(self) -> Tensor:
        """The mean over all valid steps of the batch; padding counts nowhere."""
        if isinstance(self.counts, int):
            return self.sums.sum() / (self.counts * len(self.sums))
        return self.sums.sum() / self.counts.sum().clamp(min=1)

    def scaled(self, factor: float | Tensor) -> "PerSample":
        return PerSample(self.sums * factor, self.counts, self.watched)


def over_valid_steps(values: Tensor, valid: Tensor) -> PerSample:
    """Sum [B, K] values over each sample's valid steps; elsewhere nothing is read, even NaN."""
    assert values.shape == valid.shape, f"{values.shape} values for {valid.shape} steps"
    return PerSample(torch.where(valid, values, 0.0).sum(1), valid.sum(1))


def action_error(predicted: Tensor, action: Tensor, valid: Tensor) -> PerSample:
    """Decision Transformer's: squared error of an action, summed over its dimensions.
    Implements: Eq. (2)"""
    assert predicted.ndim == 3, f"expected [B, K, A], got {tuple(predicted.shape)}"
    return over_valid_steps(((action - predicted) ** 2).sum(-1), valid)


def actor_nll(predictions: Predictions, batch: WindowBatch) -> dict[str, PerSample]:
    """Negative log-likelihood of cost-to-go, return-to-go and action; their sum is minimised.
    The third term of the paper conditions on s_t where s_{t-k} is meant.
    Implements: Eq. (5)"""

    def nll(predicted: Gaussian, value: Tensor) -> PerSample:
        return over_valid_steps(-predicted.log_prob(value), batch.valid)

    return {
        "cost_to_go": nll(predictions.cost_to_go, batch.cost_to_go),
        "return_to_go": nll(predictions.return_to_go, batch.return_to_go),
        "action": nll(predictions.action, batch.action),
    }


def forecast_error(forecast: Tensor, cost_to_go: Tensor, valid: Tensor) -> PerSample:
    """Squared error of the critic's forecast, summed over constraints.
    Implements: Eq. (6)"""
    assert forecast.ndim == 3, f"expected [B, K, C], got {tuple(forecast.shape)}"
    return over_valid_steps(((cost_to_go - forecast) ** 2).sum(-1), valid)


def critic_loss(
    forecast: Tensor, cost_to_go: Tensor, valid: Tensor, *, penalty: float
) -> dict[str, PerSample]:
    """Forecast error, and a penalty (lambda, in model units) wherever the forecast rises from one
    step to the next: costs are never negative, so what is still to come can only fall. Both terms
    are means over valid steps; the paper has a mean in one and a plain sum in the other.
    Implements: Eq. (7)"""
    rise = (forecast[:, 1:] - forecast[:, :-1]).clamp(min=0).sum(-1)
    both_valid = valid[:, 1:] & valid[:, :-1]
    return {
        "forecast_error": forecast_error(forecast, cost_to_go, valid),
        "rising_forecast": over_valid_steps(rise, both_valid).scaled(penalty),
    }


def entropy_constrained(
    negative_log_likelihood: Tensor, entropy: Tensor, log_temperature: Tensor, *, target: Any
) -> tuple[Tensor, Tensor]:
    """The likelihood objective subject to an entropy of at least `target`. Of means, or of sums and
    a target times their counts: the actor's loss (no gradient to the temperature) and its dual, the
    temperature's (no gradient to the actor), which raises it while the entropy is too low.
    Implements: Eq. (8)"""
    temperature = log_temperature.exp()
    actor = negative_log_likelihood - temperature.detach() * (entropy - target)
    return actor, temperature * (entropy.detach() - target)


def action_entropy(action: Gaussian, valid: Tensor) -> PerSample:
    """Shannon entropy of the action distribution, summed over its dimensions. The paper conditions
    on a_{t-k} itself; the tokens before it are meant.
    Implements: Eq. (9)"""
    return over_valid_steps(action.entropy(), valid)
