"""Decisions per second and latencies of `saformer serve`, with clients on the same machine.

python -m benchmarks.serving                              64 sessions, 20 seconds, a fresh policy
python -m benchmarks.serving --export DEPLOYED --seconds 3600 --pace 100      a soak

The server is a process of its own; its clients (websockets, in this one) each send a step as soon
as they have the last one's answer, or `--pace` of them a second in all. Memory is the server's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import websockets

from saformer.client import PolicyClient
from saformer.live.serve.frames import packed, unpacked

HORIZON = 96  # steps of an episode


def export(folder: Path) -> Path:
    """A policy of preset small for plant-room, trained for a moment: speed needs no more."""
    import saformer
    from saformer.rules import fitting

    fitting.UPDATES = (5, 5)
    keywords: dict[str, Any] = {"updates": 5, "data_steps": 20_000, "device": "cpu"}
    trained = saformer.train("plant-room", out=folder / "run", **keywords)
    return trained.export(folder / "export", dtype="float32")


class Served:
    """A server process on a free port."""

    def __init__(self, path: str | Path, accounts: Path, *flags: str) -> None:
        port = [] if "--port" in flags else ["--port", "0"]
        words = ["serve", str(path), "--accounts", str(accounts), *port, *flags]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "saformer", *words], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if " at http" in line:
                self.url = line.split(" at ")[1].split()[0]
                break
        else:
            raise RuntimeError(f"the server ended with {self.process.wait()}")

    def resident(self) -> float:
        """MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def cpu(self) -> float:
        """Seconds that it has computed so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


async def drive(url: str, size: int, until: float, interval: float) -> list[float]:
    """One client: episode after episode; returns the seconds of each decision."""
    generator, taken = np.random.default_rng(), []
    uri = url.replace("http", "ws")
    async with websockets.connect(uri, compression=None, max_size=None) as socket:
        await socket.recv()
        step = 0
        while time.monotonic() < until:
            state = generator.normal(size=size).tolist()
            told: dict[str, Any] = {"cost": [0.05]} if step else {"limit": [5.0]}
            is_last = step == HORIZON
            request = {"cost": [0.05], "end": True} if is_last else {"state": state, **told}
            began = time.perf_counter()
            await socket.send(packed(request))
            answer = await socket.recv()
            taken.append(time.perf_counter() - began)
            assert isinstance(answer, bytes), answer
            assert unpacked(answer)["step"] == step
            step = 0 if is_last else step + 1
            await asyncio.sleep(max(0.0, interval - taken[-1]))
    return taken


async def load(served: Served, sessions: int, seconds: float, pace: float | None) -> dict[str, Any]:
    """All clients at once; memory is looked at a hundred times."""
    with PolicyClient(served.url) as client:
        size = client.policy()["state"]
    until, memory, cpu = time.monotonic() + seconds, [], served.cpu()
    interval = sessions / pace if pace else 0.0
    clients = [drive(served.url, size, until, interval) for _ in range(sessions)]

    async def watch() -> None:
        while time.monotonic() < until:
            memory.append(served.resident())
            await asyncio.sleep(seconds / 100)

    *taken, _ = await asyncio.gather(*clients, watch())
    waits = np.sort(np.concatenate([np.array(each[1:]) for each in taken if len(each) > 1]))
    cpu, tenth = served.cpu() - cpu, max(1, len(memory) // 10)
    return {
        "sessions": sessions,
        "decisions": len(waits),
        "per_second": round(len(waits) / seconds, 1),
        "milliseconds": {p: round(1000 * float(np.percentile(waits, p)), 1) for p in (50, 95, 99)},
        "worst_milliseconds": round(1000 * float(waits[-1]), 1),
        "server_cpu_milliseconds_each": round(1000 * cpu / len(waits), 2),
        "load_average": os.getloadavg()[0],
        "megabytes": {
            "second_tenth": round(float(np.mean(memory[tenth : 2 * tenth])), 1),
            "last_tenth": round(float(np.mean(memory[-tenth:])), 1),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--export", help="a run, an export or pretrained:NAME; by default made now")
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--pace", type=float, help="decisions a second in all; by default no limit")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.export or export(Path(folder))
        served = Served(path, Path(folder) / "accounts")
        try:
            result = asyncio.run(load(served, options.sessions, options.seconds, options.pace))
        finally:
            served.stop()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
