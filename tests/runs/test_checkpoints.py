"""Checkpoints and run folders: whole or absent, and only ever their own."""

import json
import os

import pytest
import torch

from saformer.core.batch import Dimensions
from saformer.runs import checkpoint as checkpoints
from saformer.runs.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from saformer.runs.run import Run
from saformer.runs.spec import RunSpec


def spec(**changes) -> RunSpec:
    values = {
        "task": "allowance",
        "agent": "saformer",
        "agent_config": {"window": 4},
        "fit_config": {"updates": 3},
        "seed": 0,
        "criteria": ("torque",),
        "data_steps": None,
        "data_seed": 0,
        "data_fingerprint": "abc",
        "dimensions": Dimensions(state=2, action=1, horizon=20),
    }
    return RunSpec(**{**values, **changes})


SAVED = Checkpoint(
    {"model": {"a.b": torch.arange(3.0)}, "random": {"x": torch.tensor([7], dtype=torch.uint8)}},
    {"n": 1},
)


def test_what_is_saved_is_what_is_loaded(tmp_path):
    save_checkpoint(tmp_path / "c", SAVED)
    found = load_checkpoint(tmp_path / "c")
    assert found.facts == {"n": 1}
    assert torch.equal(found.groups["model"]["a.b"], torch.arange(3.0))
    assert found.groups["random"]["x"].dtype == torch.uint8
    assert set(load_checkpoint(tmp_path / "c", groups=("model",)).groups) == {"model"}


@pytest.mark.parametrize("size", [0, 5, 100, -1])
def test_a_truncated_checkpoint_is_refused(tmp_path, size):
    """Seen to fail when the library's own error gets through."""
    save_checkpoint(tmp_path / "c", SAVED)
    content = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(content[:size])
    with pytest.raises(ValueError, match="truncated or damaged"):
        load_checkpoint(tmp_path / "c")


def test_a_checkpoint_of_another_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "VERSION", 99)
    save_checkpoint(tmp_path / "c", SAVED)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="checkpoint version 99; this version reads 1"):
        load_checkpoint(tmp_path / "c")


def test_a_missing_checkpoint_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="train first"):
        load_checkpoint(tmp_path / "c")


@pytest.mark.parametrize("step", ["save", "replace"])
def test_a_death_while_saving_leaves_the_old_checkpoint(tmp_path, monkeypatch, step):
    """Seen to fail when the checkpoint is written in place."""
    save_checkpoint(tmp_path / "c", SAVED)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(*((checkpoints, "save") if step == "save" else (os, "replace")), die)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path / "c", Checkpoint({"model": {"a.b": torch.zeros(3)}}, {"n": 2}))
    monkeypatch.undo()
    assert load_checkpoint(tmp_path / "c").facts == {"n": 1}


def test_a_run_keeps_its_spec(tmp_path):
    run = Run.create(tmp_path / "run", spec())
    assert Run(run.path).spec == spec()
    assert Run(run.path).spec.digest == spec().digest != spec(seed=1).digest
    assert spec().differences(spec(seed=1)) == ["seed: 0 here, 1 there"]


def test_a_run_with_a_checkpoint_is_not_begun_again(tmp_path):
    run = Run.create(tmp_path / "run", spec())
    Run.create(tmp_path / "run", spec())  # nothing was trained yet: fine
    run.save(Checkpoint({}, {"spec": spec().digest}))
    with pytest.raises(FileExistsError, match="--resume"):
        Run.create(tmp_path / "run", spec())


def test_a_folder_that_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is not a run"):
        Run.create(tmp_path, spec())
    assert os.listdir(tmp_path) == ["precious.txt"]


def test_what_a_death_left_behind_is_in_nobodys_way(tmp_path):
    """Killed while run.json was first written. Seen to fail when such a folder is taken for
    somebody else's."""
    (tmp_path / ".run.json.unfinished").write_text("{")
    assert Run.create(tmp_path, spec()).spec == spec()


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    """Seen to fail when the digest is not compared."""
    run = Run.create(tmp_path / "run", spec())
    run.save(Checkpoint({}, {"spec": spec(task="hopper-medium").digest}))
    with pytest.raises(ValueError, match="belongs to another run"):
        run.load()


@pytest.mark.parametrize("text", ["{", "{}", json.dumps({"task": "x"})])
def test_a_damaged_spec_is_refused(tmp_path, text):
    run = Run.create(tmp_path / "run", spec())
    run.spec_path.write_text(text)
    with pytest.raises(ValueError, match="damaged or of another version"):
        _ = run.spec


def test_metrics_after_the_checkpoint_are_forgotten(tmp_path):
    """Seen to fail when rows are written twice after a resume."""
    run = Run.create(tmp_path / "run", spec())
    for update in (10, 20, 30):
        run.append_metrics({"update": update})
    with run.metrics_path.open("a") as file:
        file.write('{"update": 4')  # killed while writing
    run.rewind_metrics(20)
    assert [row["update"] for row in run.metrics()] == [10, 20]
