"""No process outlives the command that started it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("mujoco")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_workers_of_a_killed_build_end(tmp_path):
    """Seen to fail: they waited for ever, and held what the build printed to."""
    command = "data build hopper-medium --steps 400000 --workers 2 --out new"
    process = subprocess.Popen(
        [sys.executable, "-m", "saformer", *command.split()],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        process_group=0,
    )
    assert process.stderr is not None
    _wait_for(lambda: len(_group(process.pid)) >= 3)  # workers and a resource tracker
    time.sleep(1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    try:
        _wait_for(lambda: not _group(process.pid))
    finally:
        for left in _group(process.pid):
            os.kill(left, signal.SIGKILL)


def _group(leader: int) -> list[int]:
    """The processes of this group that are alive."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(group) == leader and state != "Z":
            members.append(int(stat.parent.name))
    return members


def _wait_for(happens, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.05)
