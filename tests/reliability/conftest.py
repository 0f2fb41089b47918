"""A run to attack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from saformer.agents.saformer import SaFormerAgent
from saformer.envs import allowance
from saformer.runs.run import Run
from tests.training.test_finetune import original


@pytest.fixture(autouse=True, scope="package")
def _nothing_is_fitted() -> Iterator[None]:
    """The last stage of training takes most of its time, and nothing here acts by what it fits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SaFormerAgent, "finish", lambda *_: None)
        yield


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Nothing that is done with it may change it."""
    folder = tmp_path_factory.mktemp("source")
    store = allowance.dataset(episodes=100).save(folder / "store").path
    return original(folder / "original", store)


@pytest.fixture
def trained(source: Run) -> Path:
    return source.path
