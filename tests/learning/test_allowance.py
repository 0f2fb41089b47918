"""SaFormer learns the toy task: one model, ten limits it never saw, a known optimum."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from saformer.agents.saformer import SaFormerAgent, SaFormerConfig
from saformer.core.rules import PaperOptions
from saformer.core.transformer import TrunkConfig
from saformer.data.limits import Limit
from saformer.data.relabel import RelabelledStore, relabel
from saformer.data.sampling import WindowSampler
from saformer.envs import allowance
from saformer.evaluation.evaluate import Evaluation, evaluate_policy
from saformer.training.loop.config import FitConfig
from tests.alone import fit

CONFIG = SaFormerConfig(window=20, trunk=TrunkConfig(layers=2, width=32, dropout=0.0))
FIT = FitConfig(updates=6000, batch_size=64, learning_rate=3e-3, warmup_updates=100)
# Actions have a random sign, so their Gaussian's mean is 0: docs/deviations.md, 10.
OPTIONS = PaperOptions(
    candidates=64, temperature=1.2, action_noise="two_point", past_return="highest"
)


@pytest.fixture(scope="module")
def data() -> RelabelledStore:
    return relabel(allowance.dataset(), allowance.criteria())


@pytest.fixture(scope="module")
def found(data: RelabelledStore) -> Evaluation:
    return learnt(data, FIT)


def learnt(data: RelabelledStore, config: FitConfig) -> Evaluation:
    """Ten limits from the 5th to the 95th percentile of the data, 20 episodes each."""
    torch.set_num_threads(1)  # the same sums in the same order, however many cores there are
    agent = SaFormerAgent.create(data, CONFIG, seed=0)
    fit(agent, WindowSampler(data, window=CONFIG.window), config, seed=0)
    limits = [
        Limit(f"{d:.2f}", (float(d),))
        for d in np.linspace(*np.percentile(data.episode_cost, [5, 95]), 10)
    ]
    return evaluate_policy(agent.policy(OPTIONS), data, limits, episodes=20)


@pytest.mark.long
def test_every_unseen_limit_is_met_within_5_percent(found):
    """A policy that ignores the limit spends 10 on average and fails below that."""
    assert_met_within_5_percent(found)


def assert_met_within_5_percent(found: Evaluation) -> None:
    for verdict in found.verdicts:
        assert verdict.mean_cost[0] <= 1.05 * verdict.limit.values[0], verdict.limit.name


def shares_of_the_optimum(found: Evaluation) -> list[float]:
    return [v.mean_return / allowance.optimal_return(v.limit.values[0]) for v in found.verdicts]


@pytest.mark.long
def test_it_earns_close_to_the_optimum(found):
    """A policy that fears the limit earns nothing; the data's own median is 0.84. Measured: 0.91
    (docs/results.md)."""
    shares = shares_of_the_optimum(found)
    assert np.mean(shares) >= 0.85, np.round(shares, 2)


@pytest.mark.long
def test_less_than_a_minute_of_training_earns_four_fifths_of_the_optimum(data):
    """Measured: 1.02 of a limit at most, 0.82 of the optimum; with a window of 10 it earns 0.75."""
    found = learnt(data, replace(FIT, updates=1200, batch_size=32))
    assert_met_within_5_percent(found)
    shares = shares_of_the_optimum(found)
    assert np.mean(shares) >= 0.8, np.round(shares, 2)


@pytest.mark.long
def test_what_it_spends_follows_the_limit(found):
    assert found.rank_correlations[0] > 0.98
