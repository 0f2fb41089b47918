"""Files that are at any moment the old or the new one, whole; and locks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNFINISHED = ".unfinished"


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file; a process that is killed meanwhile leaves the old and an unfinished one."""
    with replacing(path) as unfinished:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write to the path that this yields: it replaces `path` once it is safely on disk."""
    unfinished = unfinished_path(path)
    try:
        yield unfinished
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def check_is_new(path: Path, what: str) -> None:
    """Refuse to write over what is there; `what` is written, in the plural."""
    if path.exists():
        remedy = "choose another name or remove it"
        raise FileExistsError(f"{path} exists; {what} are never overwritten: {remedy}")


def unfinished_path(path: Path) -> Path:
    """Where a file or folder is written before it takes its final name."""
    return path.with_name(f".{path.name}{UNFINISHED}")


def is_unfinished(path: Path) -> bool:
    """Whether a process that died while writing left this behind."""
    return path.name.endswith(UNFINISHED)


@contextmanager
def locked(lock: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock file; the system releases it when the process ends, however it does.

    Yields whether it is ours, which without `wait` it may not be.
    """
    try:
        import fcntl
    except ImportError:  # not a POSIX system: one writer at a time is up to the user
        yield wait
        return
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
