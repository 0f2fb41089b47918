"""Doing nothing: which action that is, and how policies are held against it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from saformer.core.budget import Budget
from saformer.core.policy import Decision, Policy
from saformer.criteria import criterion
from saformer.criteria.afford import least_cost_action
from saformer.data.limits import Limit
from saformer.data.relabel import relabel
from saformer.evaluation.evaluate import Evaluation, evaluate_nothing, evaluate_policy
from saformer.evaluation.nothing import DoingNothing
from tests.envs import ending
from tests.rules import chain

LIMITS = [Limit("tight", (0.5,)), Limit("loose", (3.0,))]


@pytest.mark.parametrize(
    ("texts", "low", "high", "expected"),
    [
        (["torque"], (-1.0, -1.0), (1.0, 1.0), (0.0, 0.0)),
        (["torque"], (0.25, -1.0), (1.0, -0.5), (0.25, -0.5)),  # the bound nearest to 0
        (["abs(action[0] - 0.5)"], (-1.0,), (1.0,), (0.5,)),  # least cost, not least action
        (["above(speed, 2)"], (-1.0, 1.0), (1.0, 2.0), (0.0, 1.0)),  # of the state: nearest to 0
        (["abs(action[0] - 0.5)", "state[0] > 1"], (-1.0,), (1.0,), (0.5,)),
    ],
)
def test_the_action_of_least_cost(texts, low, high, expected):
    """Seen to fail when it is always 0, and when a cost of the state is refused."""
    action = least_cost_action([criterion(text) for text in texts], low, high)
    assert action.tolist() == pytest.approx(expected, abs=1e-4)


def test_off_as_recorded_costs_show_it():
    """A machine that is off at -0.8 is switched off, not run at 0; what is off for a step at a time
    does not count. Seen to fail when nothing is the action nearest to 0 for every recorded cost."""
    assert DoingNothing(chain.switched()).action[0].item() == pytest.approx(chain.OFF)
    assert DoingNothing(chain.switched(spell=1)).action.tolist() == [0.0, 0.0]


class Full:
    """Acts with all its strength."""

    def __init__(self) -> None:
        self.budget = Budget(torch.zeros(0, 1))

    def reset(self, state, limit, lanes=None) -> None:
        self.budget = Budget(limit)

    def act(self, state, lanes=None) -> Decision:
        return Decision(torch.ones(len(state), 1))

    def observe(self, reward, cost, lanes=None, *, action=None) -> None:
        pass


def judged(policy: Policy, *, may_end: bool) -> Evaluation:
    data = relabel(ending.store(may_end=may_end), [criterion("torque")])
    how = {"episodes": 2, "workers": 0}
    nothing = evaluate_nothing(data, LIMITS, **how)
    return replace(evaluate_policy(policy, data, LIMITS, **how), nothing=nothing)


def test_episodes_that_end_early_are_seen_and_may_count():
    """The machine stops when it is not driven. Seen to fail when endings are not rolled out."""
    for may_end in (True, False):
        nothing = judged(Full(), may_end=may_end).nothing
        assert [row.num_steps for row in nothing.rows] == [2] * 4
        assert all(row.ended_early for row in nothing.rows)
        assert [verdict.met for verdict in nothing.verdicts] == [may_end] * 2
    full = judged(Full(), may_end=False)
    assert not any(row.ended_early for row in full.rows), "the horizon ends them"
    assert full.ended_early == 0.0


def test_nothing_is_done_once_and_held_against_every_limit():
    """Seen to fail when it is rolled out under each limit, and when it acts."""
    nothing = judged(Full(), may_end=True).nothing
    assert [row.seed for row in nothing.rows] == [1_000_000, 1_000_001] * 2
    assert [verdict.limit.name for verdict in nothing.verdicts] == ["tight", "loose"]
    assert nothing.verdicts[0].mean_cost == (0.0,)


def test_a_policy_that_earns_no_more_than_doing_nothing_is_named():
    """Only under limits that doing nothing keeps. Seen to fail without that condition."""
    idle = DoingNothing(relabel(ending.store(may_end=True), [criterion("torque")]))
    assert judged(idle, may_end=True).idle_limits == ("tight", "loose")
    assert judged(idle, may_end=False).idle_limits == ()
    assert judged(Full(), may_end=True).idle_limits == ()


def test_what_is_written_says_the_setting_and_the_shares():
    plain = judged(Full(), may_end=False).plain()
    assert plain["may_end"] is False
    assert plain["ended_early"] == 0.0
    assert plain["data_ended_early"] == 0.5
    assert plain["nothing"]["ended_early"] == 1.0
    assert plain["episodes"][0]["ended_early"] is False
    assert np.isfinite(plain["verdicts"][1]["uncapped_share"])
