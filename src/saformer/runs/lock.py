"""A folder that one process at a time writes to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ModuleNotFoundError:  # Windows has other locks; there nobody is kept out
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Refuse to begin while another process is within, until that one ends, however it does."""
    with (folder / LOCK).open("a+") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                owner = f"process {file.read().strip() or 'another one'}"
                wait = "wait until it has finished, or stop it first"
                raise RuntimeError(f"{folder} is being written by {owner}; {wait}") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
