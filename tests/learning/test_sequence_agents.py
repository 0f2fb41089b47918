"""DT, CDT and BC-Safe learn the toy task, each what it can: a known optimum, some seconds each."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from saformer.agents.agent import Agent
from saformer.agents.bc_safe import BCSafeAgent, BCSafeConfig
from saformer.agents.cdt import CDTAgent, CDTConfig, CDTOptions
from saformer.agents.dt import DTAgent, DTConfig, DTOptions
from saformer.agents.sequence import SequenceOptions
from saformer.core.transformer import TrunkConfig
from saformer.data.limits import Limit, parse_limit
from saformer.data.relabel import RelabelledStore, relabel
from saformer.data.store import TrajectoryStore
from saformer.envs import allowance
from saformer.evaluation.evaluate import Evaluation, evaluate_policy
from saformer.evaluation.verdict import Verdict
from saformer.training.loop.config import FitConfig
from tests.alone import fit

TRUNK = TrunkConfig(layers=2, width=32, dropout=0.0)
FIT = FitConfig(updates=1000, batch_size=32, learning_rate=3e-3, warmup_updates=100)


@pytest.fixture(scope="module")
def data() -> RelabelledStore:
    torch.set_num_threads(1)  # the same sums in the same order, however many cores there are
    return relabel(allowance.dataset(), allowance.criteria())


@pytest.fixture(scope="module")
def limits(data: RelabelledStore) -> list[Limit]:
    """Ten, from the 5th to the 95th percentile of the data."""
    return [
        Limit(f"{d:.2f}", (float(d),))
        for d in np.linspace(*np.percentile(data.episode_cost, [5, 95]), 10)
    ]


def learnt(agent: Agent, data: RelabelledStore) -> Agent:
    return fit(agent, agent.sampler(data), FIT, seed=0)


def optimum(verdict: Verdict) -> float:
    return allowance.optimal_return(verdict.limit.values[0])


def of_one_sign(data: RelabelledStore) -> RelabelledStore:
    """The same strengths, prices and costs; only the sign of the actions is not random."""
    parts = [replace(trajectory, action=np.abs(trajectory.action)) for trajectory in data.store]
    return relabel(TrajectoryStore.of(parts, data.store.environment), data.criteria)


@pytest.mark.parametrize("action", [pytest.param("point", marks=pytest.mark.long), "gaussian"])
def test_dt_earns_what_it_is_asked_for(data, limits, action):
    """Asked for the optimum's return, at least 0.9 of it, at whatever cost. Measured: 0.97 and
    more.

    Actions have a random sign, so the point that Eq. 2 learns is 0, an action nobody took (its
    return: 0.02 of the optimum's): points are learnt where signs are not random, Gaussians (one
    deviation above or below) where they are.
    """
    learnt_from = of_one_sign(data) if action == "point" else data
    agent = learnt(
        DTAgent.create(learnt_from, DTConfig(window=10, action=action, trunk=TRUNK), seed=0),
        learnt_from,
    )
    for limit in limits[::3]:
        target = allowance.optimal_return(limit.values[0])
        options = DTOptions(
            target_return=target, noise="none" if action == "point" else "two_point"
        )
        verdict = evaluate_policy(agent.policy(options), data, [limit], episodes=20).verdicts[0]
        assert verdict.mean_return >= 0.9 * target, limit.name


@pytest.fixture(scope="module")
def cdt(data: RelabelledStore, limits: list[Limit]) -> Evaluation:
    agent = learnt(CDTAgent.create(data, CDTConfig(window=10, trunk=TRUNK), seed=0), data)
    return evaluate_policy(agent.policy(CDTOptions(noise="two_point")), data, limits, episodes=20)


@pytest.mark.long
def test_cdt_keeps_every_limit_and_earns(cdt):
    """Ten limits within 5%, 0.8 of the optimum. Measured: 1.02 of the limit at most, 0.91."""
    for verdict in cdt.verdicts:
        assert verdict.mean_cost[0] <= 1.05 * verdict.limit.values[0], verdict.limit.name
    assert np.mean([verdict.mean_return / optimum(verdict) for verdict in cdt.verdicts]) >= 0.8
    assert cdt.rank_correlations[0] > 0.98


@pytest.mark.parametrize("name", ["p20", pytest.param("p50", marks=pytest.mark.long)])
def test_bc_safe_keeps_its_limit_and_earns(data, name):
    """Within 5%, 0.8 of the optimum, when it learns from the best tenth. Measured: 0.84 and 0.83.

    From all that stayed within the limit, as in the original, it earns 0.6: most of them spent far
    less.
    """
    limit = parse_limit(name, data)
    agent = learnt(
        BCSafeAgent.create(data, BCSafeConfig(limit=limit.values, best=0.1, trunk=TRUNK), seed=0),
        data,
    )
    # a deviation is the root mean square of a strength, a little more than its mean
    options = SequenceOptions(noise="two_point", temperature=0.95)
    verdict = evaluate_policy(agent.policy(options), data, [limit], episodes=20).verdicts[0]
    assert verdict.mean_cost[0] <= 1.05 * limit.values[0]
    assert verdict.mean_return >= 0.8 * optimum(verdict)
