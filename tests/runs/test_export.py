"""Exports: what a run has learnt, to the bit or rounded, and nothing that needs its data."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import saformer
from saformer.agents.registry import KINDS
from saformer.api import run_data
from saformer.cli.main import main
from saformer.criteria import code
from saformer.data.store import TrajectoryStore
from saformer.envs import allowance
from saformer.runs.export import read_facts, read_groups, read_model
from saformer.runs.run import Run
from tests.cli.test_agents import train_briefly
from tests.cli.test_cli import flags, tiny_run
from tests.runs.exported import size_of, telling_run

LIMITS = ("p20", "p37", "9")
ASKED = ["--limits", *LIMITS, "--episodes", "4", "--workers", "0", "--json"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """run, and its exports: rounded and exact."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAFORMER_HOME", str(tmp_path_factory.getbasetemp() / "home"))
        telling_run(folder / "run")
        assert (
            main(
                [
                    "export",
                    str(folder / "run"),
                    str(folder / "rounded"),
                    "--command",
                    "saformer train x",
                ]
            )
            == 0
        )
        saformer.export(folder / "run", folder / "exact", dtype="float32")
    return folder


@pytest.fixture
def without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens or makes data fails."""

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("data was asked for")

    monkeypatch.setattr(run_data, "task_data", refuse)
    monkeypatch.setattr(run_data, "find_task", refuse)


def judged(capsys, *arguments: str) -> dict:
    capsys.readouterr()
    assert main(["evaluate", *arguments, *ASKED]) == 0
    found = json.loads(capsys.readouterr().out)
    del found["nothing"]["decisions_per_second"]
    return {name: value for name, value in found.items() if name != "decisions_per_second"}


def refused(capsys, *arguments: str) -> str:
    capsys.readouterr()
    assert main(list(arguments)) == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return " ".join(said.split())


def test_in_float32_it_is_the_run_to_the_bit(made, tmp_path, capsys):
    """Weights, limits by any percentile, frontiers, every episode, the trajectories that are drawn.
    Seen to fail when float32 is rounded too, and when totals lose digits.
    """
    run, exact = read_model(Run(made / "run")), read_model(Run(made / "exact"))
    assert list(run) == list(exact)
    assert all(torch.equal(run[name], exact[name]) for name in run)
    found = [
        judged(capsys, str(made / name), "--out", str(tmp_path / name)) for name in ("run", "exact")
    ]
    assert found[0] == found[1]
    traces = [json.loads((tmp_path / name / "trace.json").read_text()) for name in ("run", "exact")]
    assert traces[0] == traces[1]


def test_rounded_to_bfloat16_are_matrices_alone(made):
    """Eight bits of mantissa; vectors, statistics and bounds to the bit; float32 once loaded. Seen
    to fail when statistics are rounded, and when weights stay narrow.
    """
    run, kept = read_model(Run(made / "run")), read_groups(Run(made / "rounded"), "model")
    loaded = saformer.load(made / "rounded", device="cpu").agent.model.state_dict()
    matrices = [name for name, value in kept.items() if value.dtype == torch.bfloat16]
    assert matrices
    assert all(kept[name].ndim > 1 for name in matrices)
    for name, value in run.items():
        assert read_model(Run(made / "rounded"))[name].dtype == value.dtype
        if name in matrices:
            assert torch.equal(loaded[name], value.bfloat16().float())
            torch.testing.assert_close(loaded[name], value, rtol=2**-8, atol=0)
        else:
            assert torch.equal(loaded[name], value), name
    assert not any(torch.equal(loaded[name], run[name]) for name in matrices)


def test_rounded_it_acts_nearly_as_the_run(made, tmp_path, capsys):
    """What episodes cost and earn moves by as little as bfloat16 moves the weights."""
    run, rounded = (
        judged(capsys, str(made / name), "--out", str(tmp_path / name))
        for name in ("run", "rounded")
    )
    assert run["episodes"] != rounded["episodes"], "the weights were too small to tell"
    for own, other in zip(run["verdicts"], rounded["verdicts"], strict=True):
        assert (own["limit"], own["frontier"]) == (other["limit"], other["frontier"])
        assert other["mean_cost"] == pytest.approx(own["mean_cost"], rel=0.01)
        assert other["mean_return"] == pytest.approx(own["mean_return"], rel=0.01)


@pytest.mark.usefixtures("without_data")
def test_nothing_is_asked_of_data(made, tmp_path, capsys):
    """Limits, frontiers, the shield, the reference, a sweep, the report. Seen to fail when data is
    opened for them."""
    out = ["--out", str(tmp_path)]
    found = judged(capsys, str(made / "rounded"), "--both", "--reference", *out)
    assert [one["limit"]["name"] for one in found["verdicts"]] == list(LIMITS)
    assert "Among the data" in (tmp_path / "report.html").read_text()
    brief = [
        "--option",
        "temperature",
        "--values",
        "1",
        "--limits",
        "p50",
        "--episodes",
        "1",
        "--workers",
        "0",
    ]
    assert main(["sweep", str(made / "rounded"), *brief, *out]) == 0
    assert {"evaluation.json", "trace.json", "sweep.json", "run.json"} <= {
        file.name for file in tmp_path.iterdir()
    }
    assert {file.name for file in (made / "rounded").iterdir()} == {
        "run.json", "done.json", "export.json", "weights.safetensors",
    }  # fmt: skip


@pytest.mark.parametrize("name", list(KINDS))
def test_every_agent_can_be_exported(tmp_path, capsys, name):
    """And is judged alike, under the limit that it was trained for where it was."""
    assert train_briefly(name, tmp_path / "run") == 0
    saformer.export(tmp_path / "run", tmp_path / "export", dtype="float32")
    found = [
        saformer.evaluate(tmp_path / kind, episodes=2, workers=0) for kind in ("run", "export")
    ]
    assert found[0].rows == found[1].rows
    assert found[0].verdicts == found[1].verdicts
    if name == "dt":
        tried = [
            saformer.sweep(tmp_path / kind, limits=["p50"], episodes=1, workers=0)
            for kind in ("run", "export")
        ]
        assert tried[0].plain() == tried[1].plain()


def test_an_export_says_how_it_was_made(made):
    facts = read_facts(Run(made / "rounded"))
    assert facts["dtype"] == "bfloat16"
    assert facts["trained"].keys() == {
        "command",
        "seed",
        "of_updates",
        "updates",
        "seconds",
        "commit",
    }
    assert (facts["trained"]["command"], facts["trained"]["updates"]) == ("saformer train x", 3)
    assert list(facts["data"]["cost_percentiles"]["torque"]) == [
        f"p{percent}" for percent in range(5, 100, 5)
    ]
    assert facts["data"]["trajectories"] == 100
    assert size_of(made / "rounded") < size_of(made / "exact") < size_of(made / "run")
    assert (
        Run(made / "rounded").weights_path.stat().st_mode
        == Run(made / "rounded").spec_path.stat().st_mode
    )


def test_an_unfinished_run_can_be_exported(made, tmp_path):
    shutil.copytree(made / "run", tmp_path / "run")
    (tmp_path / "run" / "done.json").unlink()
    saformer.export(tmp_path / "run", tmp_path / "export")
    assert read_facts(Run(tmp_path / "export"))["trained"]["updates"] == 3
    assert not Run(tmp_path / "export").is_done


def test_a_death_while_exporting_leaves_nothing(made, tmp_path, monkeypatch):
    """And the next one is not kept from it. Seen to fail when the folder is written in place."""

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "write_json", die)
    with pytest.raises(KeyboardInterrupt):
        saformer.export(made / "run", tmp_path / "export")
    monkeypatch.undo()
    assert not (tmp_path / "export").exists()
    monkeypatch.setenv("SAFORMER_HOME", str(made.parent / "home"))
    saformer.export(made / "run", tmp_path / "export")
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def pickled(_: bytes) -> bytes:
    buffer = io.BytesIO()
    torch.save({"model": {}}, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "damage",
    [
        ("weights.safetensors", None, "is not a whole export: it has no weights.safetensors"),
        ("weights.safetensors", lambda content: content[:-100], "truncated or damaged"),
        ("weights.safetensors", flipped, "is not what was exported"),
        ("weights.safetensors", pickled, "truncated or damaged"),
        ("export.json", None, "is not a whole export: it has no export.json"),
        ("export.json", lambda _: b"{", "export.json is damaged"),
        (
            "export.json",
            lambda _: b"[]",
            "export.json is damaged or of another version (Input should be",
        ),
        ("export.json", lambda _: b'{"sha256": "", "environment": {}}', "is not what was exported"),
        ("run.json", None, "is not a run: it has no run.json"),
        (
            "run.json",
            lambda content: content.replace(b'"seed": 0', b'"seed": 1'),
            "run.json was damaged or changed since it was written",
        ),
    ],
)
def test_a_damaged_export_is_refused_in_one_line(made, tmp_path, capsys, damage):
    """Cut short, with one bit flipped, exchanged for a pickle, or without a part. Seen to fail when
    the checksum is not compared.
    """
    name, spoil, message = damage
    shutil.copytree(made / "rounded", tmp_path / "export")
    file = tmp_path / "export" / name
    if spoil is None:
        file.unlink()
    else:
        file.write_bytes(spoil(file.read_bytes()))
    assert message in refused(capsys, "evaluate", str(tmp_path / "export"))


def test_nothing_is_unpickled(made, monkeypatch):
    """Neither by torch nor by anything below it."""
    import pickle

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("something was unpickled")

    for module, names in ((pickle, ("load", "loads", "Unpickler")), (torch, ("load",))):
        for name in names:
            monkeypatch.setattr(module, name, refuse)
    saformer.load(made / "rounded")
    assert {file.suffix for file in (made / "rounded").iterdir()} == {".json", ".safetensors"}


def test_an_export_is_nothing_to_train_on_with(made, tmp_path, capsys):
    """Seen to fail when a folder that holds an export is taken for a fresh run."""
    shutil.copytree(made / "rounded", tmp_path / "export")
    (tmp_path / "export" / "done.json").unlink()
    said = refused(capsys, "finetune", str(tmp_path / "export"), "--limit", "3")
    assert "holds weights, and no optimiser state to go on with" in said
    for more in ([], ["--resume"]):
        capsys.readouterr()
        assert tiny_run(tmp_path / "export", *more) == 1
        assert "holds an export, which cannot be trained" in " ".join(
            capsys.readouterr().err.split()
        )
    assert Run(tmp_path / "export").weights_path.exists()


def test_what_cannot_be_exported(made, tmp_path, capsys):
    run, rounded = str(made / "run"), str(made / "rounded")
    assert "is an export already" in refused(capsys, "export", rounded, str(tmp_path / "x"))
    assert "exports are never overwritten" in refused(capsys, "export", run, rounded)
    assert "is not a run" in refused(capsys, "export", str(tmp_path / "none"), str(tmp_path / "x"))
    with pytest.raises(
        ValueError, match="unknown dtype 'float16'; weights are kept in bfloat16 or float32"
    ):
        saformer.export(run, tmp_path / "x", dtype="float16")
    assert not list(tmp_path.iterdir())


def test_findings_do_not_mix(made, tmp_path, capsys):
    """Seen to fail when another run's folder is written to."""
    assert tiny_run(tmp_path / "other", "--seed", "7") == 0
    before = {file.name: file.read_bytes() for file in (tmp_path / "other").iterdir()}
    said = refused(capsys, "evaluate", str(made / "rounded"), "--out", str(tmp_path / "other"))
    assert "holds another run" in said
    assert {file.name: file.read_bytes() for file in (tmp_path / "other").iterdir()} == before


def test_code_that_an_export_names_is_not_run(tmp_path, monkeypatch, capsys):
    """It may come from elsewhere. It can be loaded, not judged. Seen to fail when its criteria are
    trusted."""
    monkeypatch.chdir(tmp_path)
    Path("exported_costs.py").write_text("def spent(step):\n    return abs(step.action).sum(-1)\n")
    assert tiny_run("run", "--criteria", "./exported_costs.py:spent") == 0
    saformer.export("run", "made-here")
    Path("made-here").rename("export")
    monkeypatch.setattr(code, "_vouched", {})
    saformer.load("export")
    for more in ([], ["--data", "allowance"]):
        said = refused(capsys, "evaluate", "export", *more)
        assert "exported_costs.py:spent' would run Python code that a file from" in said


def test_without_a_simulator_it_needs_the_data(tmp_path, capsys):
    """Which is said if it is gone, and found again where it is now."""
    recorded = allowance.dataset(episodes=40)
    TrajectoryStore.of(recorded, replace(recorded.environment, identifier=None)).save(
        tmp_path / "logs"
    )
    brief = "--updates 3 --batch-size 8 --width 16 --layers 1 --candidates 4".split()  # noqa: SIM905
    assert main(["train", str(tmp_path / "logs"), *brief, "--out", str(tmp_path / "run")]) == 0
    saformer.export(tmp_path / "run", tmp_path / "export")
    shutil.move(tmp_path / "logs", tmp_path / "moved")
    assert "say where it is now with --data" in refused(
        capsys, "evaluate", str(tmp_path / "export")
    )
    assert main(["evaluate", str(tmp_path / "export"), "--data", str(tmp_path / "moved")]) == 0
    assert "offline.json" in " ".join(capsys.readouterr().err.split())


def test_flags_are_frozen(capsys):
    assert flags(capsys, "export") == {
        *(
            "--action-noise",
            "--candidates",
            "--command",
            "--criteria",
            "--data",
            "--device",
            "--dtype",
        ),
        *(
            "--environment",
            "--format",
            "--holdback",
            "--may-end",
            "--past-return",
            "--risk",
            "--rule",
        ),
        *("--seed", "--temperature", "--workers"),
    }
