"""Whether episodes may end early: declared by data, chosen at a call, and said by every verb."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import saformer
from saformer.agents.saformer import SaFormerAgent
from saformer.cli.main import main
from saformer.core.rules import PaperOptions
from saformer.data.store import TrajectoryStore
from saformer.envs.tasks import Task, data_path, find_task, load_data, task_names
from saformer.report.rollouts import write_report
from saformer.report.table import mark_of, summary, verdict_rows, verdict_table
from saformer.runs.run import Run
from tests.editing import unsigned
from tests.envs import ending

SETTINGS = "--updates 3 --batch-size 8 --evaluate-every 0 --width 16 --layers 1 --candidates 4 --temperature 0.5"
ROLLING = ("--device", "cpu", "--workers", "0", "--rule", "paper")
NEW = {"may_end", "ended_early", "data_ended_early", "nothing", "idle_limits", "uncapped_share"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose episodes may not end early, though half of them did, and a run on it."""
    folder = tmp_path_factory.mktemp("endings")
    ending.store(may_end=False).save(folder / "store")
    arguments = ["train", str(folder / "store"), *SETTINGS.split(), "--out", str(folder / "run")]
    assert main([*arguments, "--device", "cpu"]) == 0
    return folder


def evaluated(folder: Path, capsys, *more: str) -> tuple[str, dict]:
    """What `evaluate` prints, and what it writes."""
    capsys.readouterr()
    call = ["evaluate", str(folder / "run"), "--limits", "p20", "p90", "--episodes", "2"]
    assert main([*call, *ROLLING, *more]) == 0
    content = json.loads((folder / "run" / "evaluation.json").read_text())
    return " ".join(capsys.readouterr().out.split()), content


def test_evaluate_says_the_setting_the_endings_and_doing_nothing(folder, capsys):
    """Seen to fail when the flag is not heard, and when the data's own setting is not."""
    said, content = evaluated(folder, capsys)
    assert content["may_end"] is False
    assert content["data_ended_early"] == 0.5
    assert "(data 50%), which none may" in said
    assert "doing nothing 0/2" in said
    assert "no recorded episode keeps p20 without ending early" in said
    page = (folder / "run" / "report.html").read_text()
    assert "doing nothing" in page
    assert "which none may" in page
    said, content = evaluated(folder, capsys, "--may-end", "yes")
    assert content["may_end"] is True
    assert "which they may" in said
    assert "doing nothing 2/2" in said
    assert "no recorded episode" not in said


def test_evaluations_of_older_versions_are_still_shown(folder, capsys, tmp_path):
    """Seen to fail when a new key is taken for granted."""
    _, content = evaluated(folder, capsys)
    old = {name: value for name, value in content.items() if name not in NEW}
    for kind in ("verdicts", "episodes"):
        old[kind] = [{k: v for k, v in each.items() if k not in NEW} for each in old[kind]]
    assert verdict_table(old).row_count == 2
    run = Run(tmp_path)
    for name in ("run.json", "trace.json", "metrics.jsonl"):
        (tmp_path / name).write_text((folder / "run" / name).read_text())
    run.write_json("evaluation.json", old)
    assert write_report(run, tmp_path / "report.html").exists()


def test_calibrate_and_sweep_count_endings(folder, capsys):
    """An episode that ends early passes its limit. Seen to fail when costs alone count."""
    trained = saformer.load(folder / "run", device="cpu", workers=0)
    how = {"rule": "paper", "limits": ["p90"], "may_end": True}
    calibration = trained.calibrate(0.5, episodes=5, margins=(0.0,), **how)
    assert calibration.may_end
    with pytest.raises(ValueError, match="may_end False for True"):
        trained.evaluate(rate=0.5, limits=["p90"], may_end=False)
    assert trained.evaluate(rate=0.5, limits=["p90"], episodes=2).plain()["may_end"]
    swept = trained.sweep([2, 4], option="candidates", episodes=2, **how).plain()
    assert swept["may_end"] is True
    assert swept["nothing"]["ended_early"] == 1.0
    call = ["sweep", str(folder / "run"), "--option", "candidates", "--values", "2"]
    assert main([*call, "--limits", "p90", "--episodes", "1", *ROLLING]) == 0
    assert "doing nothing" in capsys.readouterr().out


def test_an_export_knows_what_its_data_knew(folder, tmp_path):
    """Seen to fail when totals alone forget how episodes ended."""
    trained = saformer.load(folder / "run", device="cpu")
    trained.export(tmp_path / "export", dtype="float32")
    totals = saformer.load(tmp_path / "export", device="cpu").totals
    assert totals.ended_early.mean() == 0.5
    assert not totals.environment.may_end
    assert totals.with_environment(may_end=True).environment.may_end


def test_an_export_of_an_older_version_goes_by_its_task(folder, tmp_path):
    """Seen to fail when what it does not say counts as no for the nine, and when it is unreadable."""
    saformer.load(folder / "run", device="cpu").export(tmp_path / "export", dtype="float32")
    for task, declared in (("hopper-medium", True), (str(folder / "store"), False)):
        for name, part in (("export.json", "environment"), ("run.json", None)):
            path = tmp_path / "export" / name
            plain = unsigned(path)
            (plain[part].pop("may_end", None) if part else plain.update(task=task))
            path.write_text(json.dumps(plain))
        assert saformer.api.run_data.may_end_of(Run(tmp_path / "export")) is declared


@dataclass(frozen=True)
class Reading(PaperOptions):
    """Options of a rule that reads whether episodes may end."""

    may_end: bool = True


def test_a_rule_hears_whether_episodes_may_end(folder, monkeypatch):
    """As the data says, unless the caller says otherwise. Seen to fail without either."""
    monkeypatch.setattr(SaFormerAgent, "options_of", classmethod(lambda *_: Reading()))
    trained = saformer.load(folder / "run", device="cpu")
    assert not trained.options("paper").may_end
    assert trained.options("paper", may_end=True).may_end
    assert trained.options("paper", {"may_end": True}).may_end
    assert SaFormerAgent.with_may_end(PaperOptions(), False) == PaperOptions(), "it reads nothing"


def test_a_finetuned_run_keeps_what_was_chosen(folder, tmp_path):
    """Its store says so from then on. Seen to fail when the original's setting returns."""
    trained = saformer.load(folder / "run", device="cpu", workers=0)
    brief = {"episodes": 2, "lanes": 2, "updates": 1, "evaluation_episodes": 2}
    tuned = trained.finetune(["p50"], out=tmp_path / "tuned", may_end=True, **brief)
    assert saformer.load(tuned.run.path, device="cpu").may_end
    assert not saformer.load(folder / "run", device="cpu").may_end


def test_tasks_declare_it_whenever_their_data_was_made(tmp_path, monkeypatch):
    """Seen to fail when a store that was built before decides."""
    monkeypatch.setenv("SAFORMER_HOME", str(tmp_path))
    nine = [name for name in task_names() if name.split("-", 1)[-1].startswith("medium")]
    assert len(nine) == 9
    assert all(find_task(name).may_end for name in [*nine, "allowance"])
    others = [*(set(task_names()) - {*nine, "allowance"}), "d4rl:hopper-medium-v2"]
    assert not any(find_task(name).may_end for name in others)
    task = replace(find_task("hopper-medium"), make=None)
    ending.store(may_end=False).save(data_path(task, steps=8))
    assert load_data(task, steps=8).environment.may_end
    assert not Task("own").may_end


def test_inspect_shows_how_episodes_ended(folder, capsys):
    """Seen to fail when the limits that only endings keep are not named."""
    assert main(["data", "inspect", str(folder / "store")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "ended early 10 50.0%" in said
    assert "No episode may end early" in said
    assert (
        "No recorded episode keeps p10 = 0.02, p20 = 0.02, p30 = 0.02, p40 = 0.02 and p50" in said
    )
    page = folder / "page.html"
    call = ["data", "inspect", str(folder / "store"), "--may-end", "yes", "--report", str(page)]
    assert main(call) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Episodes may end early" in said
    assert "No recorded episode keeps" not in said
    assert "Episodes may end early" in page.read_text()


def test_a_store_of_which_every_episode_ended_early_can_be_inspected(tmp_path):
    """Seen to fail when a frontier must have a first value."""
    store = ending.store(may_end=False)
    (early := store.filter(store.ended_early)).save(tmp_path / "store")
    page = tmp_path / "page.html"
    assert main(["data", "inspect", str(tmp_path / "store"), "--report", str(page)]) == 0
    assert len(TrajectoryStore.open(tmp_path / "store")) == len(early)


@pytest.mark.parametrize(
    ("met", "within", "mark"),
    [(True, 0.95, "safe"), (True, 0.94, "met"), (False, 0.96, "missed"), (False, 0.5, "missed")],
)
def test_green_needs_nearly_all_episodes(met, within, mark):
    """Seen to fail when the mean is enough."""
    assert mark_of(met, within) == mark


def test_a_policy_that_earns_no_more_than_doing_nothing_is_said_to(folder, capsys):
    _, content = evaluated(folder, capsys)
    assert "earns no more than doing nothing under p20" in summary(
        {**content, "idle_limits": ["p20"]}
    )
    headings, rows = verdict_rows(content)
    assert rows[-1][0] == "doing nothing"
    assert rows[-1][headings.index("ended")] == "100%"
