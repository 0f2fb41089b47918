"""Episodes that are ended from outside, and handed over as soon as they are over."""

import numpy as np
import pytest

from saformer.data.interrupt import Interrupt
from saformer.data.limits import Limit
from saformer.data.relabel import relabel
from saformer.envs.episodes import Hooks
from saformer.envs.lanes import Maker
from saformer.envs.rollout import rollout
from saformer.training.finetune.experience import Target
from saformer.training.finetune.exploration import explore


def explored(agent, data, *, ceiling, discount=1.0):
    """(target, episode, whether it broke the ceiling) of three episodes, as they end."""
    data, ends = relabel(data.store, data.criteria, cost_discount=discount), []
    explore(
        agent.policy(),
        data,
        [Target(Limit(str(limit), (float(limit),)), 1.0) for limit in range(3)],
        first=0,
        seed=0,
        ceiling=ceiling,
        on_end=lambda *end: ends.append(end),
        interrupt=Interrupt(),
        workers=0,
    )
    return ends


def test_an_episode_that_passes_the_ceiling_is_ended_and_unfinished(agent, data):
    """It ends with the step that passed it. Seen to fail when nothing is ended."""
    ends = explored(agent, data, ceiling=(2.0,))
    for _, episode, broke in ends:
        spent = episode.cost[:, 0].cumsum()
        assert spent[-1] > 2.0
        assert (spent[:-1] <= 2.0).all()
        assert not episode.trajectory.finished
        assert broke
    assert sorted(target.limit.name for target, _, _ in ends) == ["0", "1", "2"]


def test_without_a_ceiling_nothing_is_ended(agent, data):
    ends = explored(agent, data, ceiling=None)
    assert [len(episode.trajectory) for _, episode, _ in ends] == [20] * 3
    assert all(episode.trajectory.terminated for _, episode, _ in ends)
    assert not any(broke for _, _, broke in ends)


def test_a_discounted_ceiling_counts_as_the_budget_does(agent, data):
    """Seen to fail when costs are not discounted."""
    for _, episode, broke in explored(agent, data, ceiling=(1.5,), discount=0.5):
        spent = (0.5 ** np.arange(len(episode.cost)) * episode.cost[:, 0]).cumsum()
        assert (spent[:-1] <= 1.5).all()
        assert spent[-1] > 1.5 if broke else episode.trajectory.terminated


@pytest.mark.parametrize("ended_early", [[], [0, 2]])
def test_what_is_handed_over_is_what_is_returned(agent, data, ended_early):
    """Seen to fail when rows of other lanes get in."""
    kept = {}
    episodes = rollout(
        agent.policy(),
        Maker(data.store.environment, data.criteria),
        [np.array([float(limit)]) for limit in range(3)],
        list(range(3)),
        horizon=20,
        hooks=Hooks(
            stop=lambda lanes, cost: np.isin(lanes, ended_early),
            ended=lambda lane, episode: kept.update({lane: episode}),
        ),
        workers=0,
    )
    assert [len(episode.trajectory) < 20 for episode in episodes] == [
        lane in ended_early for lane in range(3)
    ]
    for lane, episode in enumerate(episodes):
        assert np.array_equal(episode.trajectory.digest(), kept[lane].trajectory.digest())
        for name in ("cost", "num_rounds", "fell_back", "limit"):
            assert np.array_equal(getattr(episode, name), getattr(kept[lane], name)), name
        assert episode.seed == kept[lane].seed
