"""One writer at a time: who loses a lock has touched nothing."""

import pytest

import saformer
from saformer.runs.lock import alone_in
from saformer.runs.run import Run
from saformer.training.loop.presets import Preset
from tests.conftest import tiny_config
from tests.training.test_finetune import CONFIG, FIT, contents, tune

pytest.importorskip("fcntl")


def train(source: Run, out, **changes):
    preset = Preset(tiny_config(), FIT)
    return saformer.train(source.spec.task, preset=preset, out=out, device="cpu", **changes)


def test_who_loses_the_lock_does_not_relabel_the_run(source, tmp_path):
    """A run that was just begun, by another process. Seen to fail: run.json was the loser's."""
    run = Run.create(tmp_path / "run", source.spec)
    run.append_metrics({"update": 1})
    with alone_in(run.path):
        before = contents(run.path)
        for resume in (False, True):
            with pytest.raises(
                (RuntimeError, ValueError), match=r"is being written|other settings"
            ):
                train(source, run.path, seed=1, resume=resume)
        with pytest.raises(RuntimeError, match="is being written by process"):
            train(source, run.path, seed=1)
        assert contents(run.path) == before
    assert Run(run.path).spec.seed == 0


def test_who_loses_the_lock_does_not_relabel_a_fine_tuning(source, tmp_path):
    """Seen to fail: run.json had the limits of the one that was refused."""
    run = Run.create(tmp_path / "run", source.spec)
    with alone_in(run.path):
        before = contents(run.path)
        with pytest.raises(RuntimeError, match="is being written by process"):
            tune(source, run.path, limits=[0.5])
        assert contents(run.path) == before


def test_a_folder_that_is_refused_is_left_as_it_was(source, tmp_path):
    """No lock is left in a folder that is not a run."""
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is not a run"):
        train(source, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_fine_tuning_to_another_limit_has_a_folder_of_its_own(source, tmp_path, monkeypatch):
    """Seen to fail: the default folder was the same for all limits."""
    monkeypatch.chdir(tmp_path)
    how = {"config": CONFIG, "workers": 0, "device": "cpu", "episodes": 1}
    run = saformer.finetune(source.path, ["p10", 0.5], **how).run
    assert str(run.path) == "runs/original-finetuned-p10-0.5-seed0"


def test_a_page_is_kept_beside_the_evaluation_that_it_shows(source, tmp_path):
    """Another process may have kept one since. Seen to fail when the newest gets it."""
    run, page = Run(tmp_path), tmp_path / "report.html"
    page.write_text("of ours")
    run.write_json("evaluation.json", {"seed": 0})
    ours, theirs = (run.keep(["p50"], {"seed": seed}) for seed in (0, 1))
    run.keep_page(page)
    assert ours.with_suffix(".html").read_text() == "of ours"
    assert not theirs.with_suffix(".html").exists()
