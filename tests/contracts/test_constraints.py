"""Two costs and two limits, from the data to the verdict."""

import numpy as np
import pytest
import torch

from saformer.agents.registry import KINDS, create_agent
from saformer.agents.saformer import SaFormerAgent
from saformer.data.limits import parse_limit
from saformer.evaluation.evaluate import evaluate_policy
from saformer.training.loop.config import FitConfig
from tests.alone import fit
from tests.conftest import tiny_config
from tests.contracts.cases import CASES


@pytest.mark.parametrize("name", list(KINDS))
def test_two_constraints_go_the_whole_way(two_cost_data, name):
    """Or are refused. Seen to fail when costs are summed over constraints on their way."""
    config = CASES[name].config(0.0, 2)
    if not CASES[name].several_constraints:
        with pytest.raises(ValueError, match="one constraint"):
            create_agent(two_cost_data, config, seed=0)
        return
    agent = create_agent(two_cost_data, config, seed=0)
    assert agent.dimensions.constraints == 2
    fit(agent, agent.sampler(two_cost_data), FitConfig(updates=20, batch_size=16, warmup_updates=0))
    limit = parse_limit("p20,p80", two_cost_data)
    assert limit.values[0] < limit.values[1]
    found = evaluate_policy(agent.policy(), two_cost_data, [limit], episodes=2)
    for row, path in zip(found.rows, found.trace["paths"], strict=True):
        assert len(row.cost) == 2
        assert row.cost[0] != row.cost[1]
        assert np.allclose(path["spent"][-1], row.cost, atol=1e-3)
        assert row.within == all(c <= d for c, d in zip(row.cost, limit.values, strict=True))


def test_each_cost_is_booked_on_its_own_account(two_cost_data):
    """Seen to fail when the first cost is booked on both."""
    policy = SaFormerAgent.create(two_cost_data, tiny_config(), seed=0).policy()
    policy.reset([1.0, 1.0], [5.0, 9.0])
    policy.act([1.0, 1.0])
    policy.observe(0.0, [0.5, 2.0])
    assert torch.equal(policy.budget.remaining, torch.tensor([[4.5, 7.0]]))
