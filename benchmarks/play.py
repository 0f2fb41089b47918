"""How soon and how fast `saformer play` plays: from the command to pictures and steps.

python -m benchmarks.play pretrained:halfcheetah-effort

A client on the same machine opens the page's websocket as a browser does, and draws nothing. CPU
seconds are the server's own: what it would take on a machine with nothing else to do.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

SECONDS = 15.0


def wait(page: ClientConnection, kind: str) -> Any:
    while True:
        event = json.loads(page.recv(timeout=120))
        if event["type"] == kind:
            return event


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    """That a process has used so far (Linux)."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(run: str) -> dict[str, tuple[float, float]]:
    """Seconds and CPU seconds: from the command to the first picture and the first step, and those
    of a step when it plays as fast as it can."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "saformer", "play", run, "--no-browser", "--port", "0"]
    times = {}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            found = re.search(r"http://(\S+?)/", process.stderr.readline())
            assert found is not None
            host = found[1]
            with connect(f"ws://{host}/ws", origin=f"http://{host}") as page:
                for name, kind in (("first picture", "preview"), ("first step", "frames")):
                    wait(page, kind)
                    times[name] = (time.perf_counter() - began, cpu_seconds(process))
                page.send('{"do": "speed", "speed": 60.0}')
                since, used, count = time.perf_counter(), cpu_seconds(process), 0
                while time.perf_counter() < since + SECONDS:
                    wait(page, "frames")
                    count += 1
                wall = (time.perf_counter() - since) / count
                times["a step"] = (wall, (cpu_seconds(process) - used) / count)
        finally:
            process.terminate()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", default="pretrained:halfcheetah-effort")
    for name, (seconds, used) in measure(parser.parse_args().run).items():
        print(f"{name}: {seconds:.3f} s, {used:.3f} s of CPU")
    print("load:", *(f"{load:.1f}" for load in os.getloadavg()))


if __name__ == "__main__":
    main()
