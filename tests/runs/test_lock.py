"""Two programs never write to one run."""

import subprocess
import sys

import pytest

import saformer
from saformer.envs import allowance
from saformer.runs.lock import alone_in
from saformer.training.loop.presets import Preset
from tests.conftest import tiny_config
from tests.training.test_finetune import FIT, original, tune

pytest.importorskip("fcntl")
HOLD = """
import sys, time
from pathlib import Path
from saformer.runs.lock import alone_in
with alone_in(Path(sys.argv[1])):
    print("within", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def other(tmp_path):
    """A process that holds a folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "within\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path, other):
    """However it goes. Seen to fail when nobody is kept out."""
    with pytest.raises(RuntimeError, match=f"written by process {other.pid}"), alone_in(tmp_path):
        pass
    other.kill()
    other.wait()
    with alone_in(tmp_path):
        assert (tmp_path / ".lock").exists()


def test_fine_tuning_and_training_keep_out_a_second_program(tmp_path):
    """Seen to fail when fine-tuning or training does not ask."""
    source = original(
        tmp_path / "original", allowance.dataset(episodes=100).save(tmp_path / "store").path
    )
    tuned = tune(source, tmp_path / "tuned").run
    (tuned.path / "done.json").unlink()
    before = (tuned.path / "episodes.jsonl").read_bytes()
    with alone_in(tuned.path), pytest.raises(RuntimeError, match="is being written"):
        tune(source, tuned.path, resume=True)
    assert (tuned.path / "episodes.jsonl").read_bytes() == before
    (source.path / "done.json").unlink()
    with alone_in(source.path), pytest.raises(RuntimeError, match="is being written"):
        saformer.train(
            source.spec.task,
            preset=Preset(tiny_config(), FIT),
            out=source.path,
            resume=True,
            device="cpu",
        )
