"""The script that freezes the frontiers, on a small task."""

import importlib.util
import json
from types import ModuleType

import pytest

from saformer.data.canonical import parse_builds

SMALL = ["--tasks", "allowance", "--steps", "2000"]


@pytest.fixture
def script(project) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "freeze_frontiers", project / "scripts" / "freeze_frontiers.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_freezes_and_prints(script, tmp_path, capsys):
    out = tmp_path / "frontiers.json"
    assert script.main([*SMALL, "--out", str(out)]) == 0
    assert parse_builds(out.read_text())["allowance"].num_trajectories == 100
    head, _, row = capsys.readouterr().out.strip().split("\n")
    assert head.count("|") == row.count("|") == 6
    assert row.startswith("| allowance | 100 | ")


def test_it_does_not_change_what_is_frozen(script, tmp_path, capsys):
    out = tmp_path / "frontiers.json"
    script.main([*SMALL, "--out", str(out)])
    plain = json.loads(out.read_text())
    plain["allowance"]["fingerprint"] = "before"
    out.write_text(json.dumps(plain))
    assert script.main([*SMALL, "--out", str(out)]) == 1
    assert "pass --overwrite" in capsys.readouterr().err
    assert json.loads(out.read_text())["allowance"]["fingerprint"] == "before"
    assert script.main([*SMALL, "--out", str(out), "--overwrite"]) == 0
    assert json.loads(out.read_text())["allowance"]["fingerprint"] != "before"


def test_reduced_builds_stay_out_of_the_package(script):
    with pytest.raises(SystemExit):
        script.main(SMALL)


def test_the_paper_s_nine_three_of_effort_and_three_plants(script):
    assert len(script.TASKS) == 15
    assert {"hopper-medium-replay", "hopper-effort", "plant-tank"} < set(script.TASKS)
