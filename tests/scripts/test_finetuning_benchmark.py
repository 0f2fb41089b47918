"""What `benchmarks.finetuning` asks, and how it shows the answers."""

import numpy as np
import pytest
from benchmarks.finetuning import RATIOS, Question
from scripts.figures.finetuning import figure, table

from saformer.data.relabel import relabel
from saformer.data.store import TrajectoryStore
from saformer.envs import allowance
from saformer.experiments.datasets import make_upper


def test_five_limits_lie_below_the_cut_data_and_four_in_it(data, tmp_path):
    make_upper(allowance.dataset(episodes=200), tmp_path / "cut")
    question = Question.of(relabel(TrajectoryStore.open(tmp_path / "cut"), allowance.criteria()))
    costs, returns = data.episode_cost[:, 0], data.episode_return
    p10, p20 = np.percentile(costs, [10, 20])
    wanted = [*(p10 * ratio for ratio in RATIOS), *np.percentile(costs, [10, 20, 30, 50])]
    assert list(question.limits.values()) == pytest.approx(wanted, rel=1e-5)
    assert question.below == tuple(question.limits)[:5]
    assert question.reference == pytest.approx(np.median(returns[(costs >= p10) & (costs <= p20)]))


def test_data_that_was_not_cut_is_refused(data):
    with pytest.raises(ValueError, match="--only-data"):
        Question.of(data)


def test_the_table_has_a_column_per_limit_and_the_figure_both_lines():
    def verdict(cost: float, earned: float) -> dict:
        return {"mean_cost": [cost], "mean_return": earned}

    below = {"before": verdict(99.0, 5.0), "after": verdict(88.0, 4.0), "least_return": 3.0}
    within = {"before": verdict(94.0, 6.0), "after": verdict(96.5, 5.0), "least_return": None}
    rows = [
        {"limit": 90.0, "in_sample": False, **below, "met": True, "earned": True},
        {"limit": 95.0, "in_sample": True, **within, "met": False, "earned": True},
    ]
    found = {
        **{"task": "some-task", "limits": rows, "by_ours": rows[::-1], "limits_met": 1},
        **{"limits_met_before": 1, "new_trajectories": 20, "broke_ceiling": 0.25},
        **{"done": {"kept_after": 10}, "seconds": {"exploring": 30.0}},
    }
    lines = table(found).splitlines()
    assert lines[1].split()[-2:] == ["90", "95"]
    assert lines[2].split()[-2:] == ["99", "94"]
    assert lines[3].split()[-2:] == ["88", "96.5"]
    assert lines[4].split() == ["met", "yes", "NO"]
    assert lines[12].split() == ["met", "NO", "yes"], "the same policies by our own rule"
    assert "25% of which broke the ceiling" in lines[-2]
    drawn = figure(found)
    assert "fine-tuned" in drawn
    assert "some-task" in drawn
