"""The demo's policy obeys. Two minutes on two cores for each seed, so not in CI."""

import json

import pytest

from saformer.cli.main import main


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_demo_obeys_its_limits(tmp_path, seed):
    assert main(["demo", "--seed", str(seed), "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / f"run-full-seed{seed}" / "evaluation.json").read_text())
    tight, *_, loose = found["verdicts"]
    limits = loose["limit"]["values"][0] - tight["limit"]["values"][0]
    assert found["rank_correlation"] >= 0.8
    assert loose["mean_cost"][0] - tight["mean_cost"][0] >= 0.5 * limits
    assert found["limits_met"] == len(found["verdicts"])
    assert all(verdict["within"] >= 0.95 for verdict in found["verdicts"])
