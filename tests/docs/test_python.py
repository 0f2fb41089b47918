"""Every block of Python in the docs runs: here those of pages that other tests do not run."""

import re
from pathlib import Path
from typing import Any

import pytest

import saformer
from tests.cli.test_cli import tiny_run
from tests.docs.test_readme import BLOCK, Machine

DOCS = Path(__file__).parents[2] / "docs"
ELSEWHERE = {
    "simulator": "test_own.py",
    "own": "test_own.py",
    "callbacks": "test_own.py",
    "logs": "test_tutorials.py",
    "benchmark": "test_tutorials.py",
    "deploy": "test_tutorials.py",
}
TINY = "episodes=2, lanes=2, updates=2, evaluation_episodes=2"
SMALLER = {
    "[-1, -1, -1]": "[-1]",
    "[1, 1, 1]": "[1]",
    '"runs/hopper"': '"run"',
    '"runs/cheetah", [3700, 3800], episodes=200': f'"run", [2.0], {TINY}',
}
"""What stands in place of robots: a toy with two states and one action."""
LONG = {"finetuning", "export"}  # the second makes a graph for onnxruntime


def pages() -> list[Any]:
    found = [page for page in sorted(DOCS.rglob("*.md")) if "```python" in page.read_text()]
    here = [page for page in found if page.stem not in ELSEWHERE]
    return [
        pytest.param(page, id=page.stem, marks=[pytest.mark.long] if page.stem in LONG else [])
        for page in here
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a run and its exports."""
    folder = tmp_path_factory.mktemp("python")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert tiny_run("run", "--device", "cpu") == 0
        saformer.export("run", "deployed", dtype="float32")
    return folder


class Press(Machine):
    """The machine of docs/serve.md: it answers with its state and what the step cost."""

    def step(self, action: Any) -> Any:
        state, _, cost = super().step(action)
        return state, cost

    @property
    def runs(self) -> bool:
        return not self.stopped


@pytest.mark.parametrize("page", pages())
def test_the_python_of_a_page_runs(page, folder, monkeypatch, capsys):
    """As it stands, but for names of robots."""
    monkeypatch.chdir(folder)
    scope: dict[str, Any] = {"saformer": saformer, "state": [0.5, 1.0], "reward": 0.1, "cost": 0.1}
    scope["machine"] = machine = Press(2) if page.stem == "serve" else Machine(2)
    code = "\n".join(re.findall(BLOCK, page.read_text(), re.DOTALL))
    for robot, toy in SMALLER.items():
        code = code.replace(robot, toy)
    if page.stem == "export":
        _export_graph()
    if page.stem == "serve":
        _serve(code, scope)
    else:
        exec(code, scope)
    assert machine.stopped == (page.stem in {"export", "serve"})


def _export_graph() -> None:
    pytest.importorskip("onnxscript")
    saformer.load("run", device="cpu").export("graph", format="onnx")


def _serve(code: str, scope: dict[str, Any]) -> None:
    pytest.importorskip("starlette")
    from tests.live.served import serving

    with serving(saformer.load("deployed", device="cpu"), Path("accounts")) as server:
        exec(code.replace("http://127.0.0.1:8000", server.url), scope)
