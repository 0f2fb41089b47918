"""Every `saformer` line of README and docs runs: as it stands but for its size, page by page."""

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from saformer.cli.main import main

ROOT = Path(__file__).parents[2]
DOCS = (page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "tutorials")
PAGES = [ROOT / "README.md", *sorted(DOCS)]  # tutorials: test_tutorials.py
PAGES.remove(ROOT / "docs" / "simulator.md")  # tests/docs/test_own.py runs it
COMMAND = r"^saformer (.*?)(?:\s+#.*)?$"
BRIEF = {
    "train": "--updates 4 --data-steps 4000 --width 16 --layers 1 --report-every 2",
    "evaluate": "--episodes 2",
    "sweep": "--episodes 1",
    "calibrate": "--episodes 94",
    "finetune": "--episodes 2 --lanes 2 --updates 2 --evaluation-episodes 2",
}
"""In place of what the page says."""
PERCEPTRONS = ("bcq_lag", "cpq", "coptidice", "caps", "bcrl")
TOO_LONG = {
    "demo plant": "tests/learning/test_demo.py runs it; test_readme.py a small one",
    "experiment": "tests/experiments/test_smoke.py makes all of them from tiny runs",
    "data build": "a million steps; tests/cli/test_data.py builds a few thousand",
    "data import hopper_medium.hdf5": "D4RL's own file; tests/data/test_sources.py makes its like",
    "train hopper-medium walker2d-medium": "six runs; tests/cli/test_agents.py trains two",
    "evaluate pretrained:halfcheetah-effort": "tests/runs/test_pretrained.py judges it",
    "play": "plays until it is stopped; tests/live does so in a browser",
    "finetune": "tests/training/test_finetune.py runs the command to its end",
    "evaluate runs/cheetah": "follows finetune",
    "serve": "never ends; tests/live serves",
}


def commands(page: Path) -> Iterator[list[str]]:
    """Those of a page that are run, shortened."""
    for line in re.findall(COMMAND, page.read_text(), re.MULTILINE):
        if any(line.startswith(beginning) for beginning in TOO_LONG):
            continue
        words = shlex.split(line)
        yield shortened(words) if words[0] in BRIEF else words


def shortened(words: list[str]) -> list[str]:
    brief = shlex.split(BRIEF[words[0]])
    if words[0] == "train" and any(name in words for name in PERCEPTRONS):
        brief = [word for word in brief if word not in ("--width", "16", "--layers", "1")]
    for flag in (word for word in brief if word.startswith("--")):
        if flag in words:
            at = words.index(flag)
            words = words[:at] + words[at + 2 :]
    return [*words, *brief]


def write_logs() -> None:
    """CSV files with the columns that the pages name."""
    rng = np.random.default_rng(0)
    Path("logs").mkdir()
    names = "level,pressure,pressure_in,valve,profit,speed,wear,Room [°C],Price €/kWh"
    rows = [f"run,timestamp,{names},heater,tripped"]
    for run, hour in itertools.product(range(12), range(24)):
        values = ",".join(f"{value:.3f}" for value in rng.uniform(0, 1, len(names.split(","))))
        heater = "on" if rng.random() > 0.5 else "off"
        rows.append(f"{run},{run + 1:02}.11.2024 {hour:02}:00,{values},{heater},false")
    Path("logs/2024.csv").write_text("\n".join(rows) + "\n")
    mapping = re.search(r"```toml\n(.*?)```", (ROOT / "docs/data.md").read_text(), re.DOTALL)
    assert mapping is not None
    Path("mapping.toml").write_text(mapping[1])


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_run(page, tmp_path, monkeypatch):
    """Those that need a run first are given one."""
    monkeypatch.chdir(tmp_path)
    write_logs()
    todo = list(commands(page))
    if any("runs/hopper" in words for words in todo):
        first = ["train", "hopper-medium-replay", "--out", "runs/hopper"]
        todo = [shortened(first), *(words for words in todo if "runs/hopper" not in words[3:])]
    if page.name == "export.md":
        todo.insert(1, ["export", "runs/hopper", "deployed"])
    done: list[list[str]] = []
    for words in todo:
        if words in done or (words[0] == "train" and _is_trained(words)):
            continue
        arguments = [path for word in words for path in _globbed(word)]
        if words[:2] == ["data", "import"] and Path("plant").exists():
            arguments = [f"{word}-again" if word == "plant" else word for word in arguments]
        proposes = words == ["data", "import", "logs/*.csv"]  # a mapping, and imports nothing
        assert (main(arguments) or 0) == proposes, words
        done.append(words)


def _is_trained(words: list[str]) -> bool:
    return "runs/hopper" in words and Path("runs/hopper").exists()


def _globbed(word: str) -> list[str]:
    return [str(path) for path in sorted(Path().glob(word))] if "*" in word else [word]
