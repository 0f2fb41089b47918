"""Agents of single steps learn the toy task under the limit that they are trained for."""

import numpy as np
import pytest
import torch

from saformer.agents.bcq_lag import BCQLagAgent, BCQLagConfig
from saformer.agents.coptidice import COptiDICEAgent, COptiDICEConfig
from saformer.agents.cpq import CPQAgent, CPQConfig
from saformer.data.limits import Limit
from saformer.data.relabel import RelabelledStore, relabel
from saformer.envs import allowance
from saformer.evaluation.evaluate import evaluate_policy
from saformer.evaluation.verdict import Verdict
from saformer.training.loop.config import FitConfig
from tests.alone import fit

LIMIT = 10.0
SMALL = {"limit": (LIMIT,), "hidden": (64, 64), "dropout": 0.0}


@pytest.fixture(scope="module")
def data() -> RelabelledStore:
    return relabel(allowance.dataset(), allowance.criteria())


def learnt(agent, data: RelabelledStore, *, updates: int) -> Verdict:
    """Twenty episodes after so many updates."""
    torch.set_num_threads(1)  # the same sums in the same order, however many cores there are
    config = FitConfig(updates=updates, batch_size=64, learning_rate=3e-3, warmup_updates=100)
    fit(agent, agent.sampler(data), config, seed=0)
    return evaluate_policy(agent.policy(), data, [Limit("10", (LIMIT,))], episodes=20).verdicts[0]


@pytest.mark.long
def test_bcq_lagrangian_meets_its_limit_and_earns_four_fifths_of_the_optimum(data):
    """Measured with seeds 0, 1: 0.93, 0.88 of the limit, 0.95, 0.89 of the optimum.

    Before, it swings; without a multiplier it costs 14 and more. Actions have either sign, so codes
    are drawn from further out than robots need.
    """
    config = BCQLagConfig(**SMALL, candidates=5, code_bound=2.0, multiplier_learning_rate=2e-3)
    verdict = learnt(BCQLagAgent.create(data, config, seed=0), data, updates=2000)
    assert verdict.mean_cost[0] <= 1.1 * LIMIT
    assert verdict.mean_return >= 0.8 * allowance.optimal_return(LIMIT)


def test_coptidice_meets_its_limit_and_earns_four_fifths_of_the_optimum(data):
    """Measured with seeds 0, 1: 0.95, 0.98 of the limit, 0.90, 0.91 of the optimum."""
    config = COptiDICEConfig(**SMALL, components=4, sample=True, multiplier_learning_rate=2e-3)
    verdict = learnt(COptiDICEAgent.create(data, config, seed=0), data, updates=600)
    assert verdict.mean_cost[0] <= 1.1 * LIMIT
    assert verdict.mean_return >= 0.8 * allowance.optimal_return(LIMIT)


@pytest.mark.long
@pytest.mark.parametrize(("recovery", "updates"), [(False, 800), (True, 600)])
def test_cpq_does_what_its_own_rule_says_if_unsafe_actions_recover(data, recovery, updates):
    """The rule earns 0.68 of the optimum. With recovery, seeds 1, 2 cost 1.04, 0.99 of the limit
    and earn what the rule does.

    As published nothing moves unsafe actions: seeds 0, 1, 2 cost 1.98, 0.97, 2.00 of the limit and
    earn 1.33, 0.44, 1.35 of the optimum.
    """
    config = CPQConfig(**SMALL, recovery=recovery)
    verdict = learnt(CPQAgent.create(data, config, seed=0), data, updates=updates)
    keeps_limit = verdict.mean_cost[0] <= 1.1 * LIMIT
    earns = verdict.mean_return >= 0.9 * return_by_cpqs_rule(LIMIT)
    assert (keeps_limit and earns) == recovery


def return_by_cpqs_rule(limit: float) -> float:
    """What CPQ's rule earns: in each state the action of the highest value among those whose cost
    to come is safe.

    Solved from the last step to the first, for strengths in steps of 0.001. Where nothing is safe,
    nothing is spent.
    """
    strengths = np.linspace(0, 1, 1001)
    cost_to_come, value, earned = 0.0, 0.0, 0.0
    for step in reversed(range(allowance.HORIZON)):
        share = limit * (allowance.HORIZON - step) / allowance.HORIZON
        safe = strengths + cost_to_come <= share + 1e-9
        values = np.where(safe, allowance.PRICES[step] * strengths + 0.99 * value, -np.inf)
        chosen = strengths[values.argmax()] if safe.any() else 0.0
        cost_to_come += chosen
        value = allowance.PRICES[step] * chosen + 0.99 * value
        earned += allowance.PRICES[step] * chosen
    return earned
