"""The benchmark's count of operations is what torch counts."""

from dataclasses import replace

import pytest
from benchmarks.rooflines import Ceilings, Work, update_work
from torch.utils.flop_counter import FlopCounterMode

from saformer.agents.saformer import SaFormerAgent
from saformer.core.batch import Dimensions
from saformer.core.transformer import TrunkConfig
from saformer.data.sampling import WindowSampler, dimensions_of
from saformer.training.loop.config import FitConfig
from tests.alone import Trainer
from tests.conftest import tiny_config


def test_operations_of_an_update_are_those_that_torch_counts(data):
    """Heads and the gradients of what comes in, which nobody wants, make up the difference."""
    trunk = TrunkConfig(layers=2, width=64, dropout=0.1)
    agent = SaFormerAgent.create(data, replace(tiny_config(), window=6, trunk=trunk), seed=0)
    agent.model.train()
    trainer = Trainer(
        agent, WindowSampler(data, window=6), FitConfig(batch_size=8, precision="bfloat16"), seed=0
    )
    with FlopCounterMode(display=False) as counter:
        trainer.step()
    counted = update_work(dimensions_of(data), trunk, window=6, batch=8, element_bytes=2)
    assert counted.operations == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_packed_models_share_nothing():
    assert Work(3.0, 5.0).times(9) == Work(27.0, 45.0)
    most = Ceilings(operations=10.0, bytes=100.0)
    assert most.arithmetic_seconds(Work(30.0, 50.0)) == 3.0
    assert most.byte_seconds(Work(30.0, 50.0)) == 0.5


def test_bytes_by_hand():
    """One layer of width 4, one window of one step: tokens 5 + 2, float32."""
    work = update_work(
        Dimensions(state=2, action=1, constraints=1, horizon=3),
        TrunkConfig(layers=1, width=4),
        window=1,
        batch=1,
        element_bytes=4,
    )
    activations = (5 + 2) * 4 * (51 * 4 + 8 * 4)
    weights = 2 * (12 * 16) + (1 + 1 + 1 + 2 + 1 + 3) * 4 + (2 + 1 + 3) * 4
    assert work.bytes == activations + weights * (2 * 4 + 4 * 8)
