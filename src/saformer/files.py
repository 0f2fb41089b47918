"""The one writer of files: at any moment the old or the new one is there, whole; and locks.

What is being written has a name that nobody can guess, and is locked until it has its final one:
what a killed process left is so told from what is still being written, and removed by the next that
writes there. Links are never written through.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # not a POSIX system: one writer at a time is up to the user
    fcntl = None  # type: ignore[assignment]

UNFINISHED, CHECKSUM = ".unfinished", "sha256_of_all_else"
ABANDONED = re.compile(rf"\..+\.[0-9a-f]{{16}}{re.escape(UNFINISHED)}")
END_OF_CHECKSUM = re.compile("[0-9a-f]{16}$")
DIGESTS = ("sha256", "checksum")
"""Entries that may be the last of a file, and are held against what they are of."""
NO_LINKS: int = getattr(os, "O_NOFOLLOW", 0)
NO_ROOM = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "your share of the disk is used up",
    errno.EFBIG: "files may not grow so large here (ulimit -f)",
}


class FullDiskError(OSError):
    """What was to be written found no room; what was there before is whole."""


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file by this content."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write to the file that this yields: it replaces `path` once it is safely on disk."""
    remove_abandoned(path.parent)
    with finding_room(path):
        unfinished, descriptor = _held(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            with os.fdopen(descriptor, "w+b") as file:
                yield file
                file.flush()
                os.fsync(descriptor)
                os.replace(unfinished, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


@contextmanager
def unfinished_folder(path: Path, what: str) -> Iterator[Path]:
    """A folder to fill and then to `publish` at this path; else nothing is left of it."""
    remove_abandoned(path.parent)
    check_is_new(path, what)
    path.parent.mkdir(parents=True, exist_ok=True)
    with finding_room(path):
        folder, descriptor = _held(path, os.O_RDONLY)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


def publish(folder: Path, path: Path, what: str) -> None:
    """Give a folder its final name, which must still be free."""
    try:
        os.rename(folder, path)
    except OSError:
        check_is_new(path, what)
        raise


def append_line(path: Path, line: str) -> None:
    with finding_room(path), os.fdopen(_open(path, os.O_RDWR | os.O_CREAT), "r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(f"{line}\n".encode())


def open_to_change(path: Path) -> BinaryIO:
    """An existing file, to be changed in place; neither it nor its folder may be a link."""
    folder = _open(path.parent, os.O_RDONLY)
    try:
        return os.fdopen(_open(path, os.O_RDWR, folder), "r+b")
    finally:
        os.close(folder)


@contextmanager
def finding_room(path: Path) -> Iterator[None]:
    """Say which file found no room, and why."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        why, remedy = NO_ROOM[error.errno], "what was there before is whole: make room and repeat"
        raise FullDiskError(f"{path}: {why} ({error.strerror}); {remedy}") from None


def check_is_new(path: Path, what: str) -> None:
    """Refuse to write over what is there; `what` is written, in the plural."""
    if os.path.lexists(path):
        remedy = "choose another name or remove it"
        raise FileExistsError(f"{path} exists; {what} are never overwritten: {remedy}")


def unfinished_path(path: Path) -> Path:
    """A name of its own for a file or folder that is written before it takes its final one."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{UNFINISHED}")


def is_unfinished(path: Path) -> bool:
    """Whether this is being written, or left by a process that died while it wrote."""
    return path.name.endswith(UNFINISHED)


def remove_abandoned(folder: Path) -> None:
    """Remove what killed processes left when they wrote to a folder: what none of them holds."""
    if fcntl is None or not folder.is_dir():
        return
    for left in (folder / name for name in os.listdir(folder) if ABANDONED.fullmatch(name)):
        with suppress(OSError):  # still held, or gone already
            descriptor = os.open(left, os.O_RDONLY | NO_LINKS | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (shutil.rmtree if left.is_dir() else os.unlink)(left)
            finally:
                os.close(descriptor)


@contextmanager
def locked(lock: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock file, with our process's number in it; the system releases it when the process
    ends, however it does.

    Yields whether it is ours, which without `wait` it may not be.
    """
    if fcntl is None:
        yield wait
        return
    descriptor = _lock(lock, wait=wait)
    if descriptor is None:
        yield False
        return
    with suppress(OSError):  # on a full disk it holds all the same
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
    try:
        yield True
    finally:
        os.close(descriptor)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a file by this content and its checksum."""
    plain = {name: value for name, value in content.items() if name != CHECKSUM}
    write_atomically(path, json.dumps({**plain, CHECKSUM: _checksum(plain)}, indent=2))


def read_json(path: Path, schema: Any, remedy: str) -> Any:
    """What a JSON file holds, if it is what this schema (a type) says and what was written."""
    try:
        content = validated(schema, path.read_bytes(), path, remedy)
    except IsADirectoryError:
        raise ValueError(f"{path} is damaged (it is a folder); {remedy}") from None
    if isinstance(content, dict) and not _is_as_written(content):
        changed = f"{path} was damaged or changed since it was written"
        raise ValueError(f"{changed}; {remedy}, or remove its {CHECKSUM} if you changed it")
    return content


def _is_as_written(content: dict[str, Any]) -> bool:
    """Whether the checksum, which is taken out, is right; older versions wrote none."""
    if CHECKSUM in content:
        return bool(content.pop(CHECKSUM) == _checksum(content))
    *rest, (name, last) = content.items() if content else [("", "")]
    is_rest_of_one = isinstance(last, str) and END_OF_CHECKSUM.search(last) and name not in DIGESTS
    return not is_rest_of_one and last != _checksum(dict(rest))  # else its name was damaged


def validated(schema: Any, content: Any, path: Path, remedy: str) -> Any:
    """What was read from a file (or its bytes) as this type, or an error of one line that names the
    file, the first entry that is wrong and the remedy. Nothing is converted but lists to tuples."""
    from pydantic import ValidationError  # late: most commands need no schema

    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    try:
        return _adapter(schema).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        entry = ".".join(map(str, first["loc"]))
        given = "" if entry == "" else f", got {str(first['input'])[:40]!r}"
        why = f"{entry}: {first['msg']}{given}".removeprefix(": ")
        raise ValueError(f"{path} is damaged or of another version ({why}); {remedy}") from None


def _checksum(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


@cache
def _adapter(schema: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(schema)


def _lock(lock: Path, *, wait: bool) -> int | None:
    """A descriptor of the locked file, which its last owner may have removed; None: not ours."""
    while True:
        descriptor = _open(lock, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_at(descriptor, lock):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _held(path: Path, flags: int) -> tuple[Path, int]:
    """A new file (to be created by its flags) or folder, held: who looks for abandoned ones may
    have taken it before we did."""
    while True:
        unfinished = unfinished_path(path)
        if not flags & os.O_CREAT:
            unfinished.mkdir()
        with suppress(FileNotFoundError):
            descriptor = _open(unfinished, flags)
            _hold(descriptor)
            if _is_at(descriptor, unfinished):
                return unfinished, descriptor
            os.close(descriptor)


def _hold(descriptor: int) -> None:
    if fcntl is not None:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _open(path: Path, flags: int, folder: int | None = None) -> int:
    """A descriptor, with the permissions that the user's other files have."""
    name = path if folder is None else path.name
    try:
        return os.open(name, flags | NO_LINKS | os.O_CLOEXEC, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP or (error.errno == errno.ENOTDIR and path.is_symlink()):
            refused = f"{path} is a symbolic link, and links are never written through"
            raise OSError(f"{refused}: remove it, or copy what it leads to") from None
        raise
