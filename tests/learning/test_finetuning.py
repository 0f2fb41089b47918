"""Fine-tuning reaches a limit that no data shows, in a task whose optimum is known."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import saformer
from saformer import Listener
from saformer.agents.saformer import SaFormerConfig
from saformer.core.transformer import TrunkConfig
from saformer.data.relabel import relabel
from saformer.data.store import TrajectoryStore
from saformer.envs import allowance
from saformer.training.finetune.config import FinetuneConfig
from saformer.training.loop.config import FitConfig
from saformer.training.loop.presets import Preset

pytestmark = pytest.mark.long

LEAST = 10.0
"""What the cheapest stored episode costs at least."""
LIMIT = 0.7 * LEAST
PAPER = "paper"
"""What is fine-tuned explores and is judged by the paper's rule."""
AGENT = SaFormerConfig(
    window=10, candidates=32, temperature=0.5, trunk=TrunkConfig(layers=2, width=32, dropout=0.0)
)
FIT = FitConfig(updates=800, batch_size=32, learning_rate=3e-3, warmup_updates=100)
CONFIG = FinetuneConfig(episodes=100, updates=100, evaluate_every=1)


def dear_episodes(path: Path) -> Path:
    """Allowance without its cheap episodes, and without signs: to act by the mean is not to stand
    still."""
    episodes = allowance.dataset()
    store = TrajectoryStore.of(
        [replace(e, action=np.abs(e.action)) for e in episodes], episodes.environment
    )
    costs = relabel(store, allowance.criteria()).episode_cost[:, 0]
    return store.filter(costs >= LEAST).save(path).path


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Everything from the data to the last verdict."""
    torch.set_num_threads(1)  # the same sums in the same order, however many cores there are
    folder = tmp_path_factory.mktemp("finetuning")
    quiet = Listener(say=lambda message: None)
    store = dear_episodes(folder / "store")
    run = saformer.train(
        str(store), preset=Preset(AGENT, FIT), out=folder / "offline", device="cpu", listener=quiet
    )
    tuned = saformer.finetune(
        run.path, [LIMIT], config=CONFIG, out=folder / "tuned", device="cpu", listener=quiet
    )
    asked = [f"{LIMIT:g}", "p30", "p50"]
    judged = saformer.evaluate(tuned.run.path, limits=asked, rule=PAPER, device="cpu", seed=3)
    with pytest.warns(UserWarning, match="outside the data"):
        before = saformer.evaluate(run.path, limits=asked, rule=PAPER, device="cpu", seed=3)
    return tuned.outcome, before.verdicts, judged.verdicts


def test_a_limit_30_percent_below_all_data_is_reached(found):
    """It was missed before, and within the allowance it holds; episodes of another seed say so
    too."""
    outcome, before, after = found
    assert not before[0].met
    assert outcome.held
    assert outcome.num_episodes < CONFIG.episodes
    assert after[0].met


def test_at_least_0_7_of_the_optimum_is_earned_there(found):
    """A policy that stands still keeps every limit and earns nothing."""
    _, _, after = found
    assert after[0].mean_return >= 0.7 * allowance.optimal_return(LIMIT)


def test_limits_within_the_data_are_not_forgotten(found):
    _, before, after = found
    for old, new in zip(before[1:], after[1:], strict=True):
        assert new.met
        assert new.mean_return >= 0.95 * old.mean_return
