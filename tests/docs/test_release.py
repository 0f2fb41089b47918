"""What is released is whole: wheel, sdist and citation."""

import importlib.util
import shutil
import tomllib
import zipfile
from pathlib import Path

import pytest

from scripts import release


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("needs hatchling to build a wheel")
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    folder = str(tmp_path_factory.mktemp("dist"))
    (wheel,) = WheelBuilder(str(release.ROOT)).build(directory=folder, versions=["standard"])
    (sdist,) = SdistBuilder(str(release.ROOT)).build(directory=folder)
    return Path(wheel), Path(sdist)


@pytest.mark.long
def test_wheel_and_sdist_are_whole_and_small(built):
    """Seen to fail without CITATION.cff in the sdist, and with a limit of 10 MB."""
    assert list(release.problems(*built)) == []


@pytest.mark.long
def test_what_is_missing_or_strange_is_named(built, tmp_path):
    """Seen to fail when only the size is looked at."""
    wheel, sdist = built
    spoilt = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(spoilt, "w") as less:
        for name in whole.namelist():
            if name not in {"saformer/py.typed", "saformer/shield.py"}:
                less.writestr(name, whole.read(name))
        less.writestr("tests/conftest.py", "")
    found = list(release.problems(spoilt, sdist))
    assert any("py.typed is not in the wheel" in text for text in found)
    assert any("shield.py is not in the wheel" in text for text in found)
    assert any("tests/conftest.py has no place in the wheel" in text for text in found)
    old = tmp_path / "saformer-0.0.1.tar.gz"
    shutil.copy(sdist, old)
    assert any("is not of version" in text for text in release.problems(wheel, old))


def test_the_citation_is_of_this_version():
    """Seen to fail with another version in CITATION.cff."""
    project = tomllib.loads((release.ROOT / "pyproject.toml").read_text())["project"]
    citation = (release.ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {project['version']}\n" in citation
    assert f"\nlicense: {project['license']}\n" in citation
