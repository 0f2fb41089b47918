"""Two processes that share every batch learn what one learns from all of it."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from saformer.cli.main import main
from saformer.engine.distributed import Ranks, joined_ranks
from saformer.runs.run import Run
from tests.training import ranks as scenarios

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def start(*arguments: str, **options) -> subprocess.Popen:
    """Under torchrun, in two processes."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        ),
        "OMP_NUM_THREADS": "1",
        **options.pop("environment", {}),
    }
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*TORCHRUN, *arguments], env=environment, **streams, **options)


def play(folder: Path, device: str, *scenarios: str) -> None:
    """Scenarios of tests/training/ranks.py, to their end."""
    process = start("-m", "tests.training.ranks", str(folder), device, *scenarios)
    try:
        said, _ = process.communicate(timeout=120)
    finally:
        process.terminate()  # which ends the ranks, should they wait for one another
    assert process.returncode == 0, said[-3000:]


def reports(folder: Path, scenario: str) -> list[dict]:
    """What each rank found."""
    found = [json.loads((folder / f"{scenario}-{rank}.json").read_text()) for rank in range(2)]
    assert len(found) == 2
    return found


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    play(folder, "cpu", "same", "interrupted", "diverging", "refused")
    return folder


def test_two_ranks_are_one_with_the_whole_batch(shared, tmp_path):
    """Padded windows, a clip that acts, and other initial weights on the second rank. Seen to fail
    when each rank divides by its own valid steps, when gradients are clipped before they are added,
    and when windows are drawn twice.
    """
    alone = scenarios.train(tmp_path / "doubles", Ranks(), double=True)
    rows = [list(Run(path / "doubles").metrics()) for path in (shared, tmp_path)]
    assert len(rows[0]) == len(rows[1]) == 12
    for mine, theirs in zip(*rows, strict=True):
        assert {k: v for k, v in mine.items() if k != "seconds"} == pytest.approx(
            {k: v for k, v in theirs.items() if k != "seconds"}, abs=1e-5
        )
    weights = load_file(shared / "doubles" / "weights-0")
    for name, value in alone.model.state_dict().items():
        assert (weights[name] - value).abs().max() < 1e-10, name


def test_ranks_keep_the_same_weights(shared):
    """With dropout too, of which each has its own. Seen to fail when ranks begin from weights of
    their own."""
    for kind in ("doubles", "floats"):
        mine, theirs = (load_file(shared / kind / f"weights-{rank}") for rank in range(2))
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    random = Run(shared / "floats").load(groups=("random",)).groups["random"]
    assert not torch.equal(random["torch"], random["torch.1"])


def test_the_first_rank_alone_writes(shared):
    """Seen to fail when every rank adds its rows."""
    assert [row["update"] for row in Run(shared / "floats").metrics()] == list(range(1, 13))
    assert Run(shared / "floats").is_done


def test_what_two_ranks_began_one_can_finish(shared, tmp_path):
    """The batch and its windows are those of the run, whoever shares them."""
    weights = load_file(shared / "doubles" / "weights-0")
    begun = Run.create(tmp_path / "run", Run(shared / "doubles").spec)
    shutil.copy(shared / "begun", begun.checkpoint_path)
    assert begun.load(groups=()).facts["update"] == 5
    agent = scenarios.train(tmp_path / "run", Ranks(), double=True, resume=True)
    for name, value in agent.model.state_dict().items():
        assert (weights[name] - value).abs().max() < 1e-10, name


def test_an_interrupt_stops_both_and_both_go_on(shared):
    """One rank hears it. Seen to fail when each heeds its own signals alone, and when noise is the
    first rank's."""
    for found in reports(shared, "interrupted"):
        assert found["said"].startswith("stopped after update 7 of 12")
        assert found["equal"]
    assert Run(shared / "broken").is_done


def test_a_loss_that_is_not_finite_on_one_rank_stops_both(shared):
    """Seen to fail when each rank looks at its own losses alone."""
    for found in reports(shared, "diverging"):
        assert "not finite at update 6" in found["said"]
        assert found["update"] == 6
    assert not Run(shared / "bad").is_done


def test_agents_that_look_at_their_whole_batch_are_refused(shared):
    assert all("without torchrun" in found["said"] for found in reports(shared, "refused"))


def test_the_command_under_torchrun(tmp_path):
    """Ctrl-C in the terminal saves, and the first rank alone says so. Seen to fail when every rank
    speaks."""
    command = [
        "-m",
        "saformer",
        "train",
        "allowance",
        "--out",
        str(tmp_path / "run"),
        "--device",
        "cpu",
    ]
    sizes = [
        "--layers",
        "1",
        "--width",
        "16",
        "--window",
        "3",
        "--batch-size",
        "16",
        "--checkpoint-every",
        "1000",
    ]
    environment = {"SAFORMER_HOME": str(tmp_path / "home")}
    process = start(
        *command, *sizes, "--updates", "100000", environment=environment, start_new_session=True
    )
    for _ in range(2400):  # until it is there, however busy the machine is
        if any(row["update"] >= 100 for row in Run(tmp_path / "run").metrics()):
            break
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert said.count("Go on with") == 1, said[-3000:]
    stopped = Run(tmp_path / "run").load(groups=()).facts["update"]
    assert stopped >= 100
    assert stopped % 1000


def test_alone_nothing_is_joined_ranks(monkeypatch):
    """Whatever a cluster's own variables say. Seen to fail when any WORLD_SIZE is torchrun's."""
    monkeypatch.setenv("WORLD_SIZE", "8")
    with joined_ranks(torch.device("cpu")) as (ranks, device):
        assert (ranks, device) == (Ranks(0, 1), torch.device("cpu"))
        assert not torch.distributed.is_initialized()


def test_torchrun_is_for_training_alone(monkeypatch, capsys):
    """Seen to fail when every rank would make every page."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["experiment", "thresholds"]) == 2
    assert "for `train` alone" in capsys.readouterr().err


def test_shares_are_the_whole():
    """Also where they are not of one size."""
    for size, count in ((2, 10), (3, 10), (4, 7)):
        shares = [list(range(count))[Ranks(rank, size).share(count)] for rank in range(size)]
        assert list(itertools.chain(*shares)) == list(range(count))
        assert {len(share) for share in shares} <= {count // size, count // size + 1}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_two_ranks_on_a_gpu_are_one_with_the_whole_batch(tmp_path):
    """On one GPU they speak by gloo, on two by NCCL."""
    (tmp_path / "shared").mkdir()
    play(tmp_path / "shared", "cuda", "same")
    alone = scenarios.train(tmp_path / "doubles", Ranks(), double=True, device="cuda")
    weights = load_file(tmp_path / "shared" / "doubles" / "weights-0")
    for name, value in alone.model.state_dict().items():
        assert (weights[name] - value.cpu()).abs().max() < 1e-9, name
