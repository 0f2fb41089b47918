"""`saformer experiment dsrl`: the benchmark's protocol, by hand and from tiny runs."""

from importlib.util import find_spec

import pytest

from saformer.cli.main import main
from saformer.experiments.catalogue import EXPERIMENTS, find_experiments
from saformer.experiments.dsrl import DSRL, METHODS, RIVALS, TASKS, published_numbers
from saformer.experiments.experiment import Results
from saformer.experiments.plan import SCALES, Setting


def verdict(limit: float, cost: float, episode_return: float) -> dict:
    """A row of two episodes alike."""
    return {
        **{"dataset": TASKS[0], "variant": "ours", "limit_name": f"{limit:g}", "limit": limit},
        **{"costs": [cost] * 2, "returns": [episode_return] * 2, "ended_early": [False] * 2},
        **{"frontier_share": 1.0, "may_end": False, "data_ended_early": 0.0},
    }


def test_scores_are_the_protocols():
    """BallRun, by hand: returns half way and at the top of DSRL's range and at its lowest, costs of
    1.5, 0.5 and 0.25 times the limit. Safe by the mean, and one limit is missed all the same.

    Seen to fail when costs are averaged before they are divided by their limits.
    """
    lowest, highest = 26.339754104614258, 1327.445556640625
    rows = [verdict(10, 15, (lowest + highest) / 2), verdict(20, 10, highest)]
    rows += [verdict(40, 10, lowest), verdict(5, 6, lowest)]
    _, standard, tight, *_ = DSRL.present(Results("dsrl", {"verdicts": rows}, {}, []))
    assert standard.rows[0] == [
        "BallRun",
        "ours",
        "0.50",
        ("0.75", "safe"),
        "2 of 3",
        "67%",
        "0% (0%)",
    ]
    assert tight.rows[0][2:5] == ["0.00", ("1.20", "missed"), "0 of 1"]
    labels = [row[1] for row in standard.rows]
    assert labels[: len(METHODS)] == list(METHODS)
    assert labels[len(METHODS) :] == [
        f"{name}, published, on DSRL's data" for name in ("CDT", "CAPS")
    ]
    assert published_numbers("tight")["BallRun"] == {"CAPS": (0.07, 0.0), "CDT": (0.32, 2.26)}


def test_what_is_needed():
    """Every method on every task under four limits: two runs of ours, one of each rival, and of
    BC-Safe one for each limit.

    Seen to fail when the tight limit is left out.
    """
    needs = DSRL.needs(Setting(SCALES["paper"], seeds=(0, 1, 2)))
    assert len(needs.trainings) == len(TASKS) * 3 * (2 + len(RIVALS) + 4)
    assert {training.updates for training in needs.trainings} == {30_000}
    (ours,) = {
        j.limits for j in needs.judgings if (j.training.dataset, j.variant) == (TASKS[3], "ours")
    }
    assert ours == ("10", "20", "40", "80")
    assert Setting(SCALES["paper"], source="dsrl").task(TASKS[0]) == "dsrl-hdf5:OfflineBallRun-v0"


def test_all_needs_no_simulators_of_others():
    """Seen to fail when it is one of all."""
    assert DSRL in EXPERIMENTS.values()
    assert DSRL not in find_experiments("all")


@pytest.mark.long
def test_the_page_is_made_from_tiny_runs(tmp_path, monkeypatch):
    if find_spec("pybullet") is None or find_spec("bullet_safety_gym") is None:
        pytest.skip("pybullet is not installed: `saformer doctor` says how to get it")
    monkeypatch.chdir(tmp_path)
    command = ["experiment", "dsrl", "--scale", "smoke", "--device", "cpu", "--processes", "0"]
    assert main(command) == 0
    page = (tmp_path / "results" / "smoke" / "dsrl.md").read_text()
    for part in ("standard limits", "tight limits", "on DSRL's data", "BC-Safe", "as published"):
        assert part in page
    assert "missing" not in page
