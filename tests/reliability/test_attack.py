"""A small share of every campaign; `make attack` runs the whole."""

import subprocess
import sys
from pathlib import Path

import pytest
from scripts.attack.__main__ import CAMPAIGNS, main
from scripts.attack.campaign import Campaign, Failure, run


@pytest.mark.parametrize(("name", "tries"), [("shield", 15), ("numbers", 14), ("environments", 33)])
def test_no_try_fails(name, tries):
    """Seen to fail for all three: 50 spent of 5, actions of NaN, one number for a whole state."""
    assert run(CAMPAIGNS[name], tries, first_seed=0) == []


SHARES = {"mutations": 56, "kills": 3, "full disks": 2, "two at once": 2, "misuses": 12}
SHARES["Ray's workers and nodes"] = 1  # last: what follows would fork Ray's threads too
CALLS = """
import sys
import torch
from scripts.attack.__main__ import CAMPAIGNS, main
torch.set_num_threads(1)
shares = {shares}
sys.exit(max(main([name, "--tries", str(tries), "--seed", "2"]) for name, tries in shares.items()))
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_no_try_of_commands_and_files_fails():
    """In a process that has nothing but itself to fork. Seen to fail: a killed export of data was
    taken for a whole one, and rows of metrics without an update ended in a KeyError."""
    for package in ("minari", "h5py", "pyarrow", "mujoco", "ray"):
        pytest.importorskip(package)
    program = [sys.executable, "-c", CALLS.replace("{shares}", repr(SHARES))]
    ended = subprocess.run(program, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_what_fails_is_shown_with_its_seed(monkeypatch, capsys):
    """Also what an attempt raises, and how far it is. Seen to fail when an exception ends the
    campaign, and when nothing is said until its end."""

    def attempt(seed: int) -> str | None:
        if seed == 7:
            raise KeyError("lost")
        return "wrong" if seed == 8 else None

    bad = Campaign("bad", 10, attempt)
    assert [failure.seed for failure in run(bad, 5, first_seed=5)] == [7, 8]
    assert run(bad, 1, first_seed=8) == [Failure(8, "wrong")]
    monkeypatch.setitem(CAMPAIGNS, "bad", bad)
    assert main(["bad"]) == 1
    said = capsys.readouterr()
    assert "| bad | 10 | 2 |" in said.out
    assert "python -m scripts.attack bad --tries 1 --seed 8: wrong" in said.err
    assert "bad: 9 of 10\n" in said.err
    assert main(["bad", "--tries", "3"]) == 0
