"""Small real things that many tests need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from saformer.agents.saformer import SaFormerAgent, SaFormerConfig
from saformer.core.batch import WindowBatch
from saformer.core.transformer import TrunkConfig
from saformer.criteria import code
from saformer.data.relabel import RelabelledStore, relabel
from saformer.data.sampling import WindowSampler
from saformer.envs import allowance
from tests import brief


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that learn first: they take minutes each, and begun last they would keep one core busy
    alone."""
    items.sort(key=lambda item: "tests/learning/" not in item.nodeid)


@pytest.fixture(autouse=True)
def _data_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built datasets are shared by the tests of one session and never touch the user's own."""
    home = tmp_path_factory.getbasetemp() / "home"
    monkeypatch.setenv("SAFORMER_HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "configuration"))


@pytest.fixture(autouse=True)
def _nothing_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test begins as a process does: nobody has typed the name of any code."""
    monkeypatch.setattr(code, "_vouched", {})


@pytest.fixture(scope="session", autouse=True)
def _brief_fitting() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("saformer.rules.fitting.UPDATES", brief.BRIEF)
        patch.setattr("saformer.evaluation.offline.dynamics.UPDATES", (40, 40))
        yield


@pytest.fixture(scope="session")
def data() -> RelabelledStore:
    """200 episodes of Allowance."""
    return relabel(allowance.dataset(episodes=200), allowance.criteria())


@pytest.fixture(scope="session")
def two_cost_data() -> RelabelledStore:
    """200 episodes of Allowance with two actions and a cost for each."""
    return relabel(allowance.dataset(episodes=200, dimensions=2), allowance.criteria(2))


def tiny_config(**changes: object) -> SaFormerConfig:
    """A model that a test can afford."""
    trunk = TrunkConfig(layers=2, width=16, heads=2, dropout=0.0)
    return SaFormerConfig(**{"window": 4, "candidates": 8, "trunk": trunk, **changes})  # type: ignore[arg-type]


@pytest.fixture
def agent(data: RelabelledStore) -> SaFormerAgent:
    """Untrained, with a spread of outputs: random weights rather than the near-zero initial
    ones."""
    agent = SaFormerAgent.create(data, tiny_config(), seed=0)
    randomise(agent.model)
    return agent


def randomise(module: torch.nn.Module, *, seed: int = 0) -> None:
    """Weights large enough that every input matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))


@pytest.fixture
def batch(data: RelabelledStore) -> WindowBatch:
    """Eight windows, some of them padded."""
    return WindowSampler(data, window=4).windows(torch.tensor([0, 5, 16, 17, 18, 19, 25, 39]))


@pytest.fixture(scope="session")
def project() -> Path:
    """The project's root."""
    return Path(__file__).parents[1]
