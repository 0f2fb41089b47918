"""A process that steps some of the lanes on request. Started by `saformer.envs.pool`; imports no
torch.

What it hears: what to make, the shape of the block, an empty message for every step, and the end of
the rollout. What it answers: that it is done, or what went wrong. It ends when nobody is left to
speak to it.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from saformer.envs.lanes import Columns, Maker, Shape, Share

DONE = b""
STEP = b""


class Worker:
    """Answers one message after the other."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._share: Share | None = None

    def answer(self, message: bytes) -> bytes:
        """Do what is asked."""
        if message == STEP:
            assert self._share is not None, "make and begin come first"
            self._share.step()
            return DONE
        ((request, details),) = json.loads(message).items()
        kinds: dict[str, Callable[..., bytes]] = {
            "make": self._make,
            "begin": self._begin,
            "end": self.close,
        }
        return kinds[request](**details)

    def _make(
        self, maker: str, lanes: list[int], seeds: list[int], folder: str, path: list[str]
    ) -> bytes:
        os.chdir(folder)
        sys.path[:] = path
        make = Maker.read(maker)
        self._share = Share([make() for _ in lanes], lanes, seeds)
        return json.dumps({"widths": self._share.widths}).encode()

    def _begin(self, **sizes: int) -> bytes:
        assert self._share is not None, "make comes first"
        shape = Shape(**sizes)
        self._share.begin(Columns.over(mmap.mmap(self._memory, shape.num_bytes), shape))
        return DONE

    def close(self) -> bytes:
        """Close the environments."""
        if self._share is not None:
            self._share.close()
            self._share = None
        return DONE


def main() -> None:
    """Answer until the other side is gone."""
    connection, worker = Connection(int(sys.argv[1])), Worker(int(sys.argv[2]))
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, ConnectionError):
            break
        try:
            answer = worker.answer(message)
        except Exception as error:
            answer = json.dumps({"failed": _described(error)}).encode()
        try:
            connection.send_bytes(answer)
        except ConnectionError:
            break
    worker.close()


def _described(error: Exception) -> dict[str, Any]:
    return {
        "kind": type(error).__name__,
        "message": str(error),
        "traceback": traceback.format_exc(),
    }


if __name__ == "__main__":
    main()
