"""Folders of older and newer versions: read by the paper's rule and said so, or refused in one
line."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import saformer
from saformer.cli.main import main
from saformer.core.rules import PaperRule
from saformer.rules.feasible import FeasibleRule
from saformer.runs.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from saformer.runs.run import FORMAT, Run
from tests.cli.test_cli import tiny_run
from tests.editing import unsigned

ROLLING = {"limits": ["p50"], "episodes": 1, "workers": 0, "device": "cpu"}
OLDER = "was made by an older version: it acts by the rule 'paper'"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and its export as this version writes them."""
    folder = tmp_path_factory.mktemp("formats")
    tiny_run(folder / "run")
    saformer.export(folder / "run", folder / "export", dtype="float32")
    return folder


def rewritten(path: Path, **changes: object) -> None:
    """Change entries of a JSON file; None takes one away."""
    content = {**unsigned(path), **changes}
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def split_reserve(path: Path, spec: str) -> dict[str, torch.Tensor]:
    """Take what was fitted last out of the model's group; format 1 has a reserve of its own."""
    saved = load_checkpoint(path)
    model = saved.groups["model"]
    names = [name for name in model if name.startswith("outlook.")]
    reserve = {name.removeprefix("outlook."): model.pop(name) for name in names}
    assert reserve
    save_checkpoint(path, Checkpoint(saved.groups, {**saved.facts, "spec": spec}))
    return reserve


def old_run(made: Path, path: Path, *, with_reserve: bool) -> Path:
    """Format 1: no number, a setting that exists no more, the reserve in a file of its own or
    nowhere."""
    shutil.copytree(made / "run", path)
    config = {**Run(path).spec.agent_config, "verification": "auto"}
    rewritten(path / "run.json", format=None, agent_config=config)
    spec = Run(path).spec.digest
    reserve = split_reserve(path / "checkpoint.safetensors", spec)
    if with_reserve:
        facts = {"spec": spec, "version": 5}
        save_checkpoint(path / "reserve.safetensors", Checkpoint({"reserve": reserve}, facts))
    return path


def old_export(made: Path, path: Path) -> Path:
    """Format 1: the reserve is a group of its own."""
    import hashlib

    shutil.copytree(made / "export", path)
    weights = path / "weights.safetensors"
    reserve = split_reserve(weights, Run(path).spec.digest)
    saved = load_checkpoint(weights)
    save_checkpoint(weights, Checkpoint({**saved.groups, "reserve": reserve}, saved.facts))
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    rewritten(path / "export.json", format=None, sha256=digest)
    rewritten(path / "run.json", format=None)
    return path


def test_what_is_written_carries_its_format(made):
    """Seen to fail when a writer leaves the number out."""
    for name in ("run/run.json", "export/run.json", "export/export.json"):
        assert json.loads((made / name).read_text())["format"] == FORMAT == 2
    assert isinstance(saformer.load(made / "run", device="cpu").policy().rule, FeasibleRule)
    assert isinstance(saformer.load(made / "export", device="cpu").policy().rule, FeasibleRule)


@pytest.mark.parametrize("kind", ["run", "run with a reserve", "export"])
def test_older_files_act_by_the_papers_rule_and_say_so(made, tmp_path, capsys, kind):
    """Also where a reserve lies beside them. Seen to fail when unknown settings are refused, and
    when nothing is said."""
    path = tmp_path / "old"
    if kind == "export":
        old_export(made, path)
    else:
        old_run(made, path, with_reserve=kind != "run")
    with pytest.warns(UserWarning, match=OLDER):
        trained = saformer.load(path, device="cpu")
    assert isinstance(trained.policy().rule, PaperRule)
    with pytest.raises(ValueError, match="rule 'feasible' is fitted as training ends"):
        trained.policy("feasible")
    with pytest.warns(UserWarning, match=OLDER):
        saformer.evaluate(path, **ROLLING)
    options = json.loads((path / "evaluation.json").read_text())["options"]
    assert options["rule"] == "paper"


def test_an_older_run_goes_on_no_more(made, tmp_path, capsys):
    """A finished one has nothing left to do."""
    path = old_run(made, tmp_path / "old", with_reserve=False)
    rewritten(path / "run.json", agent_config=Run(made / "run").spec.agent_config)
    assert tiny_run(path, "--resume") == 0
    (path / "done.json").unlink()
    assert tiny_run(path, "--resume") == 1
    assert "begun by an older version and cannot be resumed" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:limit 30 lies outside the data")
def test_an_older_calibration_is_refused(made, tmp_path, capsys):
    """Its policy acted otherwise. Seen to fail when a list is read as one of this format."""
    shutil.copytree(made / "run", tmp_path / "run")
    (tmp_path / "run" / "calibration.json").write_text(json.dumps([{"rate": 0.1}]))
    flags = ["--rate", "0.1", "--limits", "30", "--workers", "0"]
    assert main(["evaluate", str(tmp_path / "run"), *flags]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "calibration.json was made by an older version" in said
    assert "calibrate again" in said


@pytest.mark.parametrize("name", ["run/run.json", "export/export.json", "run/calibration.json"])
def test_a_newer_version_is_refused_in_one_line(made, tmp_path, capsys, name):
    """Seen to fail when numbers are not compared."""
    folder = tmp_path / name.partition("/")[0]
    shutil.copytree(made / folder.name, folder)
    if not (tmp_path / name).exists():
        (tmp_path / name).write_text(json.dumps({"calibrations": []}))
    rewritten(tmp_path / name, format=FORMAT + 1)
    rate = ["--rate", "0.1"] if "calibration" in name else []
    assert main(["evaluate", str(folder), "--limits", "p50", "--workers", "0", *rate]) == 1
    said = capsys.readouterr().err
    assert "made by a newer version" in " ".join(said.split())
    assert "Traceback" not in said


def test_weights_that_fit_no_more_are_refused_in_one_line(made, tmp_path):
    path = old_run(made, tmp_path / "old", with_reserve=False)
    config = Run(path).spec.agent_config
    rewritten(path / "run.json", agent_config={**config, "trunk": {**config["trunk"], "width": 32}})
    saved = load_checkpoint(path / "checkpoint.safetensors")
    facts = {**saved.facts, "spec": Run(path).spec.digest}
    save_checkpoint(path / "checkpoint.safetensors", Checkpoint(saved.groups, facts))
    with pytest.raises(ValueError, match="as it was made by an older one: train again"):
        saformer.load(path, device="cpu")
