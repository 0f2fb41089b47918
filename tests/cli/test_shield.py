"""`saformer evaluate --shield`, what stands beside it, and several constraints from the command
line."""

import json

import pytest

from saformer.cli.main import main
from saformer.envs import allowance
from saformer.report.table import verdict_table
from tests.cli.test_cli import tiny_run

TINY = [
    "--updates",
    "3",
    "--batch-size",
    "8",
    "--checkpoint-every",
    "2",
    "--width",
    "16",
    "--layers",
    "1",
    "--candidates",
    "4",
]


def evaluate(capsys, path, *flags: str) -> dict:
    capsys.readouterr()
    assert main(["evaluate", str(path), "--json", *flags]) == 0
    return json.loads(
        capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON")
    )


def test_with_without_and_beside_the_reference(tmp_path, capsys):
    """Under a tight limit: all within with the shield, and how often it was needed is said. Seen to
    fail when the row of the reference has no shield, when the share of shielded steps is lost on
    its way, and when the options that are kept are those without the shield.
    """
    assert tiny_run(tmp_path / "run") == 0
    found = evaluate(
        capsys,
        tmp_path / "run",
        "--limits",
        "p0",
        "p50",
        "--episodes",
        "3",
        "--both",
        "--reference",
    )
    plain, reference = found["beside"]
    kept = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert (kept["options"]["rule"], kept["options"]["candidates"]) == ("feasible", 1)
    assert [one["name"] for one in (found, plain, reference)] == [
        "the policy + shield", "the policy", "limit-blind mean action + shield",
    ]  # fmt: skip
    for one in (found, reference):
        assert [verdict["within"] for verdict in one["verdicts"]] == [1.0, 1.0]
        assert all(row["within"] for row in one["episodes"])
    assert not plain["verdicts"][0]["met"]
    assert plain["verdicts"][0]["shielded"] == 0
    assert 0 < found["verdicts"][0]["shielded"] <= 1
    assert [row["seed"] for row in plain["episodes"]] == [row["seed"] for row in found["episodes"]]
    tables = verdict_table(found)  # one each: a row of all would not fit into 80 columns
    names = ["the policy + shield", "the policy", "limit-blind mean action + shield"]
    assert [(table.title, table.row_count) for table in tables] == list(
        zip(names, [2, 2, 3], strict=True)
    )
    page = (tmp_path / "run" / "report.html").read_text()
    assert "limit-blind mean action + shield" in page
    assert "judge that without the shield" in page


def test_without_a_shield_nothing_speaks_of_one(tmp_path, capsys):
    assert tiny_run(tmp_path / "run") == 0
    found = evaluate(capsys, tmp_path / "run", "--limits", "p50", "--episodes", "2")
    assert (found["name"], found["beside"]) == ("the policy", [])
    assert "hield" not in (tmp_path / "run" / "report.html").read_text().replace('"shielded"', "")


def test_a_shield_alone_has_its_column(tmp_path, capsys):
    assert tiny_run(tmp_path / "run") == 0
    capsys.readouterr()
    assert (
        main(["evaluate", str(tmp_path / "run"), "--limits", "p1", "--episodes", "2", "--shield"])
        == 0
    )
    said = capsys.readouterr().out
    assert "shielded" in said
    assert "policy" not in said


@pytest.mark.filterwarnings("ignore:limit .* lies outside the data")
def test_two_constraints_from_the_command_line(tmp_path, capsys):
    """Training that is watched, limits for each, one beyond the data, and a page with a panel for
    each cost."""
    allowance.dataset(episodes=60, dimensions=2).save(tmp_path / "store")
    criteria = ["--criteria", "torque[0]", "torque[1]"]
    run = ["--out", str(tmp_path / "run"), "--evaluate-every", "2"]
    assert main(["train", str(tmp_path / "store"), *criteria, *TINY, *run]) == 0
    found = evaluate(
        capsys,
        tmp_path / "run",
        "--limits",
        "p20",
        "p50,9",
        "0.01,5",
        "--episodes",
        "2",
        "--shield",
    )
    assert found["criteria"] == ["torque[0]", "torque[1]"]
    assert [len(verdict["mean_cost"]) for verdict in found["verdicts"]] == [2, 2, 2]
    assert all(row["within"] for row in found["episodes"])
    assert found["verdicts"][2]["frontier"] is None, "nothing in the data costs so little"
    assert len(found["rank_correlations"]) == 2
    page = (tmp_path / "run" / "report.html").read_text()
    assert "torque[1] (green: within the limit)" in page
    assert "spent (torque[1])" in page
    assert "cost 2 while training" in page


def test_torque_and_speed_of_a_robot(tmp_path, capsys):
    """Real data and a real simulator; speed is no cost that a shield could enforce, and says so."""
    speed = "above(state[5], 1.0)"
    task = ["train", "hopper-medium-replay", "--data-steps", "3000", "--criteria", "torque", speed]
    assert main([*task, *TINY, "--evaluate-every", "0", "--out", str(tmp_path / "run")]) == 0
    found = evaluate(
        capsys, tmp_path / "run", "--limits", "p50", "p50,p20", "--episodes", "2", "--workers", "0"
    )
    assert found["criteria"] == ["torque", speed]
    values = [verdict["limit"]["values"] for verdict in found["verdicts"]]
    assert values[0][0] == values[1][0]
    assert values[0][1] > values[1][1]
    assert all(verdict["met"] == _all_met(verdict) for verdict in found["verdicts"])
    assert main(["evaluate", str(tmp_path / "run"), "--shield"]) == 1
    assert "no shield can enforce" in capsys.readouterr().err


def _all_met(verdict: dict) -> bool:
    return all(
        cost <= limit
        for cost, limit in zip(verdict["mean_cost"], verdict["limit"]["values"], strict=True)
    )


@pytest.mark.parametrize("flag", ["--shield", "--both", "--reference"])
def test_no_shield_without_rollouts(tmp_path, capsys, flag):
    """An offline evaluation has nothing to shield; whoever asks is told, not given figures without
    it."""
    assert tiny_run(tmp_path / "run", "--held-out", "0.2") == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--offline", flag]) == 1
    assert f"{flag} needs rollouts" in " ".join(capsys.readouterr().err.split())
