"""A run that still learns, on the page."""

import json
import os
import shutil

import pytest

from saformer.live.play.company import Company
from saformer.live.play.learning import Learning
from saformer.runs.run import Run
from tests.live.conftest import page_of, serving


@pytest.fixture
def unfinished(run, tmp_path):
    """As it is while it trains."""
    path = tmp_path / "run"
    shutil.copytree(run, path)
    (path / "done.json").unlink()
    return path


def test_curves_and_looks_are_told_when_they_grow(unfinished):
    """Seen to fail when the file's size is not asked for."""
    learning = Learning(Run(unfinished))
    first = learning.look()
    assert first is not None
    assert not first["done"]
    assert {phase["name"] for phase in first["phases"]} == {"actor", "critic"}
    assert learning.look() is None
    look = {"p50": {"return": 3.0, "cost": [4.0], "limit": [5.0]}}
    with Run(unfinished).metrics_path.open("a") as file:
        file.write(json.dumps({"update": 9, "evaluation": look}) + "\n")
    grown = learning.look()
    assert grown["update"] == 9
    assert grown["looks"] == [
        {"name": "p50", "limit": 5.0, "cost": [[9, 4.0]], "return": [[9, 3.0]]}
    ]


def test_newer_weights_are_read_for_the_next_episode(unfinished):
    """Seen to fail when a run is opened only once."""
    company = Company([str(unfinished)], device="cpu")
    before = company.trained(str(unfinished))
    assert company.trained(str(unfinished)) is before
    path = Run(unfinished).checkpoint_path
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))
    assert company.trained(str(unfinished)) is not before


def test_episodes_follow_each_other_until_it_has_finished(unfinished, run):
    """Then one more, by the final weights. Seen to fail when the stage pauses after the first."""
    with serving(unfinished) as server, page_of(server) as page:
        page.wait("learning")
        page.ask(do="speed", speed=60.0)
        page.wait("whole", lambda event: event["lanes"][0]["frame"]["step"] == 0)
        shutil.copy(run / "done.json", unfinished / "done.json")
        assert page.wait("learning", lambda event: event["done"])
        page.wait("whole", lambda event: event["lanes"][0]["frame"]["step"] == 0)
        assert page.wait("status", lambda event: not event["playing"])
