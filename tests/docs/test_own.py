"""Pages that tell how to bring one's own things: their code runs as it stands."""

import importlib
import re
import sys
from pathlib import Path

import pytest

import saformer
from saformer.agents import registry
from saformer.cli.main import main
from saformer.data.store import TrajectoryStore
from tests.cli.test_cli import flags

BRIEF = {"updates": 200, "evaluate_every": 0, "device": "cpu", "data_steps": 8000}


@pytest.fixture
def thrifty(project, tmp_path, monkeypatch):
    """The agent of docs/agents/own.md, from a module as anybody would have it."""
    monkeypatch.setattr(registry, "KINDS", dict(registry.KINDS))
    registry.all_kinds.cache_clear()  # it remembers the others
    page = (project / "docs" / "agents" / "own.md").read_text()
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    assert sum(bool(line) for line in code.splitlines()) <= 60
    (tmp_path / "thrifty_agent.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("thrifty_agent").ThriftyAgent
    del sys.modules["thrifty_agent"]
    registry.all_kinds.cache_clear()


def test_the_agent_of_the_page_learns_and_heeds_limits(thrifty, tmp_path, monkeypatch, capsys):
    """By every verb, and by the command line's flags. Seen to fail when `small` knows our agents
    alone, and when the policy is told nothing of its budget."""
    monkeypatch.chdir(tmp_path)
    trained = saformer.train("allowance", agent="thrifty", out="run", hidden=(32,), **BRIEF)
    assert trained.agent.config.hidden == (32,)
    evaluation = trained.evaluate(["p20", "p80"], episodes=3)
    tight, loose = (verdict.mean_cost[0] for verdict in evaluation.verdicts)
    assert tight < 0.8 * loose
    saformer.export("run", "exported")
    assert saformer.evaluate("exported", limits=["p20"], episodes=1, device="cpu").verdicts
    assert {"--hidden", "--updates"} <= flags(capsys, "train", "--agent", "thrifty")
    assert main(["agents"]) == 0
    assert "told what is still to be spent" in capsys.readouterr().out


def test_an_agent_takes_no_name_of_another(thrifty):
    """Seen to fail when names are not compared."""

    class Other(thrifty):
        name = "cdt"

    with pytest.raises(ValueError, match="another agent of the name 'cdt'"):
        saformer.register_agent(Other)
    with pytest.raises(ValueError, match="is no agent"):
        saformer.register_agent(int)
    assert saformer.register_agent(thrifty) is thrifty, "again, as a notebook's cell does"


def test_from_a_simulator_to_a_judged_policy(project, tmp_path, monkeypatch, capsys):
    """docs/simulator.md: its commands and its Python, with fewer episodes and updates. Seen to fail
    when `info["cost"]` is no criterion, and when the page's class is misnamed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    page = (project / "docs" / "simulator.md").read_text()
    assert len(page.split()) <= 600
    simulator, script = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "room.py").write_text(simulator)
    lines = re.findall(r"^saformer (.*)$", page, re.MULTILINE)
    assert [line.split()[0] for line in lines] == ["data", "data", "train", "evaluate"]
    small = {"collect": "--episodes 20", "train": "--updates 3 --width 16 --layers 1"}
    small |= {"evaluate": "--episodes 1 --workers 0"}
    for line in lines:
        brief = next((more for verb, more in small.items() if verb in line.split()[:2]), "")
        assert main(_replaced(line.split(), brief.split())) == 0, line
    assert Path("runs/room/report.html").exists()
    assert TrajectoryStore.open("room").criteria == ("cost",)
    brief = "width=16, layers=1, out='again'"
    script = script.replace('"room", ', '"data", ').replace("episodes=300", "episodes=20")
    script = script.replace('updates=1500, out="runs/room"', f"updates=3, {brief}")
    exec(script.replace('train("room"', 'train("data"').replace("episodes=10", "episodes=1"), {})
    printed = capsys.readouterr().out
    assert "of 3 limits met" in printed
    assert "spent tensor" in printed
    del sys.modules["room"]


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_metrics_go_to_other_trackers(name, project, tmp_path, monkeypatch):
    """docs/callbacks.md, where the tracker is installed. Seen to fail when rows are not heard of
    (MLflow 3.17; W&B 0.31, offline)."""
    pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    page = (project / "docs" / "callbacks.md").read_text()
    code = re.search(rf"```python\n((?:(?!```).)*import {name}\n.*?)```", page, re.DOTALL)[1]
    lines = [line for line in code.splitlines() if line]
    assert len(lines) <= 10
    brief = "updates=4, evaluate_every=2, report_every=2, data_steps=2000, width=16, layers=1"
    exec(code.replace('"allowance"', f'"allowance", {brief}'), {})
    (tmp_path / "runs").rename(tmp_path.parent / f"{name}-runs")  # with metrics of its own
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.match("p50/return") or b"p50/return" in path.read_bytes() for path in written)


def _replaced(words: list[str], flags: list[str]) -> list[str]:
    """The command with these flags and values in place of its own."""
    for flag in flags[::2]:
        at = words.index(flag) if flag in words else len(words)
        words = words[:at] + words[at + 2 :]
    return words + flags
