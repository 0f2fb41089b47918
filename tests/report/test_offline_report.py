"""The page and the table that say what held-out logs show."""

import re
from dataclasses import asdict

import pytest
from rich.console import Console

from saformer.agents.saformer import SaFormerAgent
from saformer.data.limits import Limit, parse_limit
from saformer.evaluation.offline.held_out import NO_ROLLOUT, judge_offline
from saformer.report.offline import offline_table, write_offline_report
from saformer.runs.run import Run
from saformer.runs.spec import RunSpec
from saformer.training.loop.config import FitConfig
from tests.conftest import tiny_config


@pytest.fixture
def judged(two_cost_data, tmp_path) -> Run:
    """A run whose untrained model was judged, also under a limit that no log keeps."""
    data, config = two_cost_data, tiny_config()
    agent = SaFormerAgent.create(data, config, seed=0)
    names = tuple(criterion.name for criterion in data.criteria)
    spec = RunSpec(
        task="logs of <pump> 3",
        agent="saformer",
        agent_config=asdict(config),
        fit_config=asdict(FitConfig()),
        seed=0,
        criteria=names,
        data_steps=None,
        data_seed=0,
        data_fingerprint="",
        dimensions=agent.dimensions,
    )
    run = Run.create(tmp_path / "run", spec)
    limits = [parse_limit("p50", data), Limit("none", (0.0, 0.0))]
    found = judge_offline(agent.model, data, data, limits, window=4, max_windows=300)
    run.write_json("offline.json", found.plain())
    return run


def test_the_page_says_that_there_was_no_rollout(judged, tmp_path):
    """Seen to fail without the label."""
    text = write_offline_report(
        judged, tmp_path / "pages" / "report.html", command="saformer evaluate"
    ).read_text()
    assert NO_ROLLOUT in text
    assert "logs of &lt;pump&gt; 3" in text
    assert text.count("<svg") == 4, "one day, limits, calibration, course"
    assert text.index("One episode, logged and proposed") < text.index("<h2>Limits")
    assert "few training trajectories lie within none (0)" in text
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL).lower().split()
    assert not re.search(r"(src|href)=\"?https?:", text), "self-contained"


def test_actions_have_the_names_of_their_columns(judged, tmp_path):
    """Seen to fail when they are numbered alone."""
    offline = judged.read_json("offline.json")
    assert offline["day"]["actions"] == [], "this data is of no log"
    offline["day"]["actions"] = ["Ventil [%]"]
    judged.write_json("offline.json", offline)
    page = write_offline_report(judged, tmp_path / "report.html").read_text()
    assert "Ventil [%]" in page
    assert "action[1]" in page


def test_the_table_shows_each_limit_and_what_is_not_known(judged):
    """Seen to fail when an unknown share is shown as nothing missed."""
    console = Console(width=160)
    with console.capture() as capture:
        console.print(offline_table(judged.read_json("offline.json")))
    lines = capture.get().splitlines()
    assert " ".join(lines).startswith("no rollout: judged on held-out logs alone")
    (none,) = [line for line in lines if line.startswith("none = 0, 0")]
    assert none.split()[-1] == "-", "no log stays within it, so there is no share of false alarms"
    assert any("warning: few training" in line for line in lines)
