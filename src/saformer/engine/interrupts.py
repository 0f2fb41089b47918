"""Ctrl-C that is always heard, wherever in a command it comes."""

import _thread
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

PATIENCE, AGAIN = 5.0, 0.05  # seconds that an import may delay it, and until it comes once more


@contextmanager
def interrupts_heard() -> Iterator[None]:
    """Libraries that are being imported take Ctrl-C for a failure of their own, swallow it, or end
    the process: it waits until they are there. Where nobody can raise, it comes once more."""
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _interrupt_again
    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    heard = _Heard()
    if is_ours:
        signal.signal(signal.SIGINT, heard)
    try:
        yield
    except Exception:
        if heard.is_waiting:  # an import that failed by it
            raise KeyboardInterrupt from None
        raise
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


class _Heard:
    """Handles Ctrl-C."""

    def __init__(self) -> None:
        self._since: float | None = None

    @property
    def is_waiting(self) -> bool:
        return self._since is not None

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if _is_importing(frame) and now - self._since < PATIENCE:
            _come_again()
        else:
            self._since = None
            raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _interrupt_again(lost: Any) -> None:
    if issubclass(lost.exc_type, KeyboardInterrupt):
        _come_again()
    else:
        sys.__unraisablehook__(lost)


def _come_again() -> None:
    threading.Timer(AGAIN, _thread.interrupt_main).start()
