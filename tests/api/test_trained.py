"""One set of weights is one policy, whoever judged it and in whatever process."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import saformer
from saformer.agents.registry import KINDS
from saformer.cli.main import command_of
from saformer.core.rules import NoCriticRule, PaperRule
from saformer.rules.feasible import FeasibleRule
from saformer.runs.run import Run
from saformer.training.loop.config import FitConfig
from saformer.training.loop.presets import Preset
from tests.cli.test_cli import tiny_run

OWN_FILES = {"evaluation.json", "trace.json", "calibration.json", "sweep.json", "evaluations"}
ACTING = """
import json, sys, torch, saformer
policy = saformer.load(sys.argv[1], device="cpu").policy()
policy.reset(torch.zeros(3, 2), limit=[3.0, 6.0, 9.0])
actions = []
for step in range(6):
    decision = policy.act(torch.full((3, 2), 0.1 * step))
    actions.append(decision.action.tolist())
    policy.observe([1.0] * 3, [[0.7]] * 3)
print(json.dumps(actions))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "run"
    assert tiny_run(path) == 0
    return path


def actions(path: Path) -> list:
    """Of the usual policy, in a process of its own."""
    command = [sys.executable, "-c", ACTING, str(path)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def contents(folder: Path) -> dict[str, bytes]:
    """Of files; of a folder, the names in it."""
    return {
        file.name: b" ".join(sorted(bytes(each) for each in file.iterdir()))
        if file.is_dir()
        else file.read_bytes()
        for file in folder.iterdir()
    }


@pytest.mark.filterwarnings("ignore:limit 30 lies outside the data")
def test_judging_changes_neither_the_policy_nor_the_run(run, tmp_path):
    """Two processes, before and after; to the bit. Seen to fail when judging fits a rule."""
    before, files = actions(run), contents(run)
    trained = saformer.load(run, device="cpu", workers=0)
    trained.evaluate(["p50"], episodes=1)
    trained.evaluate(["p50"], episodes=1, both=True, reference=True)
    trained.calibrate(0.1, ["30"], episodes=30, margins=(0.2,))
    trained.sweep([2, 4], option="candidates", limits=["p50"], episodes=1)
    trained.export(tmp_path / "export", dtype="float32")
    after = contents(run)
    assert {name: after[name] for name in files} == files
    assert set(after) - set(files) == OWN_FILES
    assert actions(run) == before
    assert actions(tmp_path / "export") == before


def test_elsewhere_nothing_is_written_to_the_run(run, tmp_path):
    """Seen to fail when --out moves only some of the files."""
    files = contents(run)
    trained = saformer.load(run, device="cpu", workers=0, out=tmp_path / "out")
    trained.evaluate(["p50"], episodes=1)
    trained.sweep([2], option="candidates", limits=["p50"], episodes=1)
    assert contents(run) == files
    written = {"run.json", "done.json", "evaluation.json", "trace.json", "sweep.json"}
    written.add("evaluations")
    assert set(contents(tmp_path / "out")) == written


def test_a_rule_and_its_options_are_named_once(run):
    """Seen to fail when options of one rule are taken for those of another."""
    trained = saformer.load(run, device="cpu")
    assert isinstance(trained.policy().rule, FeasibleRule)
    paper = trained.policy("paper", candidates=7, fallback="likely").rule
    assert isinstance(paper, PaperRule)
    assert (paper.options.candidates, paper.options.fallback) == (7, "likely")
    assert isinstance(trained.policy("none").rule, NoCriticRule)
    assert trained.options().candidates == 4, "as the run's config has it"
    assert trained.options(shielded=True).candidates == 1
    named = trained.options("feasible", shielded=True)
    assert named.candidates == 4, "a rule that is named stays as it is"
    assert trained.options("paper", shielded=True) == trained.options("paper")
    with pytest.raises(ValueError, match="PaperOptions has no option holdback"):
        trained.policy("paper", holdback=0.1)
    with pytest.raises(ValueError, match="unknown rule 'told'; known are feasible, paper, none"):
        trained.policy("told")


@pytest.mark.filterwarnings("error")
def test_a_run_of_the_papers_preset_acts_by_its_rule(tmp_path):
    """Loaded or exported, and its flags are the rule's. Seen to fail when the config's rule is
    passed over, and when a warning says that training did not end."""
    assert tiny_run(tmp_path / "run", "--preset", "paper") == 0
    saformer.export(tmp_path / "run", tmp_path / "export", dtype="float32")
    for path in (tmp_path / "run", tmp_path / "export"):
        trained = saformer.load(path, device="cpu")
        assert isinstance(trained.policy().rule, PaperRule)
        assert trained.options() == trained.options("paper")
        assert trained.options(shielded=True) == trained.options()
        assert (trained.options().fallback, trained.options().rounds) == ("least_cost", 4)
        with pytest.raises(ValueError, match="trained as published"):
            trained.policy("feasible")
        acting = command_of(["evaluate", str(path), "--rounds", "2"]).acting
        assert acting == replace(trained.options(), rounds=2)


def test_training_gives_what_loading_gives(tmp_path):
    """Seen to fail when what was trained is not what was saved."""
    preset = Preset(KINDS["dt"].config_type(window=3), FitConfig(updates=2, batch_size=4))
    brief = {"data_steps": 2000, "out": tmp_path / "run", "device": "cpu"}
    trained = saformer.train("allowance", agent="dt", preset=preset, **brief)
    assert trained.path == tmp_path / "run"
    assert isinstance(trained.run, Run)
    loaded = saformer.load(trained.path, device="cpu")
    assert [limit.name for limit in loaded.parse_limits(())] == ["p10", "p20", "p30", "p50"]
    weights = loaded.agent.model.state_dict()
    for name, value in trained.agent.model.state_dict().items():
        assert value.equal(weights[name])
