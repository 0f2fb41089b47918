"""Episodes that are ended from outside, and handed over as soon as they are over."""

import numpy as np
import pytest

from saformer.envs.lanes import Maker
from saformer.envs.rollout import Hooks, rollout
from saformer.training.finetune.exploration import _Watch
from saformer.training.loop.interrupt import Interrupt


def play(agent, data, *, ceiling, lanes=3, discount=1.0):
    watch, kept = _Watch(lanes, ceiling, discount, Interrupt()), {}
    episodes = rollout(
        agent.policy(),
        Maker(data.store.environment, data.criteria),
        [np.array([float(limit)]) for limit in range(lanes)],
        list(range(lanes)),
        horizon=20,
        hooks=Hooks(stop=watch, ended=lambda lane, episode: kept.update({lane: episode})),
        workers=0,
    )
    return episodes, kept, watch


def test_an_episode_that_passes_the_ceiling_is_ended_and_unfinished(agent, data):
    """It ends with the step that passed it. Seen to fail when nothing is ended."""
    episodes, kept, watch = play(agent, data, ceiling=(2.0,))
    for episode in episodes:
        spent = episode.cost[:, 0].cumsum()
        assert spent[-1] > 2.0
        assert (spent[:-1] <= 2.0).all()
        assert not episode.trajectory.finished
    assert watch.broke.all()
    assert sorted(kept) == [0, 1, 2]


def test_without_a_ceiling_nothing_is_ended(agent, data):
    episodes, _, watch = play(agent, data, ceiling=None)
    assert [len(episode.trajectory) for episode in episodes] == [20] * 3
    assert all(episode.trajectory.terminated for episode in episodes)
    assert not watch.broke.any()


def test_a_discounted_ceiling_counts_as_the_budget_does(agent, data):
    """Seen to fail when costs are not discounted."""
    episodes, _, _ = play(agent, data, ceiling=(1.5,), discount=0.5)
    for episode in episodes:
        spent = (0.5 ** np.arange(len(episode.cost)) * episode.cost[:, 0]).cumsum()
        assert (spent[:-1] <= 1.5).all()
        assert spent[-1] > 1.5 or episode.trajectory.terminated


@pytest.mark.parametrize("ceiling", [None, (3.0,)])
def test_what_is_handed_over_is_what_is_returned(agent, data, ceiling):
    """Seen to fail when rows of other lanes get in."""
    episodes, kept, _ = play(agent, data, ceiling=ceiling)
    for lane, episode in enumerate(episodes):
        assert np.array_equal(episode.trajectory.digest(), kept[lane].trajectory.digest())
        for name in ("cost", "num_rounds", "fell_back", "limit"):
            assert np.array_equal(getattr(episode, name), getattr(kept[lane], name)), name
        assert episode.seed == kept[lane].seed
