"""Time and memory, measured the same way everywhere."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def seconds(function: Callable[[], Any], *, repeat: int = 5) -> float:
    """The median time of a call, after one that does not count."""
    function()
    taken = []
    for _ in range(repeat):
        began = time.perf_counter()
        function()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


class Peak:
    """The most memory that was held at once, in MB."""

    anonymous: float = 0.0
    """not backed by a file: what the system cannot take back"""
    resident: float = 0.0


@contextmanager
def peak_memory(*, every: float = 0.01) -> Iterator[Peak]:
    """Watch this process's memory (Linux)."""
    peak, stop = Peak(), threading.Event()

    def watch() -> None:
        while not stop.is_set():
            held = {}
            for line in Path("/proc/self/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in ("RssAnon", "VmRSS"):
                    held[name] = int(value.split()[0]) / 1024
            peak.anonymous = max(peak.anonymous, held["RssAnon"])
            peak.resident = max(peak.resident, held["VmRSS"])
            stop.wait(every)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        stop.set()
        watcher.join()


def apart(module: str, function: str, *arguments: str) -> dict[str, Any]:
    """Run `module.function(*arguments)` in a process of its own and return the dictionary that it
    returns."""
    imports = f"import json, sys; from {module} import {function} as f"
    code = f"{imports}; print(json.dumps(f(*sys.argv[1:])))"
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise RuntimeError(result.stderr)
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found
