"""Full disks under every command that writes.

On a file system of a few kilobytes (where one may be mounted), or with a limit on the size of files
(elsewhere, and for every other try). The command either finishes or says in a line that there was
no room; then it is repeated with room, and leaves what an undisturbed one leaves.
"""

from __future__ import annotations

import functools
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from scripts.attack.campaign import Campaign
from scripts.attack.kills import different, drawn_verb, repeated, undisturbed
from scripts.attack.process import Process
from scripts.attack.world import VERBS, command, copy, world

WORDS = ("the disk is full", "files may not grow so large")


def attempt(seed: int) -> str | None:
    """One command, with room for a part of what it writes."""
    rng = np.random.default_rng(seed)
    name = drawn_verb(rng)
    verb = VERBS[name]
    expected, _, _ = undisturbed(name)
    folder = copy("folder", verb.words)
    with _little_room(folder, rng) as prepare:
        problem = _run(repeated(verb, folder), folder, prepare, may_fail=True)
    problem = problem or _run(repeated(verb, folder), folder, lambda: None, may_fail=False)
    problem = problem or different(verb, folder, expected)
    return f"{name}: {problem}" if problem else None


@contextmanager
def _little_room(folder: Path, rng: np.random.Generator) -> Iterator[Callable[[], None]]:
    """Yields what the process does first; what was written is kept afterwards."""
    if rng.random() < 0.5 or not _can_mount():
        size = int(rng.integers(0, 40_000))
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        return
    used = sum(file.stat().st_size + 4096 for file in folder.rglob("*"))
    size = used // 1024 + int(rng.integers(4, 400))
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.mkdir()
    _mount(folder, size)
    try:
        shutil.copytree(aside, folder, dirs_exist_ok=True)
        yield lambda: None
    finally:
        shutil.rmtree(aside)
        shutil.copytree(folder, aside, symlinks=True)
        subprocess.run(["umount", "--lazy", folder], check=True)
        folder.rmdir()
        aside.rename(folder)


def _mount(folder: Path, kilobytes: int) -> None:
    how = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(folder)]
    subprocess.run(how, check=True, capture_output=True)


@functools.cache
def _can_mount() -> bool:
    folder = world().parent / "mounted"
    folder.mkdir()
    try:
        _mount(folder, 4)
    except (OSError, subprocess.CalledProcessError):
        return False
    subprocess.run(["umount", folder], check=True)
    return True


def _run(words: str, folder: Path, first: Callable[[], None], *, may_fail: bool) -> str | None:
    def call() -> int:
        first()
        return command(words)

    process = Process(call, folder, world().parent / "said")
    ended, left = process.wait(), process.left()
    said = " ".join(ended.said.split())
    if left:
        return f"{len(left)} processes were left"
    if ended.problem or ended.code == 0 or "are never overwritten" in said:
        return ended.problem
    is_said = may_fail and any(word in said for word in WORDS)
    return None if is_said else f"exit {ended.code}: {said[-400:]}"


CAMPAIGN = Campaign("full disks", 200, attempt)
