"""Every mutant of `tests/mutants.py` is caught by the test that claims it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package and its tests, to be spoilt."""
    root = tmp_path_factory.mktemp("mutants")
    for name in ("src", "tests", "scripts", "docs", "benchmarks"):
        shutil.copytree(ROOT / name, root / name)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, root)
    return root


def test_every_mutant_can_still_be_made():
    """The code has not moved away from under it, and the test it names exists."""
    for mutant in MUTANTS:
        code = (ROOT / "src" / "saformer" / mutant.file).read_text()
        assert mutant.old in code, mutant.name
        file, name = mutant.tests.split("::")
        assert f"def {name}(" in (ROOT / file).read_text(), mutant.name


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(copy: Path, mutant: Mutant):
    file = copy / "src" / "saformer" / mutant.file
    whole = file.read_text()
    file.write_text(whole.replace(mutant.old, mutant.new))
    try:
        environment = {
            **os.environ,
            "PYTHONPATH": str(copy / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            mutant.tests,
        ]
        result = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, check=False
        )
    finally:
        file.write_text(whole)
    assert result.returncode == 1, f"survived: {result.stdout[-2000:]}"
