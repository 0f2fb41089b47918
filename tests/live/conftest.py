"""A small policy to serve."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("msgpack")

import saformer
from saformer.trained import Trained
from tests.cli.test_cli import tiny_run


@pytest.fixture(scope="session")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """An export: two states, one action in [-1, 1], which costs its size."""
    folder = tmp_path_factory.mktemp("deployed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAFORMER_HOME", str(folder / "home"))
        assert tiny_run(folder / "run", "--window", "4", "--device", "cpu") == 0
        exported = saformer.export(folder / "run", folder / "export", dtype="float32")
    return saformer.load(exported, device="cpu")


@pytest.fixture
def accounts(tmp_path: Path) -> Path:
    return tmp_path / "accounts"
