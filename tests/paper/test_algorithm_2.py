"""Algorithm 2: both networks learn from the same windows, each from its own loss."""

import torch

from saformer.agents.saformer import SaFormerAgent
from saformer.data.sampling import WindowSampler
from saformer.training.loop.config import FitConfig
from saformer.training.loop.trainer import Observer
from tests.alone import Trainer, fit
from tests.conftest import tiny_config


def test_an_update_descends_on_both_losses(data):
    """Seen to fail when the optimiser steps up the gradient."""
    agent = SaFormerAgent.create(data, tiny_config(), seed=0)
    trainer = Trainer(
        agent,
        WindowSampler(data, window=4),
        FitConfig(warmup_updates=0, learning_rate=3e-3),
        seed=0,
    )
    first = trainer.step()
    for _ in range(60):
        last = trainer.step()
    for name in ("actor/cost_to_go", "actor/return_to_go", "actor/action", "critic/forecast_error"):
        assert last[name] < first[name], name


def test_gradients_are_clipped(data):
    """Seen to fail without clipping: the recorded norm is the one before, the applied one must be
    the bound."""
    agent = SaFormerAgent.create(data, tiny_config(), seed=0)
    config = FitConfig(warmup_updates=0, gradient_clip=1e-3)
    trainer = Trainer(agent, WindowSampler(data, window=4), config, seed=0)
    metrics = trainer.step()
    for phase in agent.phases:
        applied = torch.stack(
            [p.grad.norm() for p in phase.parameters if p.grad is not None]
        ).norm()
        assert metrics[f"{phase.name}/gradient_norm"] > 1e-2
        assert applied < 1.001e-3


def test_schedule_warms_up_and_falls_to_a_tenth():
    """Seen to fail when the warm-up starts at the peak."""
    config = FitConfig(updates=110, warmup_updates=10, learning_rate=1.0)
    assert [config.learning_rate_at(update) for update in (0, 4, 9)] == [0.1, 0.5, 1.0]
    assert config.learning_rate_at(60) == 0.55
    assert abs(config.learning_rate_at(110) - 0.1) < 1e-12


def test_fit_reports_every_so_often(data, tmp_path):
    """Seen to fail when the last row is left out."""
    rows = []
    agent = SaFormerAgent.create(data, tiny_config(), seed=0)
    config = FitConfig(updates=5, report_every=2, evaluate_every=4, warmup_updates=0)
    observer = Observer(row=rows.append, evaluate=lambda agent: {"training": agent.model.training})
    fit(agent, WindowSampler(data, window=4), config, observer=observer)
    assert [row["update"] for row in rows] == [2, 4, 4, 5, 5]
    assert [row["evaluation"] for row in rows if "evaluation" in row] == [{"training": False}] * 2
