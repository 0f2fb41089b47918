"""Limits are kept on plants of 96, 288 and 200 steps: a tiny room learns here, the others' weights
are kept beside this file (`saformer train plant-tank --width 32 --updates 2500`, then `export`)."""

from pathlib import Path

import pytest

import saformer

WEIGHTS = Path(__file__).parent / "weights"
LIMITS = ["p10", "p50", "p90"]


def assert_kept(evaluation) -> None:
    """All limits, in all episodes, earning more than doing nothing does."""
    idle = evaluation.nothing.verdicts[0].mean_return
    for verdict in evaluation.verdicts:
        assert verdict.met, verdict.limit.name
        assert verdict.within == 1.0, verdict.limit.name
        assert verdict.mean_return > 2 * idle, verdict.limit.name
    tight, *_, loose = evaluation.verdicts
    assert loose.mean_cost[0] > 1.5 * tight.mean_cost[0]


def test_a_tiny_room_keeps_its_limits(tmp_path, monkeypatch):
    """Seen to fail when doing nothing is no candidate, and when verification is left out
    (`rule="none"`)."""
    monkeypatch.setattr("saformer.rules.fitting.UPDATES", (150, 150))
    size = {"width": 16, "updates": 400, "evaluate_every": 0}
    saformer.train("plant-room", out=tmp_path / "run", device="cpu", **size)
    trained = saformer.load(tmp_path / "run", device="cpu", workers=0)
    assert_kept(trained.judge(LIMITS, episodes=5)[0])


@pytest.mark.parametrize("plant", ["battery", pytest.param("tank", marks=pytest.mark.long)])
def test_longer_plants_keep_their_limits(plant, tmp_path):
    """Seen to fail when doing nothing is no candidate, and when verification is left out."""
    trained = saformer.load(WEIGHTS / plant, device="cpu", out=tmp_path, workers=0)
    assert_kept(trained.judge(LIMITS, episodes=6)[0])
