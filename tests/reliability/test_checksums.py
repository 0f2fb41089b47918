"""What decides how a policy acts has a checksum."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import saformer
from saformer.cli.main import main
from saformer.runs.export import policy_identity
from saformer.runs.run import Run
from tests.editing import edit


@pytest.fixture
def run(source, tmp_path) -> Run:
    return Run(shutil.copytree(source.path, tmp_path / "run"))


def flip(file, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 0x10
    file.write_bytes(content)


def test_flipped_bits_of_a_checkpoint_are_noticed(run):
    """Anywhere in its tensors. Seen to fail: 7 of 250 mutations were loaded."""
    size = run.checkpoint_path.stat().st_size
    header = 8 + int.from_bytes(run.checkpoint_path.read_bytes()[:8], "little")
    for position in np.random.default_rng(0).integers(header, size, 20):
        flip(run.checkpoint_path, position)
        with pytest.raises(ValueError, match=r"is not what was saved|truncated or damaged"):
            run.load()
        flip(run.checkpoint_path, position)
    run.load()


def test_only_what_is_read_of_a_checkpoint_is_checked(run):
    """Judging a policy does not read its optimisers."""
    checkpoint = run.load()
    checkpoint.groups["optimizer.actor"]["0.exp_avg"] += 1
    tensors = load_file(run.checkpoint_path)
    metadata = _metadata(run)
    tensors["optimizer.actor/0.exp_avg"] += 1
    save_file(tensors, run.checkpoint_path, metadata)
    run.load(groups=("model",))
    with pytest.raises(ValueError, match=r"optimizer.actor .* is not what was saved"):
        run.load()
    metadata["facts"] = metadata["facts"].replace('"update": 3', '"update": 2')
    save_file(tensors, run.checkpoint_path, metadata)
    with pytest.raises(ValueError, match=r"facts .* is not what was saved"):
        run.load(groups=())


def test_a_checkpoint_without_checksums_is_loaded(run):
    """As older versions wrote them."""
    metadata = _metadata(run)
    del metadata["sha256"]
    save_file(load_file(run.checkpoint_path), run.checkpoint_path, metadata)
    run.load()


def _metadata(run: Run) -> dict[str, str]:
    from safetensors import safe_open

    with safe_open(run.checkpoint_path, framework="pt") as file:
        return dict(file.metadata())


def test_what_a_rule_fitted_is_part_of_a_policys_identity(run):
    """A calibration of a policy that acts otherwise is refused."""
    model = saformer.load(run.path, device="cpu").agent.model
    weights = {**model.state_dict(), "outlook.level": torch.zeros(3)}
    other = {**weights, "outlook.level": torch.ones(3)}
    assert policy_identity(run, weights) != policy_identity(run, other)


def test_data_check_finds_flipped_bits(source, tmp_path, capsys):
    """No command looked for them."""
    store = shutil.copytree(source.spec.task, tmp_path / "store")
    assert main(["data", "check", str(store)]) == 0
    assert "100 trajectories" in capsys.readouterr().out
    flip(store / "steps" / "reward.bin", 4 * 25)
    assert main(["data", "check", str(store)]) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "1 of 100 trajectories are not what was stored: 1" in error


def test_doctor_checks_a_run(run, tmp_path, capsys):
    assert main(["doctor", str(run.path)]) == 0
    assert "whole" in capsys.readouterr().out
    assert main(["export", str(run.path), str(tmp_path / "exported"), "--dtype", "float32"]) == 0
    assert main(["doctor", str(tmp_path / "exported")]) == 0
    flip(run.checkpoint_path, -5)
    assert main(["doctor", str(run.path)]) == 1
    assert "is not what was saved" in " ".join(capsys.readouterr().err.split())
    edit(tmp_path / "exported" / "export.json", sha256="0" * 64)
    assert main(["doctor", str(tmp_path / "exported")]) == 1
