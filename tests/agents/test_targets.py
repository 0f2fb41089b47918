"""Targets of critics: expected numbers typed by hand."""

import pytest
import torch

from saformer.agents.markov import steps_that_count, td_target
from saformer.data.transitions import TransitionBatch


def transitions(*, terminated, truncated, timestep) -> TransitionBatch:
    blank = torch.zeros(len(timestep), 1)
    return TransitionBatch(
        state=blank,
        action=blank,
        reward=blank,
        cost=blank,
        next_state=blank,
        terminated=torch.tensor(terminated),
        truncated=torch.tensor(truncated),
        timestep=torch.tensor(timestep),
        initial_state=blank,
    )


GAIN, FOLLOWING = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[10.0], [20.0], [30.0]])


def test_a_discounted_target_goes_on_through_a_time_out_but_not_through_a_termination():
    """Seen to fail when the termination mask is dropped, and when a time-out ends the value."""
    batch = transitions(
        terminated=[False, True, False], truncated=[False, False, True], timestep=[3, 4, 19]
    )
    target = td_target(GAIN, FOLLOWING, batch, discount=0.9, horizon=20)
    assert torch.allclose(target, torch.tensor([[10.0], [2.0], [30.0]]))


def test_an_undiscounted_target_stops_at_the_horizon():
    """A time-out before it is a broken recording, through which values go on. Seen to fail without
    the horizon."""
    batch = transitions(
        terminated=[False, False, False], truncated=[True, False, True], timestep=[18, 18, 19]
    )
    target = td_target(GAIN, FOLLOWING, batch, discount=1.0, horizon=20)
    assert target.tolist() == [[11.0], [22.0], [3.0]]


def test_an_undiscounted_target_stops_at_a_termination():
    batch = transitions(terminated=[True, False, False], truncated=[False] * 3, timestep=[2, 2, 2])
    target = td_target(GAIN, FOLLOWING, batch, discount=1.0, horizon=20)
    assert target.tolist() == [[1.0], [22.0], [33.0]]


def test_what_stands_after_an_end_is_never_read():
    """Seen to fail when the value is multiplied by the mask."""
    batch = transitions(terminated=[True], truncated=[False], timestep=[0])
    nothing = torch.tensor([[float("nan")]])
    assert td_target(GAIN[:1], nothing, batch, discount=0.9, horizon=20).tolist() == [[1.0]]


def test_reward_and_each_cost_are_backed_up_alike():
    batch = transitions(terminated=[False, True], truncated=[False, False], timestep=[0, 1])
    cost, following = (
        torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        torch.tensor([[10.0, 20.0], [30.0, 40.0]]),
    )
    assert td_target(cost, following, batch, discount=1.0, horizon=5).tolist() == [
        [11.0, 22.0],
        [3.0, 4.0],
    ]


@pytest.mark.parametrize(("discount", "steps"), [(1.0, 1000.0), (0.99, 100.0), (0.9999, 1000.0)])
def test_a_value_is_worth_as_many_steps_as_count(discount, steps):
    assert steps_that_count(discount, 1000) == pytest.approx(steps)
