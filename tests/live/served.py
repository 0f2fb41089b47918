"""A real server on a free port, in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import websockets.sync.client

from saformer.live.serve.server import DrainingServer, opened
from saformer.live.serve.settings import ServeSettings
from saformer.trained import Trained


@contextmanager
def serving(
    trained: Trained, accounts: Path, changes: dict[str, Any] | None = None, **settings: Any
) -> Iterator[DrainingServer]:
    """Until the block ends, or `server.should_exit` is set."""
    wanted = ServeSettings(port=0, accounts=accounts, **settings)
    with opened(trained, wanted, changes or {}) as server:
        thread = threading.Thread(target=server.run, args=([server.listening],))
        thread.start()
        try:
            yield server
        finally:
            server.should_exit = True
            thread.join()


def connected(url: str, **keywords: Any) -> Any:
    """A websocket that has heard what is served."""
    connect = websockets.sync.client.connect
    client = connect(url.replace("http", "ws"), compression=None, **keywords).__enter__()
    client.recv()
    return client
