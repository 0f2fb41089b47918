"""A tiny run, its export to serve, and a page's server that plays it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("msgpack")
pytest.importorskip("websockets")

import uvicorn
from websockets.sync.client import ClientConnection, connect

import saformer
from saformer.live.play.server import PlayServer, uvicorn_settings
from saformer.live.play.settings import PlaySettings
from saformer.trained import Trained
from tests.cli.test_cli import tiny_run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two states, one action in [-1, 1], which costs its size."""
    path = tmp_path_factory.mktemp("played") / "run"
    assert tiny_run(path, "--window", "4", "--device", "cpu") == 0
    return path


@pytest.fixture(scope="session")
def deployed(run: Path) -> Trained:
    """Its export."""
    return saformer.load(saformer.export(run, run.parent / "export", dtype="float32"), device="cpu")


@pytest.fixture
def accounts(tmp_path: Path) -> Path:
    return tmp_path / "accounts"


class Page:
    """What a page's script would do."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def ask(self, **message: Any) -> None:
        self.socket.send(json.dumps(message))

    def wait(self, kind: str, until: Callable[[Any], bool] = lambda event: True) -> Any:
        """The next event of this kind, of which this is true."""
        while True:
            event = json.loads(self.socket.recv(timeout=30))
            if event["type"] == kind and until(event):
                return event


@contextmanager
def serving(run: Path | str, **settings: Any) -> Iterator[PlayServer]:
    server = PlayServer([str(run)], PlaySettings(device="cpu", port=0, **settings))
    own = uvicorn.Server(uvicorn.Config(server.app, **uvicorn_settings()))
    listening = server.listen()
    thread = threading.Thread(target=own.run, args=([listening],), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        own.should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[PlayServer]:
    with serving(run) as server:
        yield server


@contextmanager
def page_of(server: PlayServer, **how: Any) -> Iterator[Page]:
    host = f"127.0.0.1:{server.port}"
    how = {"origin": f"http://{host}", **how}
    with connect(f"ws://{host}/ws", **how) as socket:
        yield Page(socket)
