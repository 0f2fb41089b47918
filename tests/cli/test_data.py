"""`saformer data`: what the user types, from logs to a verdict."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from saformer import build_data
from saformer.cli.main import command_of, main
from saformer.data.folder import one_maker
from saformer.data.store import TrajectoryStore
from saformer.envs import allowance
from saformer.envs.tasks import data_path, find_task, make_data
from saformer.runs.run import latest_run
from tests import brief
from tests.data.test_store import files_may_hold

BRIEF = "--updates 4 --batch-size 4 --evaluate-every 0 --width 16 --layers 1 --candidates 4".split()  # noqa: SIM905
COLUMNS = "--state time_left price --action valve --reward profit --episode run --cost flow".split()  # noqa: SIM905


def write_log(path: Path, *, episodes: int = 30) -> Path:
    """Allowance as a plant's logger might have written it."""
    lines = ["run,time_left,price,valve,profit,flow"]
    for number, part in enumerate(allowance.dataset(episodes=episodes)):
        for state, action, reward in zip(part.state, part.action[:, 0], part.reward, strict=True):
            lines.append(f"{number},{state[0]},{state[1]},{action},{reward},{abs(action)}")
    path.write_text("\n".join(lines) + "\n")
    return path


def flags(verb: str, capsys) -> set[str]:
    with pytest.raises(SystemExit):
        command_of(["data", verb, "--help"])
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", capsys.readouterr().out)) - {"--help"}


def test_flags_are_frozen(capsys):
    """A flag that changes its name breaks somebody's script: change these on purpose only."""
    # fmt: off
    assert flags("build", capsys) == {"--environment", "--mixture", "--out", "--seed", "--steps", "--workers"}
    assert flags("import", capsys) == {
        "--action", "--action-high", "--action-low", "--check", "--columns", "--cost", "--criteria", "--delimiter",
        "--drop-faulty", "--environment", "--episode", "--episodes-per-file", "--gap", "--horizon", "--json",
        "--mapping", "--next-state", "--out", "--reward", "--state", "--terminated", "--time", "--truncated",
        "--decimal", "--discrete", "--encoding", "--episode-length", "--fill", "--fill-limit", "--na", "--resample",
        "--time-format", "--time-of-day", "--words",
    }
    assert flags("inspect", capsys) == {
        "--cost-discount", "--criteria", "--json", "--limits", "--mapping", "--may-end", "--report", "--seed", "--steps",
    }
    # fmt: on
    assert flags("export", capsys) == set()


def test_what_another_process_is_making_is_waited_for():
    """Seen to fail when both make it."""
    task, how = find_task("hopper-medium"), {"steps": 300, "seed": 4, "workers": 1}
    path = data_path(task, steps=300, seed=4)
    with ThreadPoolExecutor() as pool, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with one_maker(path):
            waiting = pool.submit(build_data, "hopper-medium", **how)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=1)
            made = make_data(task, path, **how)
        assert waiting.result(timeout=60) == path
    assert "is being made by another process" in str(told[0].message)
    assert TrajectoryStore.open(path).fingerprint == made.fingerprint


def test_build_is_kept_and_not_made_twice(capsys, tmp_path):
    """Seen to fail when a build is made anew each time."""
    arguments = [
        "data",
        "build",
        "hopper-medium",
        "--steps",
        "300",
        "--seed",
        "3",
        "--workers",
        "1",
    ]
    assert main(arguments) == 0
    path = Path(capsys.readouterr().out.strip())
    assert TrajectoryStore.open(path).environment.identifier == "Hopper-v5"
    assert set(TrajectoryStore.open(path).provenance["versions"]) >= {"gymnasium", "mujoco"}
    assert main(arguments) == 0
    assert "already built" in capsys.readouterr().err
    elsewhere = [*arguments, "--out", str(tmp_path / "mine")]
    assert main(elsewhere) == 0
    assert (
        TrajectoryStore.open(tmp_path / "mine").fingerprint
        == TrajectoryStore.open(path).fingerprint
    )
    assert main(elsewhere) == 1
    assert "never overwritten" in capsys.readouterr().err
    assert main(["data", "list"]) == 0
    assert "hopper-medium-300-seed3" in capsys.readouterr().out


@pytest.mark.parametrize(
    "after", [1.5, *(pytest.param(after, marks=pytest.mark.long) for after in (4, 7))]
)
def test_an_interrupted_build_leaves_nothing(tmp_path, after):
    """Ctrl-C while imports, workers' start and workers' work are going on.

    Seen to fail when workers are not stopped: the command would go on to the end.
    """
    code = (
        "import signal, sys\n"
        # where tests run in the background it is ignored
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from saformer.cli.main import main\n"
        "sys.exit(main('data build walker2d-medium --steps 2000000 --workers 2'.split()))\n"
    )
    environment = {**os.environ, "SAFORMER_HOME": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        time.sleep(after)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 130, said
    assert b"interrupted" in said
    assert b"Traceback" not in said
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_from_a_log_to_a_verdict_without_a_simulator(tmp_path):
    """With neither gymnasium nor mujoco: import, inspect, train, evaluate the store, doctor.

    Seen to fail when the API imports rollouts at its top.
    """
    log, store = write_log(tmp_path / "plant.csv"), tmp_path / "plant"
    code = (
        "import sys\n"
        "sys.modules['gymnasium'] = sys.modules['mujoco'] = None\n"
        "from saformer.cli.main import main\n"
        "from saformer.evaluation.offline import dynamics\n"
        "from saformer.rules import fitting\n"
        f"fitting.UPDATES = dynamics.UPDATES = {brief.BRIEF}\n"
        f"assert main(['data', 'import', {str(log)!r}, '--out', {str(store)!r}, *{COLUMNS!r}]) "
        "== 0\n"
        f"assert main(['data', 'inspect', {str(store)!r}]) == 0\n"
        f"assert main(['train', {str(store)!r}, *{BRIEF!r}]) == 0\n"
        f"assert main(['evaluate', {str(store)!r}, '--limits', 'p20', '8']) == 0\n"
        "assert main(['doctor']) == 0\n"
        f"assert main(['train', 'allowance', *{BRIEF!r}]) == 1\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "gymnasium is not installed" in done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    found = json.loads((run / "offline.json").read_text())
    assert found["num_held_out"] == 3
    assert [limit["limit"]["name"] for limit in found["limits"]] == ["p20", "8"]
    assert "no rollout" in done.stdout
    assert "no rollout" in (run / "report.html").read_text()
    spec = json.loads((run / "run.json").read_text())
    assert spec["criteria"] == ["flow"]
    assert spec["held_out"] == 0.1
    assert spec["task"] == str(store.resolve()), "found again from any folder"


def test_a_store_that_was_moved_is_found_again_on_request(tmp_path, capsys):
    recorded = allowance.dataset(episodes=20)
    store = replace(recorded, environment=replace(recorded.environment, identifier=None)).save(
        tmp_path / "old"
    )
    assert main(["train", str(tmp_path / "old"), *BRIEF, "--out", str(tmp_path / "run")]) == 0
    (tmp_path / "old").rename(tmp_path / "new")
    assert main(["evaluate", str(tmp_path / "run")]) == 1
    assert "say where it is now with --data" in capsys.readouterr().err.replace("\n", " ")
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(tmp_path / "new"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["held_out"]["num_held_out"] == 2
    assert len(store) == 20


@pytest.mark.parametrize("case", ["no such environment", "no such column online"])
def test_what_cannot_be_rolled_out_is_refused_before_training(tmp_path, capsys, case):
    """Seen to fail when only the first evaluation finds out: all that was trained until then would
    be lost."""
    arguments = [
        "train",
        str(tmp_path / "store"),
        *BRIEF,
        "--evaluate-every",
        "2",
        "--out",
        str(tmp_path / "run"),
    ]
    recorded = allowance.dataset(episodes=5)
    if case == "no such environment":
        replace(recorded, environment=replace(recorded.environment, identifier="Typo-v9")).save(
            tmp_path / "store"
        )
        expected = "environment 'Typo-v9' cannot be made"
    else:
        parts = [replace(part, columns={"flow": np.ones(len(part))}) for part in recorded]
        TrajectoryStore.of(parts, recorded.environment, criteria=("flow",)).save(tmp_path / "store")
        expected = (
            "reads 'flow', which environment 'saformer/Allowance-v0', by its info, does not offer"
        )
    assert main(arguments) == 1
    assert expected in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "run").exists()
    assert main([*arguments, "--evaluate-every", "0"]) == 0, (
        "without a rollout there is nothing in the way"
    )


def test_the_latest_run_of_a_store_that_can_be_judged_is_found(tmp_path, monkeypatch):
    """Seen to fail when a damaged run beside it, or one that was killed before its first
    checkpoint, is in the way."""
    monkeypatch.chdir(tmp_path)
    allowance.dataset(episodes=20).save(tmp_path / "store")
    with pytest.raises(FileNotFoundError, match="train first"):
        latest_run(str(tmp_path / "store"))
    assert main(["train", "store", *BRIEF, "--out", "runs/good"]) == 0
    for name, text in (("begun", Path("runs/good/run.json").read_text()), ("junk", "{}")):
        Path("runs", name).mkdir()
        Path("runs", name, "run.json").write_text(text)
    Path("runs/junk/checkpoint.safetensors").touch()
    assert latest_run(str(tmp_path / "store")) == Path("runs/good")


def test_a_store_that_grew_is_judged_as_it_was_trained_on(tmp_path, capsys):
    """Seen to fail when trajectories are held out of the grown store: most of them would have been
    trained on."""
    recorded = allowance.dataset(episodes=20)
    store = replace(recorded, environment=replace(recorded.environment, identifier=None)).save(
        tmp_path / "store"
    )
    assert main(["train", str(tmp_path / "store"), *BRIEF, "--out", str(tmp_path / "run")]) == 0
    arguments = ["evaluate", str(tmp_path / "run"), "--json", "--limits", "8"]
    assert main(arguments) == 0
    before = capsys.readouterr().out
    store.extend(list(allowance.dataset(episodes=40, seed=1)))
    assert main(arguments) == 0
    assert capsys.readouterr().out == before
    other = replace(allowance.dataset(episodes=20, seed=2), environment=store.environment).save(
        tmp_path / "other"
    )
    assert main([*arguments, "--data", str(other.path)]) == 1
    assert "nobody knows what it never saw" in capsys.readouterr().err


def test_criteria_are_kept_with_the_run(tmp_path, capsys):
    """Two constraints by expression, rolled out with the same costs. Seen to fail when only the
    first is used."""
    criteria = ["abs(action).sum()", "0.5 * (state[1] > 1)"]
    arguments = ["train", "allowance", "--data-steps", "400", *BRIEF, "--criteria", *criteria]
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["criteria"] == criteria
    capsys.readouterr()
    assert (
        main(
            ["evaluate", str(tmp_path / "run"), "--limits", "p50,4.5", "--episodes", "2", "--json"]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert len(found["episodes"][0]["cost"]) == 2
    dear = 0.5 * sum(allowance.PRICES > 1)
    assert found["episodes"][0]["cost"][1] == pytest.approx(dear)


def test_inspect_prints_tables_json_and_a_page(tmp_path, capsys):
    log = write_log(tmp_path / "plant.csv", episodes=60)
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(
        'state = ["time_left", "price"]\naction = "valve"\nreward = "profit"\nepisode = "run"\ncolumns = ["flow"]\n'
    )
    common = ["data", "inspect", str(log), "--mapping", str(mapping), "--criteria", "flow"]
    assert main([*common, "--report", str(tmp_path / "page.html")]) == 0
    shown = capsys.readouterr().out
    assert "Thresholds" in shown
    assert "60 trajectories" in shown
    assert "<svg" in (tmp_path / "page.html").read_text()
    assert main([*common, "--limits", "p10", "9", "--json"]) == 0
    assert [limit["name"] for limit in json.loads(capsys.readouterr().out)["limits"]] == [
        "p10",
        "9",
    ]


def test_check_reports_and_writes_nothing(tmp_path, capsys):
    """Seen to fail when a log with problems passes."""
    log = write_log(tmp_path / "plant.csv")
    assert main(["data", "import", str(log), "--check", *COLUMNS]) == 0
    assert "nothing stands in the way" in capsys.readouterr().out
    log.write_text(log.read_text() + "7,0.5,1,0.1,0.1,\n")
    assert main(["data", "import", str(log), "--check", "--json", *COLUMNS]) == 1
    found = json.loads(capsys.readouterr().out)
    assert len(found["problems"]) == 2, "a missing value, and rows of an episode that lie apart"
    assert list(tmp_path.iterdir()) == [log]


def test_a_folder_of_logs_is_not_in_its_own_way(tmp_path, monkeypatch, capsys):
    """Seen to fail when the store is named as the folder: it exists, and the user was told to
    remove it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    write_log(tmp_path / "logs" / "10:30.csv", episodes=3)
    assert main(["data", "import", "logs", *COLUMNS]) == 0
    assert len(TrajectoryStore.open("logs-store")) == 3
    assert main(["data", "import", "logs/10:30.csv", *COLUMNS]) == 0
    assert len(TrajectoryStore.open("10:30")) == 3, "a colon in a file's name is no host's"


def test_export_and_import_again(tmp_path, monkeypatch, capsys):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    allowance.dataset(episodes=3).save(tmp_path / "store")
    assert main(["data", "export", str(tmp_path / "store"), "tests/allowance-v0"]) == 0
    assert (
        main(["data", "import", "minari:tests/allowance-v0", "--out", str(tmp_path / "again")]) == 0
    )
    again = TrajectoryStore.open(tmp_path / "again")
    assert again.fingerprint == TrajectoryStore.open(tmp_path / "store").fingerprint


def test_several_files_of_arrays_become_one_store(tmp_path):
    for name, steps in (("medium", 4), ("expert", 6)):
        ends = np.arange(steps) == steps - 1
        np.savez(
            tmp_path / f"{name}.npz",
            states=np.ones((steps, 2)),
            actions=np.ones((steps, 1)),
            rewards=ends,
            timeouts=ends,
        )
    sources = [str(tmp_path / f"{name}.npz") for name in ("medium", "expert")]
    bounds = ["--action-low", "-2", "--action-high", "2"]
    assert main(["data", "import", *sources, "--out", str(tmp_path / "both"), *bounds]) == 0
    store = TrajectoryStore.open(tmp_path / "both")
    assert store.lengths.tolist() == [4, 6]
    assert store.environment.action_high == (2.0,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fly"], "unknown command 'fly'"),
        (["build", "hoper-medium"], "did you mean hopper-medium"),
        (["build", "hopper-medium", "--steps", "0"], "at least 1"),
        (["import"], "what is to be imported?"),
        (["import", "OUT/none.csv"], "there is no log"),
        (
            ["import", "OUT/plant.csv", "--reward", "profit"],
            "no column is named as state: the header is run, time_left",
        ),
        (["import", "OUT/plant.csv", "--mapping", "OUT/none.toml"], "No such file"),
        (["import", "OUT/plant.csv", *COLUMNS, "--criteria", "__import__('os')"], "__import__"),
        (
            ["import", "OUT/plant.csv", *COLUMNS, "--criteria", "flov"],
            "plant.csv: there is no column 'flov' for cost; did you mean 'flow'?",
        ),
        (["import", "OUT/plant.csv", *COLUMNS, "--out", "OUT/exists"], "never overwritten"),
        (
            ["import", "OUT/plant.csv", *COLUMNS, "--action-low", "1", "2"],
            "2 action bounds for 1 action columns",
        ),
        (
            ["inspect", "OUT/exists", "--criteria", "flov"],
            "reads 'flov', which the data does not offer",
        ),
        (
            ["inspect", "OUT/exists", "--criteria", "stat[0]"],
            "did you mean 'state'? On offer: action, next_state, reward",
        ),
        (["inspect", "OUT/exists", "--criteria", "action"], "values per step"),
        (["inspect", "OUT/exists", "--cost-discount", "2"], "cost_discount must lie in"),
        (["inspect", "OUT/plant.csv.gz"], "there is no trajectory store at"),
        (["export", "OUT/exists", "not an id"], "Malformed dataset ID"),
        (
            ["export", "OUT/exists", "mine/pump"],
            "Malformed dataset ID 'mine/pump': Minari's end in a version",
        ),
    ],
)
def test_mistakes_are_explained_in_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    write_log(tmp_path / "plant.csv", episodes=3)
    allowance.dataset(episodes=3).save(tmp_path / "exists")
    monkeypatch.chdir(tmp_path)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    capsys.readouterr()
    code = main(["data", *(argument.replace("OUT", str(tmp_path)) for argument in arguments)])
    said = capsys.readouterr().err
    assert code in {1, 2}
    assert message in said.replace("\n", " "), said
    assert "Traceback" not in said
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == kept, (
        "nothing half-written"
    )


def test_a_full_disk_is_explained_and_leaves_nothing(tmp_path, capsys):
    """Seen to fail when the unfinished folder is not removed."""
    log = write_log(tmp_path / "plant.csv", episodes=200)
    with files_may_hold(5000):
        assert main(["data", "import", str(log), "--out", str(tmp_path / "store"), *COLUMNS]) == 1
    assert "File too large" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [log]


def test_code_named_by_a_store_is_not_run(tmp_path, capsys):
    """A store may come from anywhere. Seen to fail when its criteria are trusted."""
    (tmp_path / "evil.py").write_text("raise SystemExit('run')")
    hostile = replace(allowance.dataset(episodes=3), criteria=("evil:cost",))
    hostile.save(tmp_path / "store")
    assert main(["data", "inspect", str(tmp_path / "store")]) == 1
    assert "would run Python code" in capsys.readouterr().err
