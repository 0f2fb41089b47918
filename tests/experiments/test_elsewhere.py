"""Runs that are made on other machines: in a folder that all share, or brought back."""

import shutil
from dataclasses import replace

import pytest

from saformer.engine.engine import LocalEngine
from saformer.experiments.conduct import Site, conduct
from saformer.experiments.elsewhere import carry_out_elsewhere, receive, sent
from saformer.experiments.plan import Judging, RunJob, Training
from saformer.runs.lock import LOCK
from saformer.runs.run import Run
from tests.experiments.test_conduct import DATASET, SETTING, experiment, times

JUDGING = Judging(Training(DATASET, "dt"), ("p50",))


def made(folder, node, *judgings):
    """With a node that has a folder of its own."""
    site = Site(folder / "runs", device="cpu", elsewhere=True, node_runs=node)
    (result,) = conduct([experiment(*judgings)], SETTING, engine=LocalEngine(), site=site)
    assert not result.failed
    return result


def job(folder):
    return RunJob(SETTING, (JUDGING.training,), (JUDGING,), (), str(folder), device="cpu")


def test_runs_are_brought_back(tmp_path):
    """Seen to fail when files stay where they were made."""
    result = made(tmp_path, tmp_path / "node", JUDGING)
    (run,) = (tmp_path / "runs").iterdir()
    assert result.rows["verdicts"][0]["run"] == run.name
    here, there = (
        {path.name: path.read_bytes() for path in folder.iterdir()}
        for folder in (run, tmp_path / "node" / run.name)
    )
    assert there.pop(LOCK), "of the node's own process"
    assert here == there
    assert Run(run).is_done
    assert Run(run).load().facts["update"] == 20


def test_what_was_finished_is_not_redone_on_another_node(tmp_path):
    """Nor on one that lost its disk. Seen to fail when nodes are not told what there is."""
    first = made(tmp_path, tmp_path / "node", JUDGING)
    before = times(tmp_path)
    shutil.rmtree(tmp_path / "node")
    again = made(tmp_path, tmp_path / "other", JUDGING)
    assert again.rows == first.rows
    assert times(tmp_path) == before
    made(tmp_path, tmp_path / "other", JUDGING, Judging(JUDGING.training, ("p30",), "another"))
    after = times(tmp_path)
    assert {path: after[path] for path in before} == before
    assert len(after) == len(before) + 1


def test_a_node_keeps_what_it_has_come_further_with(tmp_path):
    """Seen to fail when a finished run is replaced by one that had only begun."""
    made(tmp_path, tmp_path / "node", JUDGING)
    (run,) = (tmp_path / "runs").iterdir()
    (run / "done.json").unlink()
    (run / "metrics.jsonl").write_text("")
    (tmp_path / "node" / run.name / "mark").touch()
    with sent([job(tmp_path / "runs")], tmp_path / "runs", tmp_path / "node") as (one,):
        brought = carry_out_elsewhere(one)
    assert f"{run.name}/mark" in brought.files
    receive(brought.files, tmp_path / "runs")
    assert Run(run).is_done
    assert len(list(Run(run).metrics())) == 2


def test_a_folder_that_is_not_shared_is_found_out(tmp_path):
    """Seen to fail when nodes write wherever they are."""
    with sent([job(tmp_path / "runs")], tmp_path / "runs", None) as (one,):
        assert carry_out_elsewhere(one).files == {}
        other = replace(one, runs=str(tmp_path / "elsewhere"))
        with pytest.raises(ValueError, match="does not see the folder"):
            carry_out_elsewhere(other)
    assert not (tmp_path / "elsewhere").exists()
    assert [path for path in (tmp_path / "runs").iterdir() if not path.is_dir()] == []


def test_nodes_make_the_data_they_miss(tmp_path, monkeypatch):
    """Seen to fail when data is looked for only."""
    monkeypatch.setenv("SAFORMER_HOME", str(tmp_path / "home"))
    derived = replace(
        job(tmp_path / "runs"), trainings=(Training(f"{DATASET}-from-p10", "dt"),), judgings=()
    )
    with sent([derived], tmp_path / "runs", None) as (one,):
        assert carry_out_elsewhere(one).failed == []
    (run,) = (Run(path) for path in (tmp_path / "runs").iterdir())
    assert run.is_done
