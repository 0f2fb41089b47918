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


def stops_once(path: str) -> str:
    """Told to end while it works, it saves and stops; tried again, it goes on."""
    if Path(path).exists():
        return "gone on"
    Path(path).touch()
    raise KeyboardInterrupt


def saves_when_interrupted(path: str) -> str:
    """Sleeps until Ctrl-C, then saves, which takes a moment."""
    try:
        Path(path).with_suffix(".started").touch()
        for _ in range(1200):  # one long sleep would not hear of it
            time.sleep(0.1)
    except KeyboardInterrupt:
        time.sleep(0.5)
        Path(path).write_text("saved")
        raise
    return path


def slowly(path: str) -> int:
    """Says whose child it is, and takes a while."""
    Path(path).write_text(str(os.getppid()))
    time.sleep(3)
    return os.getpid()
