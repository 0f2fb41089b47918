"""SIGKILL at random moments of every command that writes.

Half of the kills come at a moment of the clock, half at one of the command's file operations. The
command is then repeated, with nothing cleaned, until it was killed `KILLS` times, and once more to
its end: that must succeed, leave what an undisturbed one leaves, no temporary file and no process.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from scripts.attack.campaign import Campaign
from scripts.attack.process import Process
from scripts.attack.world import VERBS, Verb, command, content, copy, world

KILLS = 3
REAL = 50
"""Of so many tries, one is of real processes, from the interpreter's start; the others fork."""
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree")


def attempt(seed: int) -> str | None:
    """One command, killed and repeated."""
    rng = np.random.default_rng(seed)
    name = drawn_verb(rng)
    verb, is_real = VERBS[name], seed % REAL == REAL - 1
    expected, seconds, operations = undisturbed(name)
    folder = copy("folder", verb.words)
    for _ in range(KILLS):
        words = repeated(verb, folder)
        if is_real:
            problem = _kill_real(words, folder, rng.uniform(0, 4 + seconds))
        elif rng.random() < 0.5:
            problem = _kill(words, folder, after=rng.uniform(0, 1.2 * seconds))
        else:
            problem = _kill(words, folder, at=int(rng.integers(1, operations + 1)))
        if problem:
            return f"{name}: {problem}"
    return f"{name}: {problem}" if (problem := _finish(verb, folder, expected)) else None


def drawn_verb(rng: np.random.Generator) -> str:
    weights = np.array([verb.weight for verb in VERBS.values()])
    return str(rng.choice(list(VERBS), p=weights / weights.sum()))


@functools.cache
def undisturbed(name: str) -> tuple[dict[str, str], float, int]:
    """What a command leaves, how long it takes, and how many file operations."""
    verb = VERBS[name]
    folder = copy("folder", verb.words)
    counted = folder.parent / "operations"
    process = Process(_counting(verb.words, lambda n: counted.write_text(str(n))), folder, _said())
    ended = process.wait()
    if ended.code:
        raise RuntimeError(f"{name} fails undisturbed: {ended.said}")
    return content(folder / verb.result), process.seconds, int(counted.read_text())


def repeated(verb: Verb, folder: Path) -> str:
    """The command as a user would repeat it."""
    has_begun = verb.resumes and (folder / verb.result / "run.json").exists()
    return f"{verb.words} --resume" if has_begun else verb.words


def _said() -> Path:
    return world().parent / "said"


def _counting(words: str, then: Callable[[int], object], at: int = 0) -> Callable[[], int]:
    """The command, which counts its file operations and dies at one of them, if that is named."""
    count = 0

    def hook(event: str, details: tuple[object, ...]) -> None:
        nonlocal count
        is_write = event == "open" and isinstance(details[2], int) and details[2] & 3
        if is_write or event in CHANGES:
            count += 1
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)

    def call() -> int:
        sys.addaudithook(hook)
        code = command(words)
        then(count)
        return code

    return call


def _kill(words: str, folder: Path, *, after: float = 0.0, at: int = 0) -> str | None:
    process = Process(_counting(words, lambda n: None, at), folder, _said())
    if not at:
        time.sleep(after)
        process.kill()
    return _trouble(process, is_killed=True)


def _trouble(process: Process, *, is_killed: bool) -> str | None:
    """What is wrong with the end of a process, which may be that it had finished before."""
    ended, left = process.wait(), process.left()
    if left:
        return f"{len(left)} processes were left"
    is_there = "are never overwritten" in " ".join(ended.said.split())  # it had finished before
    if (ended.code > 0 and not is_there) or (ended.code < 0 and not is_killed):
        return ended.problem or f"refused when it was repeated: {' '.join(ended.said.split())}"
    return None


def _kill_real(words: str, folder: Path, after: float) -> str | None:
    program = [sys.executable, "-m", "saformer", *words.split()]
    with _said().open("wb") as said:
        process = subprocess.Popen(
            program, cwd=folder, stdout=said, stderr=said, start_new_session=True
        )
        time.sleep(after)
        process.kill()
        process.wait()
    return None


def _finish(verb: Verb, folder: Path, expected: dict[str, str]) -> str | None:
    words = repeated(verb, folder)
    process = Process(lambda: command(words), folder, _said())
    return _trouble(process, is_killed=False) or different(verb, folder, expected)


def different(verb: Verb, folder: Path, expected: dict[str, str]) -> str | None:
    """Where a command's result is not what an undisturbed one leaves."""
    result = content(folder / verb.result)
    names = sorted(n for n in {*result, *expected} if result.get(n) != expected.get(n))
    return f"{', '.join(names)} differ from an undisturbed one's" if names else None


def verb_of(seed: int) -> str:
    return drawn_verb(np.random.default_rng(seed))


CAMPAIGN = Campaign("kills", 350, attempt, KILLS, verb_of)
