"""SIGKILL of a server under load: no session's account is lost, and none is booked twice.

Clients drive episodes in threads of a process of their own. They know to the bit what they have
spent, and hold every answer against it. The server is killed at random moments and begun again with
the same folder; in the end it is told to stop, and must do so well. Some requests are sent without
waiting for their answer, some sessions taken up again from what the server says of them.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from saformer.client import Answer, PolicyClient, RemoteSession
from scripts.attack.campaign import Campaign
from scripts.attack.process import Process, run
from scripts.attack.world import command

KILLS = 2
CLIENTS = 8
TRAINED = "train allowance --data-steps 2000 --preset paper --updates 2 --batch-size 8 --width 16 "
TRAINED += "--layers 1 --window 4 --evaluate-every 0 --device cpu --out run"


@dataclass
class ServerProcess:
    """A fork that serves, and may be killed and begun again."""

    folder: Path
    port: int
    flags: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def output(self) -> Path:
        return self.folder / "said"

    def start(self) -> Process:
        where = ["--accounts", str(self.folder / "accounts"), "--port", str(self.port)]
        words = ["serve", str(exported()), *where, "--device", "cpu", *self.flags]
        return Process(lambda: command(words), self.folder, self.output)

    def wait_until_up(self) -> None:
        with PolicyClient(self.url, patience=100) as client:
            client.policy()


@functools.cache
def exported() -> Path:
    """A tiny policy, made once."""
    import saformer.cli.judge
    import saformer.cli.train
    import saformer.envs.bundle
    import saformer.live.serve.server  # noqa: F401  (so that forks need not)

    folder = Path(tempfile.mkdtemp(prefix="attack-serving-"))
    owner = os.getpid()
    atexit.register(lambda: os.getpid() == owner and shutil.rmtree(folder, ignore_errors=True))
    made = folder / "made"
    made.mkdir()
    os.environ["SAFORMER_HOME"] = str(folder / "home")

    def make() -> int:
        return command(TRAINED) or command("export run exported --dtype float32")

    ended = run(make, made, 600)
    if ended.code:
        raise RuntimeError(f"nothing to serve: {ended.said[-2000:]}")
    return made / "exported"


def server_process(name: str, *flags: str) -> ServerProcess:
    """One that runs until this process ends."""
    served = _new(name, flags)
    process, owner = served.start(), os.getpid()
    atexit.register(lambda: os.getpid() == owner and process.kill())
    served.wait_until_up()
    return served


def attempt(seed: int) -> str | None:
    """So many kills under load, and a stop."""
    rng = np.random.default_rng(seed)
    served = _new(f"kills-{seed}", ())
    clients = Process(lambda: _drive_all(served, seed), served.folder, served.folder / "clients")
    try:
        for _ in range(KILLS):
            server = served.start()
            if rng.random() < 0.9:  # else while it begins
                served.wait_until_up()
            time.sleep(rng.uniform(0.0, 0.8))
            server.kill()
            ended = server.wait()
            if ended.code != -signal.SIGKILL:
                return f"the server ended by itself: {ended.said[-400:]}"
        server = served.start()
        served.wait_until_up()
        time.sleep(0.5)
        (served.folder / "stop").touch()
        driven = clients.wait()
        os.kill(server.pid, signal.SIGTERM)
        ended = server.wait(20)
        if ended.code != 0 or "Traceback" in ended.said:
            return f"stopped with {ended.code}: {ended.said[-400:]}"
        return None if driven.code == 0 else driven.said[-400:]
    finally:
        for process in (clients, server):
            process.left(0.0)


def _new(name: str, flags: tuple[str, ...]) -> ServerProcess:
    folder = exported().parents[1] / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        return ServerProcess(folder, free.getsockname()[1], flags)


def _drive_all(served: ServerProcess, seed: int) -> int:
    """All clients, until they are told to stop; 1 if one of them found something wrong."""
    problems: list[str] = []

    def drive(number: int) -> None:
        try:
            steps = _Driver(served, np.random.default_rng([seed, number]), f"s{number}").drive()
            if steps == 0:
                problems.append(f"s{number} was never answered")
        except Exception as error:
            problems.append(f"s{number}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=drive, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("; ".join(problems))
    return 1 if problems else 0


class _Driver:
    """One client, and its own account of what it spent."""

    def __init__(self, served: ServerProcess, rng: np.random.Generator, name: str) -> None:
        self._rng, self._name, self._served = rng, name, served
        self._client = PolicyClient(served.url, patience=100)
        self._stop = served.folder / "stop"

    def drive(self) -> int:
        """Episode after episode; how many steps."""
        steps = 0
        while not self._stop.exists():
            session, spent = self._client.session(self._name), 0.0
            limit = float(self._rng.uniform(1, 9))
            self._check(session.begin(self._state(), limit), 0, spent, limit)
            for step in range(1, int(self._rng.integers(2, 30))):
                cost = float(self._rng.uniform(0, 0.3))
                spent += cost
                moved = float(self._rng.uniform(1, 9)) if self._rng.random() < 0.1 else None
                limit = limit if moved is None else moved
                session, answer = self._step(session, step, cost, moved)
                self._check(answer, step, spent, limit)
                steps += 1
            cost = float(self._rng.uniform(0, 0.3))
            self._check(session.end(cost), step + 1, spent + cost, limit)
        return steps

    def _step(
        self, session: RemoteSession, step: int, cost: float, limit: float | None
    ) -> tuple[RemoteSession, Answer]:
        """Now and then the answer is lost, and with it all that the client knew."""
        state = self._state()
        if self._rng.random() < 0.2:
            told = {"session": self._name, "step": step, "state": state, "cost": cost}
            self._send_and_leave({**told, **({} if limit is None else {"limit": limit})})
            session = self._client.take_up(self._name)
            assert session.latest is not None, f"step {step}: the session is lost"
            if session.latest.step == step:
                return session, session.latest
        return session, session.step(state, cost, limit=limit)

    def _send_and_leave(self, content: dict[str, object]) -> None:
        body = json.dumps(content).encode()
        head = f"POST /v1/act HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        try:
            with socket.create_connection(("127.0.0.1", urlsplit(self._served.url).port)) as raw:
                raw.sendall(head.encode() + body)
                time.sleep(self._rng.uniform(0, 0.03))
        except OSError:
            pass  # the server is away

    def _check(self, answer: Answer, step: int, spent: float, limit: float) -> None:
        found = (answer.step, *answer.spent.tolist(), *answer.limit.tolist())
        assert found == (step, spent, limit), f"{found} in place of {(step, spent, limit)}"

    def _state(self) -> list[float]:
        return [float(each) for each in self._rng.normal(size=2)]


CAMPAIGN = Campaign("serving", 25, attempt, per_try=KILLS)
