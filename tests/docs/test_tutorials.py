"""Tutorials run from top to bottom: commands shortened, Python as it stands."""

import re
import shlex
from pathlib import Path

import pytest

from saformer.cli.main import main
from tests.docs.test_commands import shortened

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LONG = {"benchmark": pytest.mark.long}  # three agents
PAGES = [
    pytest.param(page, id=page.stem, marks=LONG.get(page.stem, ()))
    for page in sorted(FOLDER.glob("*.md"))
]


@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_runs(page, tmp_path, monkeypatch):
    """Seen to fail when a column of the log is renamed, and when `observe` is left out."""
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(page.read_text())
    assert blocks
    for language, text in blocks:
        if language == "python":
            exec(text, {"__name__": "__main__"})
            continue
        for line in text.replace("\\\n", " ").splitlines():
            program, *words = shlex.split(line, comments=True)
            brief = words[0] in {"train", "evaluate"}
            assert program == "saformer"
            assert main(shortened(words) if brief else words) in (0, None), line
