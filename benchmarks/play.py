"""How soon and how fast `saformer play` plays: from the command to pictures and steps.

python -m benchmarks.play pretrained:halfcheetah-effort

A client on the same machine opens the page's websocket as a browser does, and draws nothing.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from typing import Any

from websockets.sync.client import ClientConnection, connect

SECONDS = 15.0


def wait(page: ClientConnection, kind: str) -> Any:
    while True:
        event = json.loads(page.recv(timeout=120))
        if event["type"] == kind:
            return event


def measure(run: str) -> dict[str, float]:
    """Seconds from the command to the first picture and the first step, and steps per second."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "saformer", "play", run, "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            found = re.search(r"http://(\S+?)/", process.stderr.readline())
            assert found is not None
            host = found[1]
            with connect(f"ws://{host}/ws", origin=f"http://{host}") as page:
                wait(page, "preview")
                picture = time.perf_counter() - began
                wait(page, "frames")
                step = time.perf_counter() - began
                page.send('{"do": "speed", "speed": 60.0}')
                since, count = time.perf_counter(), 0
                while time.perf_counter() < since + SECONDS:
                    wait(page, "frames")
                    count += 1
                rate = count / (time.perf_counter() - since)
        finally:
            process.terminate()
    return {"first picture": picture, "first step": step, "steps per second": rate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", default="pretrained:halfcheetah-effort")
    for name, value in measure(parser.parse_args().run).items():
        print(f"{name}: {value:.2f}")


if __name__ == "__main__":
    main()
