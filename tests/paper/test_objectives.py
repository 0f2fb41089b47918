"""Equations 2 and 5 to 9, against numbers worked out by hand.

Each docstring names a mutation of the code under which the test was seen to fail;
`tests/mutants.py` applies them.
"""

import math

import pytest
import torch

from saformer.core.batch import WindowBatch
from saformer.core.gaussian import Gaussian
from saformer.core.model import Predictions
from saformer.core.objectives import (
    action_entropy,
    action_error,
    actor_nll,
    critic_loss,
    entropy_constrained,
    forecast_error,
    over_valid_steps,
)

YES, NO = True, False


def gaussian(mean: list, log_deviation: list) -> Gaussian:
    return Gaussian(torch.tensor(mean), torch.tensor(log_deviation))


def test_mean_counts_valid_steps_only():
    """Seen to fail when dividing by all steps, padding included."""
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, float("nan")]])
    valid = torch.tensor([[YES, YES, YES], [YES, YES, NO]])
    per_sample = over_valid_steps(values, valid)
    assert per_sample.sums.tolist() == [6.0, 9.0]
    assert per_sample.counts.tolist() == [3, 2]
    assert per_sample.mean().item() == 3.0


def test_eq_2_squared_action_error():
    """Seen to fail when the error is averaged over action dimensions."""
    predicted = torch.tensor([[[1.0, 2.0], [0.0, 0.0]]])
    action = torch.tensor([[[0.0, 0.0], [3.0, 4.0]]])
    assert (
        action_error(predicted, action, torch.tensor([[YES, YES]])).mean().item() == 15.0
    )  # (1 + 4 + 9 + 16) / 2
    assert action_error(predicted, action, torch.tensor([[YES, NO]])).mean().item() == 5.0


def test_eq_5_three_likelihoods():
    """Seen to fail when log-deviation is added instead of subtracted."""
    predictions = Predictions(
        cost_to_go=gaussian([[[0.0]]], [[[0.0]]]),
        return_to_go=gaussian([[[2.0]]], [[[math.log(2.0)]]]),
        action=gaussian([[[0.0, 0.0]]], [[[0.0, math.log(0.5)]]]),
    )
    batch = WindowBatch(
        limit=torch.tensor([[9.0]]),
        cost_to_go=torch.tensor([[[1.0]]]),
        return_to_go=torch.tensor([[[0.0]]]),
        state=torch.zeros(1, 1, 1),
        action=torch.tensor([[[1.0, 0.5]]]),
        timestep=torch.zeros(1, 1, dtype=torch.int64),
        valid=torch.tensor([[YES]]),
    )
    terms = {name: term.mean().item() for name, term in actor_nll(predictions, batch).items()}
    assert terms["cost_to_go"] == pytest.approx(1.418939, abs=1e-6)  # 1/2 + ln(2 pi)/2
    assert terms["return_to_go"] == pytest.approx(2.112086, abs=1e-6)  # 1/2 + ln 2 + ln(2 pi)/2
    assert terms["action"] == pytest.approx(
        2.144730, abs=1e-6
    )  # 1.418939 + (1/2 - ln 2 + ln(2 pi)/2)


def test_eq_6_squared_forecast_error():
    """Seen to fail when the error is not squared."""
    forecast, truth = torch.tensor([[[3.0], [4.0], [2.0]]]), torch.tensor([[[3.0], [1.0], [1.0]]])
    assert forecast_error(
        forecast, truth, torch.tensor([[YES, YES, YES]])
    ).mean().item() == pytest.approx(10 / 3)
    assert forecast_error(forecast, truth, torch.tensor([[YES, YES, NO]])).mean().item() == 4.5


def test_eq_6_sums_over_constraints():
    """Seen to fail when constraints are averaged."""
    forecast, truth = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[0.0, 0.0]]])
    assert forecast_error(forecast, truth, torch.tensor([[YES]])).mean().item() == 5.0


def test_eq_7_penalises_a_forecast_that_rises():
    """Seen to fail when a falling forecast is penalised instead."""
    forecast, truth = torch.tensor([[[3.0], [4.0], [2.0]]]), torch.tensor([[[3.0], [3.0], [1.0]]])
    terms = critic_loss(forecast, truth, torch.tensor([[YES, YES, YES]]), penalty=0.25)
    assert terms["forecast_error"].mean().item() == pytest.approx(2 / 3)
    assert terms["rising_forecast"].mean().item() == pytest.approx(0.25 * (1 + 0) / 2)


def test_eq_7_ignores_pairs_that_reach_into_padding():
    """Seen to fail when only one step of the pair must be valid."""
    forecast, truth = torch.tensor([[[3.0], [4.0], [90.0]]]), torch.zeros(1, 3, 1)
    terms = critic_loss(forecast, truth, torch.tensor([[YES, YES, NO]]), penalty=0.25)
    assert terms["rising_forecast"].mean().item() == pytest.approx(0.25)


def test_eq_8_lagrangian_and_its_dual():
    """Seen to fail when the sign of the entropy's surplus is turned."""
    log_temperature = torch.tensor(math.log(0.5), requires_grad=True)
    entropy = torch.tensor(1.0, requires_grad=True)
    actor, dual = entropy_constrained(torch.tensor(2.0), entropy, log_temperature, target=3.0)
    assert actor.item() == pytest.approx(3.0)  # 2 - 0.5 * (1 - 3)
    assert dual.item() == pytest.approx(-1.0)  # 0.5 * (1 - 3)

    (of_entropy,) = torch.autograd.grad(actor, entropy, retain_graph=True)
    assert of_entropy.item() == pytest.approx(-0.5)  # more entropy lowers the actor's loss
    (of_temperature,) = torch.autograd.grad(dual, log_temperature)
    assert of_temperature.item() == pytest.approx(
        -1.0
    )  # entropy is short of its target: descent raises the temperature


def test_eq_8_each_loss_reaches_its_own_side_only():
    """Seen to fail when the temperature is not detached from the actor's loss."""
    log_temperature, entropy = (
        torch.tensor(0.3, requires_grad=True),
        torch.tensor(1.0, requires_grad=True),
    )
    actor, dual = entropy_constrained(torch.tensor(2.0), entropy, log_temperature, target=3.0)
    assert torch.autograd.grad(actor, log_temperature, allow_unused=True, retain_graph=True) == (
        None,
    )
    assert torch.autograd.grad(dual, entropy, allow_unused=True) == (None,)


def test_eq_9_entropy_is_summed_over_dimensions():
    """Seen to fail when it is averaged over them."""
    action = gaussian([[[0.0, 0.0]]], [[[0.0, math.log(2.0)]]])
    entropy = action_entropy(action, torch.tensor([[YES]])).mean().item()
    assert entropy == pytest.approx(1.418939 + 2.112086, abs=1e-6)  # ln(2 pi e)/2 each, and ln 2
