"""`saformer experiment offline --scale smoke`: estimates beside rollouts, from tiny runs."""

import json

from saformer.cli.main import main
from saformer.experiments.offline import ALL, CHOSEN_ON, CONFIRMED_ON, GUESSES, choices_of


def test_estimates_stand_beside_rollouts(tmp_path, monkeypatch):
    """By three rules, CDT and BC-Safe. Seen to fail where a row lacks its estimate."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("saformer.evaluation.offline.dynamics.UPDATES", (20, 20))
    smoke = ["--scale", "smoke", "--device", "cpu", "--processes", "0"]
    assert main(["experiment", "offline", *smoke]) == 0
    made = json.loads((tmp_path / "results/smoke/offline.json").read_text())
    assert not made["failed"]
    rows = made["rows"]["verdicts"]
    assert len(rows) == 5 * 4
    for row in rows:
        low, high = row["estimate"]["interval"]
        assert low <= row["estimate"]["cost"] <= high
        forecast = row["estimate"]["first_forecast"]
        assert (forecast is not None) == (row["agent"] == "saformer")
    page = (tmp_path / "results/smoke/offline.html").read_text()
    for shown in (*GUESSES, "not supported, of errors above 25%", "Every cell"):
        assert shown.replace("'", "&#39;") in page


def test_each_half_has_some_of_every_kind():
    """Seen to fail with the first half of the list."""
    assert not set(CHOSEN_ON) & set(CONFIRMED_ON)
    for half in (CHOSEN_ON, CONFIRMED_ON):
        kinds = ("plant-", "hopper", "walker2d", "halfcheetah", "-effort", "dsrl:")
        assert all(any(kind in name for name in half) for kind in kinds)
    assert len(ALL) >= 15


def test_a_choice_is_by_estimates_and_judged_by_rollouts():
    """Two ways under two limits, one of which has nothing to earn; a dataset without anything.

    Seen to fail when the choice is made by rollouts, and when nothing to earn counts as 0.
    """

    def row(dataset: str, way: str, rolled_out: float | None, estimated: float | None) -> dict:
        own = {"dataset": dataset, "variant": way, "safe_share": rolled_out}
        return {**own, "estimate": {"safe_share": estimated}}

    rows = [row("a", "x", 0.5, 0.9), row("a", "x", None, None)]
    rows += [row("a", "y", 0.6, 0.2), row("a", "y", None, None), row("b", "x", None, None)]
    (choice,) = choices_of(rows)
    assert (choice.dataset, choice.chosen, choice.best) == ("a", "x", "y")
    assert choice.shares == (0.5, 0.6)
