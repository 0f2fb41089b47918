"""Policies that come with the package."""

import importlib.util
import json
import subprocess
import zipfile
from pathlib import Path

import pytest

import saformer
from saformer.cli.main import main
from saformer.runs import pretrained
from saformer.runs.export import read_facts
from saformer.runs.pretrained import pretrained_names
from saformer.runs.run import Run, find_run
from tests.runs.exported import size_of, telling_run

BUNDLED = pretrained_names()
BRIEF = ["--limits", "p10", "p50", "--episodes", "1", "--candidates", "4", "--workers", "0"]
MAX_BYTES = 4_000_000


@pytest.fixture
def bundle(tmp_path, monkeypatch) -> Path:
    """A package that comes with one tiny policy; the working folder is empty."""
    telling_run(tmp_path / "run")
    saformer.export(tmp_path / "run", tmp_path / "assets" / "tiny")
    monkeypatch.setattr(pretrained, "_bundled", lambda: tmp_path / "assets")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "assets" / "tiny"


def test_a_name_stands_where_a_path_would(bundle, tmp_path, monkeypatch, capsys):
    """Nothing is written into the package, no data is made. Seen to fail when findings go to the
    policy's folder."""
    before = {file.name: file.read_bytes() for file in bundle.iterdir()}
    monkeypatch.setenv("SAFORMER_HOME", str(tmp_path / "nothing"))
    assert main(["evaluate", "pretrained:tiny", *BRIEF]) == 0
    assert "runs/pretrained-tiny/evaluation.json" in "".join(capsys.readouterr().err.split())
    assert (
        main(["sweep", "pretrained:tiny", "--option", "temperature", "--values", "1", *BRIEF[:5]])
        == 0
    )
    kept = {"run.json", "done.json", "evaluation.json", "trace.json", "report.html", "sweep.json"}
    kept.add("evaluations")
    assert {file.name for file in Path("runs/pretrained-tiny").iterdir()} == kept
    assert main(["evaluate", "pretrained:tiny", *BRIEF, "--out", "elsewhere"]) == 0
    assert Path("elsewhere/report.html").exists()
    assert saformer.load("pretrained:tiny").agent.name == "saformer"
    assert {file.name: file.read_bytes() for file in bundle.iterdir()} == before
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("verb", ["evaluate", "sweep", "export"])
@pytest.mark.usefixtures("bundle")
def test_an_unknown_name_hears_which_there_are(capsys, verb):
    """Seen to fail when a name that is not there is looked for as a folder."""
    more = {"export": ["out"]}.get(verb, [])
    assert main([verb, "pretrained:nonsense", *more]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "there is no pretrained policy 'nonsense'; there are pretrained:tiny" in said
    assert not list(Path().iterdir())


def test_none_is_a_number_too(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pretrained, "_bundled", lambda: tmp_path / "assets")
    assert main(["evaluate", "pretrained:x"]) == 1
    assert "this version comes with none" in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("bundle")
def test_it_is_made_known(capsys):
    assert main(["doctor"]) == 0
    assert main([]) == 0
    said = capsys.readouterr().out
    assert "pretrained policies: pretrained:tiny (saformer evaluate pretrained:tiny)" in said
    assert said.count("saformer evaluate pretrained:tiny") == 2


@pytest.mark.usefixtures("bundle")
def test_fine_tuning_says_what_is_missing(capsys):
    assert main(["finetune", "pretrained:tiny", "--limit", "3"]) == 1
    assert "no optimiser state to go on with" in " ".join(capsys.readouterr().err.split())


def test_each_robot_is_bundled():
    assert BUNDLED == ["halfcheetah-effort", "hopper-effort", "walker2d-effort"]


@pytest.mark.parametrize("name", BUNDLED)
def test_what_is_bundled_is_small_and_says_where_it_came_from(name):
    run = find_run(f"pretrained:{name}")
    assert size_of(run.path) < MAX_BYTES
    assert {file.name for file in run.path.iterdir()} == {
        "run.json", "done.json", "export.json", "weights.safetensors",
    }  # fmt: skip
    assert run.spec.task == name
    trained = read_facts(run)["trained"]
    assert trained["updates"] == trained["of_updates"]
    assert all(trained[fact] not in {None, "unknown"} for fact in ("command", "seed", "commit"))


@pytest.mark.parametrize(
    "name", [BUNDLED[0], *(pytest.param(name, marks=pytest.mark.long) for name in BUNDLED[1:])]
)
def test_what_is_bundled_can_be_judged_at_once(tmp_path, monkeypatch, capsys, name):
    monkeypatch.setenv("SAFORMER_HOME", str(tmp_path / "nothing"))
    assert (
        main(["evaluate", f"pretrained:{name}", *BRIEF, "--out", str(tmp_path / "found"), "--json"])
        == 0
    )
    assert [one["limit"]["name"] for one in json.loads(capsys.readouterr().out)["verdicts"]] == [
        "p10",
        "p50",
    ]
    assert Run(tmp_path / "found").spec == find_run(f"pretrained:{name}").spec
    assert not (tmp_path / "nothing").exists()


@pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None, reason="needs hatchling to build a wheel"
)
def test_assets_are_in_the_wheel(project, tmp_path):
    from hatchling.builders.wheel import WheelBuilder

    (built,) = WheelBuilder(str(project)).build(directory=str(tmp_path))
    packed = set(zipfile.ZipFile(built).namelist())
    assets = project / "src" / "saformer" / "assets"
    files = {str(file.relative_to(project / "src")) for file in assets.rglob("*") if file.is_file()}
    assert len(files) >= 5
    assert files <= packed


def test_no_asset_is_ignored(project):
    """What git ignores is neither committed nor packed."""
    if not (project / ".git").exists():
        pytest.skip("not a checkout")
    folders = [
        project / "src" / "saformer" / "assets" / "pretrained" / name
        for name in (*BUNDLED, "another")
    ]
    files = [
        str(folder / name)
        for folder in folders
        for name in ("run.json", "done.json", "weights.safetensors")
    ]
    ignored = subprocess.run(
        ["git", "check-ignore", *files], cwd=project, capture_output=True, text=True, check=False
    )
    assert not ignored.stdout
