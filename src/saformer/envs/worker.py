"""A process that steps some lanes on request, started by `saformer.envs.pool`; without torch.

Requests: what to make, the size of the block, an empty message for every step, and the end of the
rollout. Answers: done, or what went wrong. It ends when nobody is left to speak to it.
"""

import json
import mmap
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np

from saformer.envs.block import lane_dtype
from saformer.envs.lanes import Maker, Share

DONE = b""
STEP = b""


class Worker:
    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._share: Share | None = None

    def answer(self, message: bytes) -> bytes:
        if message == STEP:
            assert self._share is not None, "make and begin come first"
            self._share.start_step()
            return DONE
        requests: dict[str, Callable[..., bytes]]
        requests = {"make": self._make, "begin": self._begin, "end": self.close}
        ((request, details),) = json.loads(message).items()
        return requests[request](**details)

    def _make(
        self, maker: str, lanes: list[int], seeds: list[int], folder: str, path: list[str]
    ) -> bytes:
        os.chdir(folder)
        sys.path[:] = path
        make = Maker.read(maker)
        self._share = Share([make() for _ in lanes], lanes, seeds)
        return json.dumps({"widths": self._share.widths}).encode()

    def _begin(self, size: int) -> bytes:
        assert self._share is not None, "make comes first"
        dtype = lane_dtype(*self._share.widths)
        block = mmap.mmap(self._memory, size * dtype.itemsize)
        self._share.begin(np.ndarray(size, dtype, block))
        return DONE

    def close(self) -> bytes:
        if self._share is not None:
            self._share.close()
            self._share = None
        return DONE


def answer_requests(connection: Connection, worker: Worker) -> None:
    """Answer until the other side is gone."""
    try:
        while True:
            message = connection.recv_bytes()
            try:
                answer = worker.answer(message)
            except Exception as error:
                failure = {"kind": type(error).__name__, "message": str(error)}
                failure["traceback"] = traceback.format_exc()
                answer = json.dumps({"failed": failure}).encode()
            connection.send_bytes(answer)
    except (EOFError, ConnectionError):
        worker.close()


if __name__ == "__main__":
    answer_requests(Connection(int(sys.argv[1])), Worker(int(sys.argv[2])))
