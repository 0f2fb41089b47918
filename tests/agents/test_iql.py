"""In-sample values, heads and budgets, with numbers typed by hand."""

import pytest
import torch

from saformer.agents.bcrl import BCRLAgent, BCRLConfig
from saformer.agents.caps import CAPSAgent, CAPSConfig
from saformer.agents.iql import IQLConfig, expectile_loss
from saformer.core.batch import Dimensions

SIZES = Dimensions(state=2, action=1, constraints=1, horizon=10)


def test_an_expectile_weighs_what_lies_above_it():
    """Seen to fail when the two weights are exchanged."""
    found = expectile_loss(torch.tensor([2.0, -2.0, 0.0]), 0.9)
    torch.testing.assert_close(found, torch.tensor([3.6, 0.4, 0.0]))


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="expectile lies in"):
        IQLConfig(expectile=0.3)
    with pytest.raises(ValueError, match="heads must be at least 2"):
        CAPSConfig(heads=1)


def test_caps_takes_the_most_rewarding_head_that_fits(monkeypatch):
    """Heads propose 0, 0.5 and 1; an action costs and earns itself. Seen to fail when what does not
    fit is taken, and when the least reward is."""
    agent = CAPSAgent(SIZES, CAPSConfig(hidden=(4, 4), heads=3))
    proposals = [torch.zeros(1, 1), torch.full((1, 1), 0.5), torch.ones(1, 1)]
    heads = [type("Head", (), {"likeliest": action}) for action in proposals]
    monkeypatch.setattr(agent.model, "actions", lambda timed: heads)
    monkeypatch.setattr(agent.model, "least_cost", lambda timed, action: 0.2 + action)
    agent.model.critic_target.forward = lambda timed, action: action.expand(2, *action.shape)
    for remaining, expected in ((5.0, 1.0), (0.8, 0.5), (0.2, 0.0), (-1.0, 0.0)):
        budget, step = torch.tensor([[remaining]]), torch.zeros(1, dtype=torch.long)
        assert agent.choose_within(torch.zeros(1, 2), step, budget).item() == expected


def test_bcrl_draws_budgets_from_the_least_to_the_most():
    """The dearest episode cost 10 over 10 steps: from step 5 on, at most 5. Seen to fail when the
    most is the whole episode's at every step."""
    agent = BCRLAgent(SIZES, BCRLConfig(hidden=(4, 4)))
    agent.model.get_buffer("dearest").fill_(10.0)
    drawn = agent._drawn(torch.full((1000, 1), 2.0), torch.full((1000,), 5))
    assert 2.0 <= drawn.min() < 2.2
    assert 4.8 < drawn.max() <= 5.0
    assert agent._drawn(torch.full((1, 1), 7.0), torch.full((1,), 5)).item() == 5.0
    timed = agent.model.timed(torch.zeros(1, 2), torch.full((1,), 5))
    shares = agent.model.within(timed, torch.full((1,), 5), torch.tensor([[2.5]]))
    torch.testing.assert_close(shares, torch.tensor([[0.5, 0.0, 0.0, 0.5]]))
