"""What agents of single steps must keep to beyond the contracts of all: BCQ-Lagrangian, CPQ and
COptiDICE."""

from __future__ import annotations

from dataclasses import replace

import pytest

from saformer.agents.registry import create_agent
from saformer.data.relabel import relabel
from saformer.training.loop.config import FitConfig
from tests.alone import Trainer
from tests.contracts.cases import CASES

every_agent = pytest.mark.parametrize("kind", ["bcq_lag", "cpq", "coptidice"])


def make(kind: str, data, **changes):
    return create_agent(
        data, replace(CASES[kind].config(0.0, data.cost.shape[1]), **changes), seed=0
    )


@every_agent
def test_one_limit_must_be_given_for_each_constraint(data, two_cost_data, kind):
    with pytest.raises(ValueError, match=r"a limit for each of 1 constraints; got \(\)"):
        make(kind, data, limit=())
    with pytest.raises(ValueError, match="a limit for each of 2 constraints"):
        make(kind, two_cost_data, limit=(5.0,))
    with pytest.raises(ValueError, match="finite number of at least 0"):
        make(kind, data, limit=(-1.0,))
    with pytest.raises(ValueError, match=r"the data counts costs at 1\.0, the agent at 0\.99"):
        make(kind, data, cost_discount=0.99)


@every_agent
@pytest.mark.parametrize("cost_discount", [1.0, 0.9])
def test_several_constraints_and_discounted_costs(two_cost_data, kind, cost_discount):
    data = relabel(two_cost_data.store, two_cost_data.criteria, cost_discount=cost_discount)
    agent = make(kind, data, limit=(5.0, 8.0), cost_discount=cost_discount)
    found = Trainer(agent, agent.sampler(data), FitConfig(batch_size=16), seed=0).step()
    assert {"expected_cost_0", "expected_cost_1"} <= {name.rpartition("/")[2] for name in found}
