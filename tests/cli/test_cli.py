"""What the user types, and what is said when it is wrong."""

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from saformer.agents.registry import KINDS
from saformer.cli.main import COMMANDS, command_of, main
from saformer.training.loop.presets import PUBLISHED
from tests.editing import edit
from tests.trained import train


def tiny_run(path, *more: str) -> int:
    settings = "--updates 3 --batch-size 8 --checkpoint-every 2 --evaluate-every 0 --width 16 --layers 1 --candidates 4"
    return train(["allowance", "--data-steps", "2000", *settings.split(), *more], path)


def flags(capsys, *arguments: str) -> set[str]:
    with pytest.raises(SystemExit):
        command_of([*arguments, "--help"])
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", capsys.readouterr().out)) - {"--help"}


def test_flags_are_frozen(capsys):
    """A flag that changes its name breaks somebody's script: change these on purpose only."""
    # fmt: off
    of_training = {
        "--agent", "--batch-size", "--checkpoint-every", "--compile", "--cost-discount", "--criteria", "--data-seed",
        "--data-steps", "--device", "--environment", "--evaluate-every", "--gradient-clip", "--held-out", "--learning-rate", "--limit",
        "--out", "--precision", "--preset", "--report-every", "--resume", "--seed", "--tensorboard", "--updates",
        "--warmup-updates", "--weight-decay",
    }
    of_transformers = {"--dropout", "--heads", "--layers", "--width", "--window"}
    of_agents = {
        "saformer": {"--action-noise", "--candidates", "--past-return", "--penalty", "--rule", "--temperature", "--to-go-weight"},
        "dt": {"--action"},
        "cdt": {"--augmentation", "--cost-weight", "--initial-temperature", "--target-entropy", "--temperature-rate"},
        "bc_safe": {"--best"},
    }
    of_agents_of_steps = {
        "bcq_lag": {
            "--acting-candidates", "--average-rate", "--candidates", "--code-bound", "--discount", "--dropout",
            "--hidden", "--kl-weight", "--multiplier", "--multiplier-learning-rate", "--perturbation", "--pessimism",
            "--vae-deviation",
        },
        "cpq": {
            "--average-rate", "--candidates", "--discount", "--dropout", "--familiar", "--hidden", "--kl-weight",
            "--penalty", "--recovery", "--vae-deviation",
        },
        "coptidice": {
            "--caution", "--components", "--cost-bound", "--dropout", "--hidden", "--multiplier",
            "--multiplier-learning-rate", "--no-sample",
        },
        "caps": {
            "--average-rate", "--components", "--discount", "--dropout", "--expectile", "--heads", "--hidden",
            "--sharpness",
        },
        "bcrl": {
            "--average-rate", "--components", "--discount", "--dropout", "--expectile", "--hidden", "--sharpness",
        },
    }
    assert flags(capsys, "train") == of_training | of_transformers | of_agents["saformer"]
    for agent, own in of_agents.items():
        assert flags(capsys, "train", "--agent", agent) == of_training | of_transformers | own
    for agent, own in of_agents_of_steps.items():
        assert flags(capsys, "train", "--agent", agent) == of_training | own
    assert set(of_agents) | set(of_agents_of_steps) == set(KINDS)
    of_acting = {
        "--action-noise", "--candidates", "--criteria", "--data", "--device", "--environment", "--may-end", "--out",
        "--past-return", "--rule", "--seed", "--temperature", "--workers",
    }
    of_ours, of_the_paper = {"--holdback", "--risk"}, {"--fallback", "--rounds"}
    of_evaluate = {
        "--both", "--episodes", "--floor", "--json", "--limits", "--offline", "--rate", "--record", "--reference",
        "--report", "--shield", "--video",
    }
    assert flags(capsys, "evaluate") == of_evaluate | of_acting | of_ours
    assert flags(capsys, "evaluate", "--rule", "paper") == of_evaluate | of_acting | of_the_paper
    assert flags(capsys, "calibrate") == {
        "--confidence", "--episodes", "--json", "--limits", "--margins", "--offline", "--rate",
    } | of_acting | of_ours
    assert flags(capsys, "finetune") == {
        "--attenuation", "--ceiling", "--episodes", "--evaluate-every", "--evaluation-episodes",
        "--exploration-fallback", "--exploration-rounds", "--floor", "--initial-temperature", "--lanes",
        "--learning-rate", "--limit", "--new-share", "--resume", "--target-entropy", "--temperature-rate",
        "--tensorboard", "--updates", "--warmup-updates",
    } | of_acting | of_the_paper
    assert flags(capsys, "sweep") == {
        "--episodes", "--json", "--limits", "--option", "--values",
    } | of_acting | of_ours
    assert flags(capsys, "serve") == {
        "--accounts", "--audit-bytes", "--audit-files", "--certificate", "--connections", "--floor", "--frame-bytes", "--host",
        "--idle", "--keep-days", "--kept", "--key", "--patience", "--port", "--rate", "--request-rate", "--sessions", "--shield",
        "--silence", "--together", "--tokens",
    } | of_acting | of_ours
    # fmt: on
    assert flags(capsys, "compare") == {"--json", "--out"}
    assert flags(capsys, "select") == {
        *("--check", "--criteria", "--data", "--device", "--environment", "--episodes", "--json"),
        *("--limits", "--margins", "--out", "--rules", "--seed", "--workers"),
    }
    assert flags(capsys, "data", "collect") == {
        *("--criteria", "--episodes", "--horizon", "--out", "--policy", "--seed")
    }
    assert flags(capsys, "demo") == {"--device", "--out", "--scale", "--seed"}


def test_presets_fill_in_what_is_not_said():
    """Seen to fail when the preset's values are not the parser's defaults."""
    small = command_of(["train", "allowance"])
    paper = command_of(["train", "allowance", "--preset", "paper"])
    assert (small.config.window, small.config.trunk.width, small.fit.updates) == (5, 64, 6000)
    assert (paper.config.window, paper.config.trunk.width, paper.fit.updates) == (20, 128, 100_000)
    full = command_of(["train", "allowance", "--preset", "full"])
    assert replace(full.config, **PUBLISHED["saformer"]) == paper.config
    assert (small.config.rule, full.config.rule, paper.config.rule) == (
        "feasible",
        "feasible",
        "paper",
    )
    changed = command_of(["train", "allowance", "--preset=paper", "--width", "32"])
    assert (changed.config.trunk.width, changed.config.window) == (32, 20)


def test_a_reader_that_has_seen_enough_is_no_error():
    """As with `saformer train --help | head`. Seen to fail with "saformer train: [Errno 32]"."""
    command = [sys.executable, "-m", "saformer", "train", "--help"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **streams, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""


LOST = """
import signal, sys, time
from saformer.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in background

class Gone:
    def __del__(self):
        raise KeyboardInterrupt

class Command:
    def run(self, console):
        Gone()
        for _ in range(400):
            time.sleep(0.05)

main.command_of = lambda words: Command()
sys.exit(main.main(["train"]))
"""


def test_ctrl_c_is_heard_where_nothing_can_be_raised():
    """Python drops it there, as while modules are imported. Seen to fail without a hook."""
    command = [sys.executable, "-c", LOST]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (130, "saformer train: interrupted\n")


SWALLOWS = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
except BaseException:
    raise ImportError("initialization failed")
"""


def test_ctrl_c_that_a_library_takes_for_a_failed_import(monkeypatch, tmp_path, capsys):
    """Seen to fail, "initialization failed", with Python's own handler."""

    class Command:
        def run(self, console):
            import swallows  # noqa: F401

            time.sleep(10)

    (tmp_path / "swallows.py").write_text(SWALLOWS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("saformer.cli.main.command_of", lambda words: Command())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(["train"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "saformer train: interrupted\n"
    assert "swallows" in sys.modules


def test_what_goes_wrong_while_ctrl_c_is_obeyed_is_said(monkeypatch, capsys):
    """Seen to fail: "interrupted", as if all had been saved."""

    class Command:
        def run(self, console):
            try:
                raise KeyboardInterrupt
            finally:
                raise OSError("the disk is full")

    monkeypatch.setattr("saformer.cli.main.command_of", lambda words: Command())
    assert main(["train"]) == 1
    assert capsys.readouterr().err == "saformer train: the disk is full\n"


def test_help_lists_every_verb(capsys):
    assert main([]) == 0
    said = capsys.readouterr().out
    assert all(f"saformer {verb}" in said for verb in COMMANDS)
    assert main(["--version"]) == 0


def test_train_then_evaluate(tmp_path, capsys):
    """The whole way, on Allowance. Seen to fail when a limit is judged twice."""
    assert tiny_run(tmp_path / "run") == 0
    capsys.readouterr()
    assert (
        main(
            ["evaluate", str(tmp_path / "run"), "--limits", "p20", "9", "--episodes", "3", "--json"]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert [verdict["limit"]["name"] for verdict in found["verdicts"]] == ["p20", "9"]
    assert len(found["episodes"]) == 6
    kept = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert {name: kept[name] for name in found} == found
    assert kept["options"]["candidates"] == 4
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("<svg") == 5
    assert not re.search(r"(src|href)=['\"]https?:", page), "the page loads nothing from elsewhere"


def test_evaluation_is_repeatable(tmp_path, capsys):
    assert tiny_run(tmp_path / "run") == 0
    answers = []
    for _ in range(2):
        capsys.readouterr()
        main(["evaluate", str(tmp_path / "run"), "--limits", "p50", "--episodes", "2", "--json"])
        answers.append(json.loads(capsys.readouterr().out)["episodes"])
    assert answers[0] == answers[1]


def test_resume_of_a_finished_run_does_nothing(tmp_path, capsys):
    assert tiny_run(tmp_path / "run") == 0
    before = (tmp_path / "run" / "checkpoint.safetensors").read_bytes()
    assert tiny_run(tmp_path / "run", "--resume") == 0
    assert "already finished" in capsys.readouterr().err
    assert (tmp_path / "run" / "checkpoint.safetensors").read_bytes() == before


def test_resume_of_a_run_that_died_before_its_first_checkpoint(tmp_path):
    """Seen to fail when resuming insists on a checkpoint."""
    assert tiny_run(tmp_path / "run") == 0
    for name in ("checkpoint.safetensors", "done.json"):
        (tmp_path / "run" / name).unlink()
    assert tiny_run(tmp_path / "run", "--resume") == 0
    assert (tmp_path / "run" / "done.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fly"], "unknown command 'fly'"),
        (["train", "hoper-medium"], "did you mean hopper-medium"),
        (
            ["train", "allowance", "--agent", "gpt"],
            "unknown agent 'gpt'; known are saformer, dt, cdt",
        ),
        (
            ["train", "allowance", "--agent", "bc_safe"],
            "bc_safe is trained for one limit: say which",
        ),
        (
            ["train", "allowance", "--limit", "p20"],
            "saformer is not trained for one limit: leave limit (--limit) out",
        ),
        (["train", "allowance", "--window", "0"], "window must be at least 1"),
        (["sweep", "OUT/exists"], "FeasibleOptions has no option target_return; it has"),
        (["sweep", "OUT/exists", "--option", "temperature"], "say which values of temperature"),
        (["train", "allowance", "--device", "quantum"], "unknown device 'quantum'"),
        (["train", "allowance", "--resume", "--out", "OUT/none"], "no run to resume"),
        (["train", "allowance", "--tensorboard", "--out", "OUT/exists"], "already holds a run"),
        (
            ["train", "allowance", "--seed", "7", "--resume", "--out", "OUT/exists"],
            "begun with other settings",
        ),
        (["evaluate", "OUT/none"], "is not a run"),
        (["evaluate", "OUT/exists", "--limits", "-5"], "at least 0"),
        (["evaluate", "OUT/exists", "--limits", "ten"], "is not a limit"),
        (["evaluate", "OUT/exists", "--episodes", "0"], "at least one episode"),
        (["evaluate", "OUT/exists", "--candidates", "0"], "at least 1"),
        (["evaluate", "OUT/truncated"], "truncated or damaged"),
        (["evaluate", "OUT/other-task"], "belongs to another run"),
    ],
)
def test_mistakes_are_explained_in_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    tiny_run(tmp_path / "exists")
    tiny_run(tmp_path / "truncated")
    tiny_run(tmp_path / "other-task")
    checkpoint = tmp_path / "truncated" / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    spec = tmp_path / "other-task" / "run.json"
    edit(spec, task="hopper-medium")
    monkeypatch.chdir(tmp_path)  # where runs go that are not told where
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    capsys.readouterr()
    code = main([argument.replace("OUT", str(tmp_path)) for argument in arguments])
    said = capsys.readouterr().err
    assert code in {1, 2}
    assert message in said.replace("\n", " "), said
    assert "Traceback" not in said
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == kept, (
        "nothing half-written"
    )


@pytest.mark.filterwarnings("always::UserWarning:saformer")
def test_a_limit_outside_the_data_warns(tmp_path, capsys):
    tiny_run(tmp_path / "run")
    assert main(["evaluate", str(tmp_path / "run"), "--limits", "500", "--episodes", "1"]) == 0
    assert "limit 500 lies outside the data, whose episodes cost" in capsys.readouterr().err


def test_tensorboard_gets_the_metrics(tmp_path):
    pytest.importorskip("tensorboard")
    assert tiny_run(tmp_path / "run", "--tensorboard") == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert "critic/forecast_error" in events.Tags()["scalars"]


def test_doctor_names_what_is_missing(capsys, monkeypatch):
    """Seen to fail when a missing core package goes unnoticed."""
    from importlib.metadata import PackageNotFoundError

    from saformer.engine import installed

    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "device: " in said
    assert "torch" in said

    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(installed, "version", absent)
    assert main(["doctor"]) == 1
    assert "pip install 'saformer[mujoco]'" in capsys.readouterr().out
