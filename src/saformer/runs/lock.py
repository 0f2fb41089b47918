"""A folder that one process at a time writes to."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from saformer.files import locked

LOCK = ".lock"


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Refuse to begin while another process is within, until that one ends, however it does."""
    lock = folder / LOCK
    with locked(lock, wait=False) as is_ours:
        if not is_ours and os.name == "posix":
            owner = f"process {lock.read_text().strip() or 'another one'}"
            wait = "wait until it has finished, or stop it first"
            raise RuntimeError(f"{folder} is being written by {owner}; {wait}")
        yield
