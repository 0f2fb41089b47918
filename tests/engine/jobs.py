"""Jobs that other processes can import."""

import os
import signal
import time
from pathlib import Path


def doubled(number: int) -> int:
    if number == 3:
        raise ValueError("three is refused")
    return 2 * number


def dies_once(path: str) -> str:
    """Kills its process, the first time that it is tried."""
    if "mortal" in path and not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return path


def dies(number: int) -> int:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def saves_when_told(path: str) -> str:
    """Sleeps until SIGTERM, then saves."""

    def save(*_):
        Path(path).write_text("saved")
        raise SystemExit

    signal.signal(signal.SIGTERM, save)
    Path(path).with_suffix(".started").touch()
    time.sleep(120)
    return path
