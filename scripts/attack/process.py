"""Commands in processes of their own: forks of this one, which has imported everything already."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path

PATIENCE = 120.0  # seconds; what takes longer hangs


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it printed."""

    code: int  # negative: by this signal
    said: str

    @property
    def problem(self) -> str | None:
        """Of a command that is to succeed, or to say in a line what is wrong."""
        if self.code < 0:
            return f"ended by {signal.Signals(-self.code).name}"
        if "Traceback (most recent call last)" in self.said or self.code > 2:
            return f"exit {self.code}: {' '.join(self.said.split())[-400:]}"
        return None


class Process:
    """A call in a fork, as the first of a session, so that all it starts can be found."""

    def __init__(self, call: Callable[[], int], folder: Path, output: Path) -> None:
        self._output = output
        self._began = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            _become(call, folder, output)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, seconds: float = PATIENCE) -> Ended:
        """Until it ends; one that takes longer is killed."""
        end = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > end:
                self.kill()
            time.sleep(0.002)
        self.seconds = time.monotonic() - self._began
        said = self._output.read_text(errors="replace")
        return Ended(os.waitstatus_to_exitcode(status), said)

    def left(self, patience: float = 60.0) -> list[int]:
        """Processes of its session that are still there after this time; they are ended."""
        end = time.monotonic() + patience
        while (members := _session(self.pid)) and time.monotonic() < end:
            time.sleep(0.02)
        for member in members:
            os.kill(member, signal.SIGKILL)
        return members


def run(call: Callable[[], int], folder: Path, seconds: float = PATIENCE) -> Ended:
    """How a call in a fork ended; killed if it took longer."""
    return Process(call, folder, folder.parent / f"{folder.name}.said").wait(seconds)


def _become(call: Callable[[], int], folder: Path, output: Path) -> None:
    """What the fork does until its end."""
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = (os.fdopen(each, "w", closefd=False) for each in (1, 2))
        code = call()
        atexit._run_exitfuncs()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _session(leader: int) -> list[int]:
    """Its processes that are alive."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) == leader and state != "Z":
            members.append(int(stat.parent.name))
    return members


class Server:
    """A fork that answers one question after another; one that dies is replaced by another."""

    def __init__(self, answer: Callable[[int], str | None], begin: Callable[[], Path]) -> None:
        """`begin` makes the folder that it answers in, anew for every fork."""
        self._answer, self._begin = answer, begin
        self._process: Process | None = None

    def ask(self, question: int, seconds: float) -> str | None:
        """Its answer, or how it died, or that it took longer."""
        if self._process is None:
            self._start()
        assert self._process is not None
        self._connection.send(question)
        if not self._connection.poll(seconds):
            return self._end(f"no answer in {seconds:g} seconds")
        try:
            answer: str | None = self._connection.recv()
        except EOFError:
            return self._end("")
        return answer

    def _start(self) -> None:
        folder = self._begin()
        self._connection, theirs = Pipe()

        def serve() -> int:
            self._connection.close()
            while True:
                theirs.send(self._answer(theirs.recv()))

        self._process = Process(serve, folder, folder.parent / f"{folder.name}.said")
        theirs.close()

    def _end(self, problem: str) -> str:
        assert self._process is not None
        if problem:
            self._process.kill()
        ended, self._process = self._process.wait(), None
        return problem or ended.problem or f"exit {ended.code}"
