"""Every agent from the command line: listed, trained, evaluated, reported."""

import json
import shlex
from dataclasses import replace

import pytest

import saformer
from saformer.agents.registry import KINDS
from saformer.cli.main import command_of, main
from saformer.data.limits import parse_limit
from saformer.data.store import TrajectoryStore
from saformer.envs import allowance, rollout
from saformer.runs.run import Run
from saformer.training.loop.presets import PRESETS
from tests.trained import train

BRIEF = shlex.split(
    "--data-steps 2000 --updates 4 --batch-size 8 --checkpoint-every 2 --evaluate-every 2 "
    "--report-every 1"
)


def train_briefly(name: str, path, *more: str) -> int:
    limit = ["--limit", "p60"] if KINDS[name].has_one_limit else []
    return train(["allowance", "--agent", name, *limit, *BRIEF, *more], path)


def test_agents_are_listed_with_one_line_each(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["agents"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(KINDS)
    for line, kind in zip(lines[1:], KINDS.values(), strict=True):
        assert kind.description in line
        assert line.split()[1] == ("yes" if kind.has_one_limit else "no")


@pytest.mark.filterwarnings("always::UserWarning:saformer")
@pytest.mark.parametrize("name", list(KINDS))
def test_train_evaluate_and_report_every_agent(tmp_path, capsys, name):
    """Judged at the limit that it was trained for, if it was. Seen to fail when that limit is not
    kept."""
    assert train_briefly(name, tmp_path / "run") == 0
    spec = Run(tmp_path / "run").spec
    assert (spec.agent, spec.limit) == (name, "p60" if KINDS[name].has_one_limit else None)
    rows = [row for row in Run(tmp_path / "run").metrics() if "evaluation" in row]
    assert [list(row["evaluation"]) for row in rows] == [
        [spec.limit] if spec.limit else ["p10", "p50", "p90"]
    ] * 2
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--episodes", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    names = [verdict["limit"]["name"] for verdict in found["verdicts"]]
    assert names == (["p60"] if spec.limit else ["p10", "p20", "p30", "p50"])
    if spec.limit:
        expected = parse_limit("p60", saformer.data_of(Run(tmp_path / "run"))).values
        assert spec.agent_config["limit"] == list(expected)
        assert found["verdicts"][0]["limit"]["values"] == list(expected)
    page = (tmp_path / "run" / "report.html").read_text()
    _, there, curves = page.partition("Learning curves")
    assert there
    assert (">limit</text>" in curves) == (
        name in {"bcq_lag", "cpq", "coptidice"}
    )  # beside what they expect to cost
    assert ("trained for the limit p60" in page) == (spec.limit is not None)


@pytest.mark.parametrize("name", list(KINDS))
def test_every_agent_can_be_resumed(tmp_path, capsys, name):
    """Its settings are found to be the same. Seen to fail when tuples are compared with lists."""
    assert train_briefly(name, tmp_path / "run") == 0
    (tmp_path / "run" / "done.json").unlink()
    assert train_briefly(name, tmp_path / "run", "--resume") == 0
    assert (tmp_path / "run" / "done.json").exists()


@pytest.mark.filterwarnings("always::UserWarning:saformer")
def test_a_limit_that_nothing_keeps(tmp_path, capsys):
    assert (
        main(
            [
                "train",
                "allowance",
                "--agent",
                "bc_safe",
                "--limit",
                "0.001",
                *BRIEF,
                "--out",
                str(tmp_path / "run"),
            ]
        )
        == 1
    )
    said = capsys.readouterr().err.replace("\n", " ")
    assert "lies outside the data" in said
    assert "nothing to learn from" in said
    assert not (tmp_path / "run").exists()


def test_the_api_takes_agent_and_limit(tmp_path):
    """Seen to fail when the limit is not brought into the cost's own units."""
    small = PRESETS["small"]("bc_safe")
    brief = type(small)(small.agent, type(small.fit)(updates=2, batch_size=4))
    run = saformer.train(
        "allowance", agent="bc_safe", limit=9, preset=brief, data_steps=2000, out=tmp_path / "one"
    )
    spec = run.run.spec
    assert spec.agent_config["limit"] == [9.0]
    assert spec.name.startswith("allowance-bc_safe-9-seed0-")
    assert saformer.load(run.path).agent.config.limit == (9.0,)
    with pytest.raises(ValueError, match="the preset is for bc_safe, not for dt"):
        saformer.train("allowance", agent="dt", preset=brief)
    with pytest.raises(ValueError, match="unknown preset 'tiny'"):
        saformer.train("allowance", preset="tiny")
    with pytest.raises(ValueError, match="SequenceOptions has no option candidates; it has noise"):
        saformer.evaluate(run.path, options={"candidates": 3})


def test_flags_are_those_of_the_agent(tmp_path, capsys):
    """Seen to fail when the options of a run are always SaFormer's."""
    assert (
        command_of(["train", "allowance", "--agent", "dt", "--action", "gaussian"]).config.action
        == "gaussian"
    )
    assert command_of(["train", "allowance", "--agent=cdt", "--preset=paper"]).config.window == 20
    assert train_briefly("dt", tmp_path / "run", "--action", "gaussian") == 0
    command = ["evaluate", str(tmp_path / "run"), "--target-return", "7", "--noise", "two_point"]
    found = command_of(command)
    assert (found.acting.target_return, found.acting.noise) == (7.0, "two_point")
    assert (
        main(
            [
                "evaluate",
                str(tmp_path / "run"),
                "--target-return",
                "7",
                "--limits",
                "p50",
                "--episodes",
                "1",
            ]
        )
        == 0
    )
    assert (
        json.loads((tmp_path / "run" / "evaluation.json").read_text())["options"]["target_return"]
        == 7.0
    )


def test_another_limit_than_the_trained_one_is_remarked_on(tmp_path, capsys):
    """Evaluated and swept, but not where it is the same limit by another name.

    Seen to fail when nothing is said, and when limits are told apart by their names.
    """
    assert train_briefly("bc_safe", tmp_path / "run") == 0
    run, brief = str(tmp_path / "run"), ["--episodes", "1"]
    trained = f"{Run(run).spec.agent_config['limit'][0]!r}"
    sweep = ["sweep", run, "--option", "temperature", "--values", "1", "--workers", "0"]
    for command, limits, remarked in (
        (["evaluate", run], ["--limits", "p50", "p60"], True),
        (["evaluate", run], ["--limits", trained], False),
        (["evaluate", run], [], False),
        (sweep, ["--limits", "p50"], True),
    ):
        capsys.readouterr()
        assert main([*command, *limits, *brief]) == 0
        said = " ".join(capsys.readouterr().err.split())
        assert ("bc_safe was trained for the limit p60 = " in said) == remarked
        assert ("judged under: p50 = " in said) == remarked


def test_a_sweep_is_stepped_by_as_many_workers_as_asked(tmp_path, monkeypatch):
    """Seen to fail when the flag goes nowhere."""
    assert train_briefly("dt", tmp_path / "run") == 0
    asked = []
    original = rollout.rollout
    monkeypatch.setattr(
        rollout, "rollout",
        lambda *parts, workers, **more: asked.append(workers) or original(*parts, workers=workers, **more),
    )  # fmt: skip
    command = [
        "sweep",
        str(tmp_path / "run"),
        "--limits",
        "p50",
        "--episodes",
        "1",
        "--values",
        "5",
    ]
    assert main([*command, "--workers", "0"]) == 0
    assert main(command) == 0
    assert asked == [0, 0, "auto", "auto"], "nothing is done once beside each"


def test_a_sweep_finds_the_return_that_earns_most(tmp_path, capsys):
    """Seen to fail when every trial asks for the same return."""
    assert train_briefly("dt", tmp_path / "run") == 0
    capsys.readouterr()
    command = ["sweep", str(tmp_path / "run"), "--limits", "p50", "--episodes", "1", "--json"]
    assert main([*command, "--values", "30", "5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [trial["value"] for trial in found["trials"]] == [5.0, 30.0]
    first, second = (trial["mean_return"] for trial in found["trials"])
    assert first != second
    assert found["best"] == (5.0 if first > second else 30.0)
    assert json.loads((tmp_path / "run" / "sweep.json").read_text())["best"] == found["best"]
    assert main(command) == 0
    assert len(json.loads(capsys.readouterr().out)["trials"]) == 5, (
        "the usual target is the highest stored return"
    )


def test_the_model_of_saformer_alone_is_judged_offline(tmp_path, capsys):
    """Any policy can be estimated. Seen to fail where dt's is refused."""
    assert train_briefly("dt", tmp_path / "run", "--held-out", "0.1") == 0
    assert main(["evaluate", str(tmp_path / "run"), "--offline", "--episodes", "2"]) == 0
    assert "held-out logs" not in capsys.readouterr().out
    with pytest.raises(ValueError, match="without a rollout only saformer can be judged"):
        saformer.evaluate_offline(tmp_path / "run", device="cpu")


def test_without_a_simulator_nothing_can_be_tried(tmp_path, capsys):
    recorded = allowance.dataset(episodes=20)
    TrajectoryStore.of(recorded, replace(recorded.environment, identifier=None)).save(
        tmp_path / "logs"
    )
    brief = ["--updates", "2", "--batch-size", "4", "--out", str(tmp_path / "run")]
    assert main(["train", str(tmp_path / "logs"), "--agent", "dt", *brief]) == 0
    assert main(["sweep", str(tmp_path / "run")]) == 1
    assert "has no environment to roll out in" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "saformer",
            ["sweep", "RUN", "--option", "candidates", "--values", "2.5"],
            "candidates is a whole number",
        ),
        (
            "cdt",
            ["sweep", "RUN", "--option", "noise", "--values", "1"],
            "noise is one of none, normal, two_point",
        ),
        ("dt", ["sweep", "RUN", "--values", "nan"], "target_return must be finite"),
        (
            "bcq_lag",
            ["evaluate", "RUN", "--candidates", "0"],
            "candidates must be at least 1, got 0",
        ),
    ],
)
def test_options_of_the_wrong_kind_are_refused_in_one_line(
    tmp_path, capsys, name, arguments, message
):
    """Seen to fail when options are taken as they come: tracebacks, or another policy than was
    asked for."""
    assert train_briefly(name, tmp_path / "run") == 0
    capsys.readouterr()
    assert main([argument.replace("RUN", str(tmp_path / "run")) for argument in arguments]) == 1
    assert f": {message}" in capsys.readouterr().err


def test_whole_numbers_are_swept(tmp_path, capsys):
    """Seen to fail when candidates stay fractions, as the command line reads them."""
    assert train_briefly("saformer", tmp_path / "run") == 0
    command = ["sweep", str(tmp_path / "run"), "--option", "candidates", "--values", "2", "4"]
    assert main([*command, "--limits", "p50", "--episodes", "1"]) == 0
    assert "candidates" in capsys.readouterr().out


def test_every_run_of_several_says_how_far_it_is(tmp_path, capsys):
    """Seen to fail when lines that the first run said are not said again."""
    command = [
        "train",
        "allowance",
        "--agent",
        "dt",
        *BRIEF,
        "--evaluate-every",
        "0",
        "--seed",
        "0",
        "1",
    ]
    assert main([*command, "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err.count("training: 4 of 4") == 2


def test_narrow_terminals_cut_no_figure(tmp_path, capsys, monkeypatch):
    """Two constraints on 80 columns. Seen to fail when cells that do not fit are cut short."""
    monkeypatch.setenv("COLUMNS", "80")
    assert train_briefly("dt", tmp_path / "run", "--criteria", "torque", "energy") == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--episodes", "1"]) == 0
    assert "\N{HORIZONTAL ELLIPSIS}" not in capsys.readouterr().out
