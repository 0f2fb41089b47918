"""The site that `make docs` builds."""

import re
import subprocess
import sys

import pytest


@pytest.mark.long
def test_the_site_builds_without_a_warning(project, tmp_path):
    """Seen to fail with a link to a page that is not there."""
    pytest.importorskip("mkdocstrings", reason="needs saformer[docs]")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    built = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    for page in ("index", "api", "glossary", "results/paper/safety", "tutorials/logs"):
        assert (tmp_path / "site" / f"{page}.html").exists()


@pytest.mark.parametrize("folder", ["docs", "results"])
def test_no_line_needs_a_broad_window(project, folder):
    """Rows of tables, pictures and pages that commands made aside. Seen to fail with a paragraph on
    one line."""
    made = {"paper", "small"}
    written = [path for path in (project / folder).rglob("*.md") if path.parent.name not in made]
    for path in written:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert len(line) <= 100 or line.startswith(("|", "!")), f"{path.name}:{number}"


def test_docs_can_be_read_in_an_afternoon(project):
    """Bars of tables are no words. Seen to fail at 33,500, with the log and results of before."""
    pages = [path.read_text() for path in (project / "docs").rglob("*.md")]
    assert len(re.findall(r"\S*\w\S*", "\n".join(pages))) <= 20_000
