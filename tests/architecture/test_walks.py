"""How far it is from the command to the paper: frames and files of one update and one decision."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import saformer
from saformer.cli.main import main

PACKAGE = Path(saformer.__file__).parent
MOST_FRAMES = 12


def frames() -> list[str]:
    """`file:function` of every frame of ours, the outermost first."""
    own, frame = [], sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            own.append(f"{path.relative_to(PACKAGE)}:{frame.f_code.co_name}")
        frame = frame.f_back
    return own[::-1]


@pytest.fixture
def walk(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], list[list[str]]]:
    """Watches a function of a module, and keeps the frames above each call of it."""

    def watch(module: str, name: str) -> list[list[str]]:
        walks: list[list[str]] = []
        target = __import__(module, fromlist=[name])
        original = getattr(target, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            walks.append(frames())
            return original(*args, **kwargs)

        monkeypatch.setattr(target, name, watched)
        return walks

    return watch


def test_an_equation_is_twelve_frames_from_the_command(walk, tmp_path):
    """Eq. 5, by `saformer train`. Seen to fail at 17."""
    walks = walk("saformer.agents.saformer", "actor_nll")
    command = ["train", "allowance", "--data-steps", "400", "--updates", "2", "--width", "16"]
    assert main([*command, "--layers", "1", "--out", str(tmp_path / "run"), "--device", "cpu"]) == 0
    # the equation's own frame is one more
    assert max(map(len, walks)) + 1 <= MOST_FRAMES, max(walks, key=len)


def test_the_walks_of_the_docs_are_true():
    """Every `file: function` of docs/architecture.md is there, ten files a walk at most."""
    page = (PACKAGE.parents[1] / "docs" / "architecture.md").read_text()
    walks = page.split("## Two walks")[1].split("## Paper to file")[0].split("One decision:")
    for text in walks:
        rows = re.findall(r"^\| \d+ \| `([\w/]+\.py)`: (.*?) \|", text, re.MULTILINE)
        assert 5 < len(rows) <= 10
        for file, names in rows:
            code = (PACKAGE / file).read_text()
            for name in re.findall(r"`([\w.]+)`", names):
                assert re.search(rf"(def|class) {name.split('.')[-1]}\b", code), f"{file}: {name}"
