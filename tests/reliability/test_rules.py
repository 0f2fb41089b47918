"""What a rule learns belongs to the weights that act, and is the same in every process."""

import os
import signal

import pytest
import torch

from saformer.agents.saformer import SaFormerAgent
from saformer.rules import fitting
from saformer.runs.run import Run
from saformer.training.loop.fit import InterruptedTrainingError
from saformer.training.loop.trainer import Observer
from tests.training.test_resume import AGENT, train

FINISH = SaFormerAgent.finish
"""Which the other tests of this room do without."""


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    monkeypatch.setattr(SaFormerAgent, "finish", FINISH)
    monkeypatch.setattr(fitting, "UPDATES", (5, 5))


def test_nothing_is_fitted_before_training_has_ended(data, tmp_path):
    """So that nothing outlives the weights that it was fitted to, when training goes on. Seen to
    fail when a run is finished before its first update, too."""
    undisturbed = train(data, tmp_path / "whole", data=data)

    def interrupt(update: int, _: dict) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(InterruptedTrainingError):
        train(data, tmp_path / "run", data=data, observer=Observer(progress=interrupt))
    assert not _fitted(tmp_path / "run")
    train(data, tmp_path / "run", data=data, resume=True)
    fitted = _fitted(tmp_path / "run")
    assert fitted
    assert all(torch.equal(undisturbed[name], value) for name, value in fitted.items())


def _fitted(path) -> dict[str, torch.Tensor]:
    model = Run(path).load(groups=("model",)).groups["model"]
    return {name: value for name, value in model.items() if name.startswith("outlook.")}


def test_what_is_fitted_is_no_noise(data):
    """Of a model with dropout, in training mode, whatever the process has drawn before. Seen to
    fail when stretches are drawn by torch's own generator."""
    fitted = []
    for draws in (1, 2):
        agent = SaFormerAgent.create(data, AGENT, seed=1)
        agent.model.train()
        torch.rand(draws)
        agent.finish(data)
        fitted.append(agent.model.state_dict())
    assert all(torch.equal(value, fitted[1][name]) for name, value in fitted[0].items())
