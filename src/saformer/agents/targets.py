"""What critics of reward and cost are taught, and how a limit per episode is held against them.

A limit d is a promise about whole episodes: the costs of an episode, each discounted by gamma_c
from its beginning on, sum to d at most. A critic that counts with the same gamma_c says at the
*first* state of an episode what the whole of it will cost, however early it ends, since nothing is
counted after a termination. So there the critic is compared with d itself: no number of steps
enters, and a task that ends early needs no correction.

A rule that must also judge later states, such as CPQ's, compares with d where costs are discounted
(the critic looks just as far ahead from every state), and with the share of d that the rest of the
horizon has, d (T - t) / T, where they are not. At t = 0 both are d, so that a policy that is safe
in the first state keeps its promise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from saformer.data.transitions import TransitionBatch


def td_target(
    gain: Tensor, next_value: Tensor, batch: TransitionBatch, *, discount: float, horizon: int
) -> Tensor:
    """What was gained (reward, or each cost) and the discounted value of what follows: all [B, k].

    Nothing follows a termination. A time-out ends the recording, not the task, so discounted values
    go on through it. Undiscounted ones would have no finite solution then: they count up to the
    horizon, and nothing follows that.
    """
    assert gain.shape == next_value.shape, (
        f"{tuple(gain.shape)} gains, {tuple(next_value.shape)} values"
    )
    goes_on = ~batch.terminated
    if discount == 1:
        goes_on = goes_on & (batch.timestep + 1 < horizon)
    return gain + discount * torch.where(goes_on[:, None], next_value, 0.0)


def steps_that_count(discount: float, horizon: int) -> float:
    """How many steps' worth a value is, at most: the horizon, or 1 / (1 - discount) if that is
    less."""
    return float(horizon) if discount == 1 else min(float(horizon), 1 / (1 - discount))


def limit_at(limit: Tensor, timestep: Tensor, *, discount: float, horizon: int) -> Tensor:
    """What the cost critic may say at most at these steps [...]: [..., C], from the limit [C] of an
    episode."""
    if discount < 1:
        return limit.expand(*timestep.shape, -1)
    return limit * ((horizon - timestep).clamp(min=0) / horizon)[..., None]
