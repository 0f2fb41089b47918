"""Ctrl-C that loses nothing."""

import signal
import threading
from types import FrameType
from typing import Self


class Interrupt:
    """While active, the first Ctrl-C (or SIGTERM) sets `requested`; a second one acts at once."""

    def __init__(self) -> None:
        self.requested = False
        self._former: dict[int, object] = {}

    def __enter__(self) -> Self:
        # Signals can be handled in the main thread alone; elsewhere they keep their usual meaning.
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._former[signum] = signal.signal(signum, self._request)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _request(self, signum: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        for signum, handler in self._former.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]
        self._former = {}
