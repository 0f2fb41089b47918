"""The picture of docs/serve.md: four robots, one server, which is killed; one limit is moved.

python -m scripts.figures.serve pretrained:halfcheetah-effort
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from pathlib import Path

import numpy as np
from benchmarks.serving import Served

import saformer
from saformer.client import PolicyClient
from saformer.envs.lanes import Maker
from saformer.report.figure import Line, Panel, line_panels

LIMITS, POINTS = ("p10", "p30", "p50", "p90"), 40
MOVED, KILLED = 200, 400  # steps: of p90's limit, to p50; of the server


def episode(url: str, name: str, maker: Maker, barrier: threading.Barrier) -> np.ndarray:
    """What it has spent after each step, and its limit: [T, 2]. All wait at the step of the kill,
    so that the picture shows it where it happened."""
    environment = maker()
    state, _ = environment.reset(seed=0)
    rows, is_over = [], False
    with PolicyClient(url, patience=120) as client:
        session = client.session(name)
        answer = session.begin(state, name)
        while not is_over:
            state, _, terminated, truncated, info = environment.step(answer.action)
            is_over, step = terminated or truncated, len(rows) + 1
            if step == KILLED:
                barrier.wait()
            moved = "p50" if step == MOVED and name == "p90" else None
            cost = info["cost"]
            answer = session.end(cost) if is_over else session.step(state, cost, limit=moved)
            rows.append((answer.spent[0], answer.limit[0]))
    return np.array(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--port", type=int, default=8731)
    parser.add_argument("--out", type=Path, default=Path("docs/figures/serve.svg"))
    settings = parser.parse_args()
    trained = saformer.load(settings.path)
    maker = Maker(trained.totals.environment, tuple(trained.totals.criteria))
    drawn: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        begin = (settings.path, Path(folder) / "accounts", "--port", str(settings.port))
        served = Served(*begin)
        barrier = threading.Barrier(len(LIMITS), served.process.kill)

        def drive(name: str) -> None:
            drawn[name] = episode(served.url, name, maker, barrier)

        threads = [threading.Thread(target=drive, args=(name,)) for name in LIMITS]
        for thread in threads:
            thread.start()
        served.process.wait()  # killed
        served = Served(*begin)
        for thread in threads:
            thread.join()
        served.stop()
    lines = []
    for name, rows in sorted(drawn.items()):
        steps = np.linspace(1, len(rows), POINTS).round().astype(int)
        lines.append(Line(name, steps, rows[steps - 1, 0], level=rows[-1, 1]))
        print(f"{name}: spent {rows[-1, 0]:.1f} of {rows[-1, 1]:.1f}")
    title = f"at step {MOVED} p90 is cut to p50; at {KILLED} the server is killed"
    panel = Panel(title, lines, "step", "torque spent (dashed: the limits)", marks=(MOVED, KILLED))
    settings.out.write_text(line_panels([panel], columns=1))


if __name__ == "__main__":
    main()
